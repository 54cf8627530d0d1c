"""Parts that were made for each other, and configs that say otherwise."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.tfm_bench import user_errors
from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.engine import Stack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped stack."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "tiny", ignore=shutil.ignore_patterns("controls", "prompts")))


def change(folder: Path, part: str, **values: object) -> None:
    file = folder / part / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def load(folder: Path) -> Stack:
    return Stack.load(folder, dtype="float32", gdn_verify="fused", commit="replay")


error_of = partial(user_errors.error_of, load)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("num_target_layers", "drafter/config.json: num_target_layers is 64; the target's number of layers is 12"),
        ("vocab_size", "drafter/config.json: vocab_size is 64; the target's number of token ids is 4096"),
    ],
)
def test_a_drafter_of_another_target_is_refused(folder: Path, key: str, words: str) -> None:
    change(folder, "drafter", **{key: 64})
    assert words in error_of(folder)
    change(folder, "drafter", **{key: None})
    load(folder)
