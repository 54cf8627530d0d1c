"""Repositories of a small hub, and pins of them."""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.tfm_bench.models.local_hub import COMMIT
from tfm_bench.errors import UserError
from tfm_bench.models import hub
from tfm_bench.stack_config import PinnedPart

SHARDS = ["model.safetensors-00001-of-00002.safetensors", "model.safetensors-00002-of-00002.safetensors"]
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}).encode()
TARGET = {
    "config.json": b'{"model_type": "qwen3_5"}',
    "model.safetensors.index.json": INDEX,
    SHARDS[0]: b"first" * 1000,
    SHARDS[1]: b"second" * 1000,
    "README.md": b"not needed",
    "preprocessor_config.json": b"{}",
}
WEAVER = b"weights" * 5000


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def pin(repo="some/target", revision=COMMIT, files=("config.json",), **options):
    return PinnedPart(repo=repo, revision=revision, files=list(files), **options)


def target_pin(**options):
    return pin(files=["config.json", "model.safetensors.index.json"], **options)


def weaver_pin(content=WEAVER, **options):
    return pin("some/weaver", files=["folder/w.pth"], sha256={"folder/w.pth": sha256(content)}, **options)


def error_of(part, folder):
    with pytest.raises(UserError) as caught:
        hub.download(part, folder)
    message = str(caught.value)
    assert "\n" not in message
    assert not list(folder.parent.glob(".*partial"))
    return message
