"""Preparing every data set from files of the real form, in the folders where the hub's own library keeps downloads."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tests.tfm_bench.models.local_hub import COMMIT, LocalHub
from tests.tfm_bench.prompts.published_rows import REVISION, ROWS, put_on_hub, sharechat, sharechat_pin
from tfm_bench.errors import UserError
from tfm_bench.prompts.datasets import PACKAGED, load_prompts, prompt_set_hash
from tfm_bench.prompts.manifest import manifest_path
from tfm_bench.prompts.pins import Pins
from tfm_bench.prompts.prepare import prepare_dataset
from tfm_bench.prompts.sources import BENCHMARKS, DATASETS, SHARECHAT_REPO, splits

PINS = Pins.model_validate({name: {"revision": REVISION} for name in ROWS} | {"sharechat": sharechat_pin()})
KEPT = {"gsm8k": 128, "math500": 128, "aime25": 30, "humaneval": 164, "mbpp": 6, "livecodebench": 4}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no network."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return cache


@pytest.fixture
def publish(hub: Path) -> Callable[..., Path]:
    """Puts a data set's file, with its usual rows or others, in the cache."""

    def put(dataset: str, rows: list[dict[str, Any]] | None = None) -> Path:
        source = BENCHMARKS[dataset].hub
        assert source is not None
        return put_on_hub(hub, source.repo, source.file, ROWS[dataset] if rows is None else rows)

    return put


@pytest.mark.parametrize("dataset", list(ROWS))
def test_prompts_and_manifest(dataset: str, publish: Callable[..., Path], tmp_path: Path) -> None:
    source = publish(dataset)
    output = tmp_path / "prompts" / f"{dataset}.test.jsonl"
    manifest = prepare_dataset(dataset, "test", output, PINS)
    prompts = load_prompts(dataset, "test", output.parent)
    assert len(prompts) == len({prompt.id for prompt in prompts}) == KEPT[dataset]
    assert {prompt.kind for prompt in prompts} == {"chat"}
    stored = json.loads(manifest_path(output).read_text())
    assert stored == manifest.model_dump()
    assert stored["prompts_sha256"] == prompt_set_hash(prompts)
    assert list(stored["files"].values()) == [hashlib.sha256(source.read_bytes()).hexdigest()]
    request = {key: stored["request"][key] for key in ("dataset", "split", "wording", "revision", "selection_seed")}
    expected = {"dataset": dataset, "split": "test", "wording": "tfm", "revision": REVISION}
    assert request == expected | {"selection_seed": 20260617}


@pytest.fixture
def served(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub on this machine that has the six rows of MBPP."""
    source = put_on_hub(hub, "elsewhere/mbpp", "test.parquet", ROWS["mbpp"])
    mbpp = BENCHMARKS["mbpp"].hub
    files = {f"datasets/{mbpp.repo}": {mbpp.file: source.read_bytes()}, "datasets/openai/gsm8k": {}}
    with LocalHub(files).running() as local:
        address = local.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", local.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield local


def test_a_pinned_file_is_downloaded_once(served: LocalHub, tmp_path: Path) -> None:
    pins = Pins.model_validate({"mbpp": {"revision": COMMIT}})
    for wording in ("tfm", "dflash"):
        assert prepare_dataset("mbpp", "test", tmp_path / "mbpp.test.jsonl", pins, wording).prompts == 6
    assert served.downloads() == [BENCHMARKS["mbpp"].hub.file]


@pytest.mark.parametrize(("revision", "reason"), [(COMMIT, "no such file"), (REVISION, "no such revision")])
def test_what_the_hub_does_not_have_names_the_pins(served, revision: str, reason: str, tmp_path: Path) -> None:
    pins = Pins.model_validate({"gsm8k": {"revision": revision}})
    with pytest.raises(
        UserError, match=rf"openai/gsm8k at {revision}: main/test.*{reason}.*check config/datasets.yaml"
    ):
        prepare_dataset("gsm8k", "test", tmp_path / "gsm8k.test.jsonl", pins)


def test_math_500_keeps_its_subjects_in_proportion(publish: Callable[..., Path], tmp_path: Path) -> None:
    publish("math500")
    prepare_dataset("math500", "test", tmp_path / "math500.test.jsonl", PINS)
    subjects = Counter(prompt.id.split("/")[1] for prompt in load_prompts("math500", "test", tmp_path))
    assert subjects == {"algebra": 51, "geometry": 51, "number theory": 26}  # of 51.2, 51.2 and 25.6


@pytest.mark.parametrize("dataset", ["gsm8k", "math500"])
def test_dev_prompts_are_what_the_sample_leaves_out(dataset: str, publish, tmp_path: Path) -> None:
    publish(dataset)
    for split in ("dev", "test"):
        prepare_dataset(dataset, split, tmp_path / f"{dataset}.{split}.jsonl", PINS)
    dev, test = ({prompt.id for prompt in load_prompts(dataset, split, tmp_path)} for split in ("dev", "test"))
    assert len(dev) == len(test) == 128
    assert not dev & test


def test_only_samples_have_a_dev_split(tmp_path: Path) -> None:
    assert [dataset for dataset in DATASETS if "dev" in splits(dataset)] == ["gsm8k", "math500"]
    with pytest.raises(UserError, match="dataset mbpp: found split 'dev'; accepted are test"):
        prepare_dataset("mbpp", "dev", tmp_path / "mbpp.dev.jsonl", PINS)


def test_sharechat_from_the_files_that_the_pin_names(hub: Path, tmp_path: Path) -> None:
    rows = sharechat(english=600, other=60)
    parts = {"a.csv": rows[::2], "b/c.parquet": rows[1::2]}
    pin = PINS.sharechat.model_copy(update={"files": list(parts)})
    files = {name: put_on_hub(hub, SHARECHAT_REPO, name, part) for name, part in parts.items()}
    output = tmp_path / "sharechat.test.jsonl"
    manifest = prepare_dataset("sharechat", "test", output, Pins(sharechat=pin))
    assert manifest.prompts == 500
    assert manifest.files == {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    prompts = load_prompts("sharechat", "test", tmp_path)
    assert Counter("English" in prompt.text for prompt in prompts) == {True: 250, False: 250}
    assert prepare_dataset("sharechat", "test", output, Pins(sharechat=pin)) == manifest


def test_wording_reaches_the_prompts(publish: Callable[..., Path], tmp_path: Path) -> None:
    publish("gsm8k")
    texts = {}
    for wording in ("tfm", "dflash"):
        prepare_dataset("gsm8k", "test", tmp_path / "gsm8k.test.jsonl", PINS, wording)
        texts[wording] = [prompt.text for prompt in load_prompts("gsm8k", "test", tmp_path)]
    pairs = zip(texts["tfm"], texts["dflash"], strict=True)
    assert all(long.startswith(f"{short}\nPlease reason") for short, long in pairs)


def test_prepared_prompts_need_no_source_any_more(publish: Callable[..., Path], tmp_path: Path) -> None:
    source, output = publish("gsm8k"), tmp_path / "gsm8k.test.jsonl"
    manifest = prepare_dataset("gsm8k", "test", output, PINS)
    written = output.stat().st_mtime_ns
    source.unlink()
    assert prepare_dataset("gsm8k", "test", output, PINS) == manifest
    assert output.stat().st_mtime_ns == written


def test_another_commit_is_read_anew_and_a_failure_keeps_what_was_there(publish, hub: Path, tmp_path: Path) -> None:
    publish("gsm8k")
    output, other = tmp_path / "gsm8k.test.jsonl", REVISION[::-1]
    prepare_dataset("gsm8k", "test", output, PINS)
    before = load_prompts("gsm8k", "test", tmp_path)
    pins = Pins.model_validate({"gsm8k": {"revision": other}})
    with pytest.raises(
        UserError, match=f"openai/gsm8k at {other}: main/test-.*: not in .*, and HF_HUB_OFFLINE is set"
    ) as caught:
        prepare_dataset("gsm8k", "test", output, pins)
    assert "\n" not in str(caught.value)
    assert load_prompts("gsm8k", "test", tmp_path) == before
    source = BENCHMARKS["gsm8k"].hub
    put_on_hub(hub, source.repo, source.file, ROWS["gsm8k"][::-1], revision=other)
    assert prepare_dataset("gsm8k", "test", output, pins).request.revision == other
    assert load_prompts("gsm8k", "test", tmp_path) != before


@pytest.mark.parametrize("damage", ["text", "lost line", "order", "manifest"])
def test_prompts_that_do_not_fit_their_manifest_are_refused(damage: str, publish, tmp_path: Path) -> None:
    publish("mbpp")
    output = tmp_path / "mbpp.test.jsonl"
    prepare_dataset("mbpp", "test", output, PINS)
    lines = output.read_text().splitlines(keepends=True)
    changed = {"text": [lines[0].replace("Write", "write"), *lines[1:]], "lost line": lines[:-1], "order": lines[::-1]}
    if damage == "manifest":
        manifest_path(output).write_text("{}")
    else:
        output.write_text("".join(changed[damage]))
    for act in (lambda: load_prompts("mbpp", "test", tmp_path), lambda: prepare_dataset("mbpp", "test", output, PINS)):
        with pytest.raises(UserError, match=r"mbpp.test.*(delete both files|delete it and)") as caught:
            act()
        assert "\n" not in str(caught.value)


def test_prompts_of_the_users_own_are_never_overwritten(publish: Callable[..., Path], tmp_path: Path) -> None:
    publish("mbpp")
    output = tmp_path / "mbpp.test.jsonl"
    output.write_text('{"id": "a", "text": "b", "kind": "chat"}\n')
    with pytest.raises(UserError, match="found prompts without a manifest; delete them"):
        prepare_dataset("mbpp", "test", output, PINS)
    assert [prompt.id for prompt in load_prompts("mbpp", "test", tmp_path)] == ["a"]


@pytest.mark.parametrize(
    ("dataset", "rows", "message"),
    [
        ("gsm8k", ROWS["gsm8k"][:127], "found 127 rows; a sample of 128"),
        ("aime25", ROWS["aime25"][:29], "found 29 rows; 30 are accepted"),
        ("aime25", ROWS["aime25"] + ROWS["aime25"][:1], "found id 'aime25-0' a second time"),
        ("math500", [{"problem": "Why?", "unique_id": "a"}], "no prompt .*subject"),
        ("mbpp", [{"task_id": 1, "prompt": "Why?"}], "no prompt .*test_list"),
    ],
)
def test_sources_of_another_form_leave_nothing(dataset: str, rows, message: str, publish, tmp_path: Path) -> None:
    publish(dataset, rows)
    output = tmp_path / "prompts" / f"{dataset}.test.jsonl"
    with pytest.raises(UserError, match=message) as caught:
        prepare_dataset(dataset, "test", output, PINS)
    assert "\n" not in str(caught.value)
    assert not output.parent.exists()


@pytest.mark.parametrize("dataset", ["gsm8k", "math500", "mbpp", "livecodebench", "sharechat"])
def test_nothing_is_guessed_where_no_commit_is_pinned(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"{dataset}.revision: not there, but required; .* commit of \S+/\S+ on the"):
        prepare_dataset(dataset, "test", tmp_path / "x.jsonl", Pins())


def test_unknown_dataset_and_wording(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found 'gsm9k'; accepted are mt_bench, gsm8k"):
        prepare_dataset("gsm9k", "test", tmp_path / "x.jsonl", PINS)
    with pytest.raises(UserError, match="found 'dflash' for dataset livecodebench"):
        prepare_dataset("livecodebench", "test", tmp_path / "x.jsonl", PINS, "dflash")


@pytest.mark.parametrize("dataset", ["humaneval", "mt_bench", "aime25"])
def test_packages_serve_where_nothing_is_pinned(dataset: str, tmp_path: Path) -> None:
    requirement = PACKAGED[dataset].requirement
    try:
        metadata.distribution(requirement.partition("==")[0])
    except metadata.PackageNotFoundError:
        pytest.skip(f"{requirement} is not installed")
    manifest = prepare_dataset(dataset, "test", tmp_path / f"{dataset}.test.jsonl", Pins())
    assert (manifest.request.source, manifest.request.revision) == (requirement, None)
    assert manifest.prompts == BENCHMARKS[dataset].count
    assert len(load_prompts(dataset, "test", tmp_path)) == BENCHMARKS[dataset].count
