"""The stacks of published checkpoints: their configurations load as Snakemake merges them, and name what they pin."""

from pathlib import Path

import pytest
from snakemake.utils import update_config

from tfm_bench.backends.settings import load_server_config, weaver_files
from tfm_bench.config import load_config, read_yaml
from tfm_bench.errors import UserError
from tfm_bench.stack_config import pinned_part
from tfm_bench.stack_files import prompt_files, splits_of, stack_files

CONFIG = Path(__file__).parents[2] / "config"
STACKS = ("qwen36-27b", "qwen35-4b", "qwen3-8b", "qwen3-4b")


def merged(name, **changes):
    """default.yaml with a stack's file over it, and `changes` of its section `stack`."""
    values = read_yaml(CONFIG / "default.yaml")
    update_config(values, read_yaml(CONFIG / f"{name}.yaml"))
    values["stack"] |= changes
    return values


def error_of(call, *arguments, **options):
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", STACKS)
def test_each_stack_loads_and_downloads_its_parts(name):
    config = load_config(merged(name))
    assert config.stack.name == name
    assert config.budgets == [16, 32, 64, 128]
    assert ("tfm" in config.methods) == ("weaver" in config.stack.parts)
    assert load_config(config.model_dump()) == config
    for part, pin in config.stack.parts.items():
        assert pinned_part(config.stack, part) is pin


def test_the_paper_s_stack_is_pinned_throughout():
    parts = load_config(merged("qwen36-27b")).stack.parts
    assert {part: (pin.repo, pin.revision[:8]) for part, pin in parts.items()} == {
        "target": ("Qwen/Qwen3.6-27B", "6a9e13bd"),
        "drafter": ("z-lab/Qwen3.6-27B-DFlash", "09196886"),
        "weaver": ("trymirai/weaver", "309ceb4b"),
    }
    assert {name: sha256[:8] for pin in parts.values() for name, sha256 in pin.sha256.items()} == {
        "model.safetensors": "e0c050b3",
        "weaver/qwen36_27b_weaver.pth": "71f540b1",
    }


def test_a_cell_waits_for_its_downloads(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stack = load_config(merged("qwen36-27b")).stack
    assert stack_files(stack, dataset="gsm8k", split="test") == [
        *(f"checkpoints/qwen36-27b/{part}/source.json" for part in ("target", "drafter", "weaver")),
        "checkpoints/qwen36-27b/prompts/gsm8k.test.jsonl",
    ]


def pin(**changes):
    return {"repo": "z-lab/x", "revision": "a" * 40, "files": ["config.json", "model.safetensors"]} | changes


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"revision": "abc123"}, ["revision", "'abc123'"]),
        ({"revision": "A" * 40}, ["revision"]),
        ({"repo": "no-owner"}, ["repo", "'no-owner'"]),
        ({"repo": "../etc/passwd"}, ["repo"]),
        ({"files": []}, ["files"]),
        ({"files": ["../config.json"]}, ["files.0", "'../config.json'"]),
        ({"files": ["/config.json"]}, ["files.0"]),
        ({"files": ["a/config.json", "b/config.json"]}, ["files: found config.json twice"]),
        ({"sha256": {"model.safetensors": "71f5"}}, ["sha256.model.safetensors", "'71f5'"]),
        ({"sha256": {"other.safetensors": "7" * 64}}, ["sha256", "'other.safetensors'", "config.json"]),
        ({"branch": "main"}, ["branch"]),
    ],
    ids=str,
)
def test_mistakes_in_a_pin_name_part_key_and_value(change, expected):
    values = merged("qwen3-4b")
    values["stack"]["parts"]["drafter"] = pin(**change)
    text = error_of(load_config, values)
    for words in ["stack.parts.drafter", *expected]:
        assert words in text


def test_a_stack_needs_its_parts_its_folder_and_a_weaver_for_tfm():
    parts = merged("qwen3-4b")["stack"]["parts"]
    assert "parts: drafter not there" in error_of(load_config, merged("qwen3-4b", parts={"target": parts["target"]}))
    assert "path: found 'elsewhere'" in error_of(load_config, merged("qwen3-4b", path="elsewhere"))
    assert "methods: found 'tfm'" in error_of(load_config, merged("qwen3-4b") | {"methods": ["ar", "tfm"]})


def test_a_stack_without_a_part_says_so():
    assert "downloads no weaver; its parts are target, drafter" in error_of(
        pinned_part, load_config(merged("qwen3-4b")).stack, "weaver"
    )
    tiny = load_config(read_yaml(CONFIG / "default.yaml")).stack
    assert "its parts are none" in error_of(pinned_part, tiny, "target")


def test_data_sets_that_a_run_prepares_need_not_be_there_yet(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stack = load_config(merged("qwen36-27b")).stack
    assert [splits_of(stack, dataset) for dataset in ("gsm8k", "math500", "mt_bench", "aime25")] == [
        ("dev", "test"),
        ("dev", "test"),
        ("test",),
        ("test",),
    ]
    assert prompt_files(stack, dataset="mt_bench", split="test") == [
        "checkpoints/qwen36-27b/prompts/mt_bench.test.jsonl"
    ]
    assert "found 'mt_bench'" in error_of(prompt_files, stack, dataset="mt_bench", split="dev")
    assert "accepted are mt_bench, gsm8k" in error_of(prompt_files, stack, dataset="maths", split="test")


def test_both_stacks_of_the_paper_read_the_same_prompts_in_the_same_form():
    engine = load_config(merged("qwen36-27b")).stack
    served = load_server_config(read_yaml(CONFIG / "qwen36-27b-sglang.yaml")).stack
    form = {"path", "wording", "reasoning", "chat_format"}
    assert engine.model_dump(include=form) == served.model_dump(include=form)
    assert served.parts == {"weaver": engine.parts["weaver"]}
    assert weaver_files(served) == ["checkpoints/qwen36-27b/weaver/source.json"]


def test_a_downloaded_weaver_is_the_one_that_servers_are_given():
    values = read_yaml(CONFIG / "qwen36-27b-sglang.yaml")
    values["stack"]["weaver"] = "elsewhere/weaver.pth"
    text = error_of(load_server_config, values)
    assert "weaver: found 'elsewhere/weaver.pth'; downloaded into is checkpoints/qwen36-27b/weaver/" in text
