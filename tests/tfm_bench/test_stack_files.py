"""Parts and prompts that stand there already are used only where they are what the configuration asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.tfm_bench.prompts.published_rows import REVISION
from tfm_bench.config import load_config, read_yaml
from tfm_bench.errors import UserError
from tfm_bench.prompts.manifest import manifest_path
from tfm_bench.prompts.prepare import PINS_FILE
from tfm_bench.stack_config import StackConfig
from tfm_bench.stack_files import prompt_files, stack_files

CONFIG = Path(__file__).parents[2] / "config"
OTHER = REVISION[::-1]


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a pin of GSM8K, in which everything runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    shutil.copy(CONFIG / "datasets.yaml", tmp_path / PINS_FILE)
    pin(REVISION)
    return tmp_path


def pin(revision: str) -> None:
    path, rows = Path(PINS_FILE), []
    for row in path.read_text().splitlines(keepends=True):
        rows.append(f"gsm8k: {{revision: {revision!r}}}\n" if row.startswith("gsm8k:") else row)
    path.write_text("".join(rows))


def stack(**changes: object) -> StackConfig:
    values = read_yaml(CONFIG / "default.yaml")
    values["stack"] |= read_yaml(CONFIG / "qwen36-27b.yaml")["stack"] | changes
    return load_config(values).stack


def prompts_of(config: StackConfig, **changes: object) -> Path:
    """A file of prompts with the manifest that a run leaves, or with changes of its request."""
    path = Path(config.path) / "prompts" / "gsm8k.test.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    request = {"version": 1, "dataset": "gsm8k", "split": "test", "wording": "tfm", "source": "openai/gsm8k"}
    request |= {"revision": REVISION, "pin": {"revision": REVISION}, "selection_seed": 20260617} | changes
    manifest = {"request": request, "files": {}, "prompts": 128, "prompts_sha256": "0" * 64}
    manifest_path(path).write_text(json.dumps(manifest))
    return path


def error_of(config: StackConfig) -> str:
    with pytest.raises(UserError) as caught:
        stack_files(config, dataset="gsm8k", split="test")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_prompts_that_fit_their_pin_are_used(project: Path) -> None:
    path = prompts_of(stack())
    assert prompt_files(stack(), dataset="gsm8k", split="test") == [str(path)]
    assert prompt_files(stack(wording="dflash"), dataset="gsm8k", split="dev")  # not there yet


def test_prompts_of_another_commit_are_refused(project: Path) -> None:
    path = prompts_of(stack())
    pin(OTHER)
    assert error_of(stack()) == f"{path}: was made from revision {REVISION}, asked for is {OTHER}; delete it and rerun"


def test_prompts_in_another_wording_are_refused(project: Path) -> None:
    prompts_of(stack())
    assert "was made from wording tfm, asked for is dflash; delete" in error_of(stack(wording="dflash"))


@pytest.mark.parametrize("change", [{"version": 0}, {"source": "x/y"}, {"selection_seed": 1}], ids=str)
def test_prompts_of_any_other_request_are_refused(project: Path, change: dict[str, object]) -> None:
    prompts_of(stack(), **change)
    ((key, value),) = change.items()
    assert f"was made from {key} {value}, asked for" in error_of(stack())


def test_prompts_of_the_users_own_are_refused_where_the_run_prepares_that_set(project: Path) -> None:
    path = prompts_of(stack())
    manifest_path(path).unlink()
    assert error_of(stack()) == f"{path}: found prompts without a manifest; delete them to have them prepared"
    own = path.with_name("mine.test.jsonl")
    own.touch()
    assert prompt_files(stack(), dataset="mine", split="test") == [str(own)]


def test_a_part_of_another_commit_is_refused(project: Path) -> None:
    config = stack()
    drafter = Path(config.path) / "drafter"
    drafter.mkdir(parents=True)
    source = {"repo": config.parts["drafter"].repo, "commit": "0" * 40, "files": {}}
    (drafter / "source.json").write_text(json.dumps(source))
    assert f"{drafter}: was made from z-lab/Qwen3.6-27B-DFlash at {'0' * 40}, not from" in error_of(config)
