"""The measuring layer on the fake engine."""

import importlib
import importlib.util
import json
import sys
from types import SimpleNamespace

import pytest

from tests.tfm_bench.fake_cells import PROMPTS, ROOT

FAKE_ENGINE = ROOT / "tests" / "workflow" / "fake_engine.py"
ON_THE_ENGINE = ("logit_gap", "cell_runs", "cells")


@pytest.fixture(autouse=True)
def _own_device_lock(monkeypatch, tmp_path):
    """A measurement that runs meanwhile neither waits nor makes a test wait."""
    folder = SimpleNamespace(gettempdir=lambda: str(tmp_path))
    monkeypatch.setattr("tfm_bench.measure.device_lock.tempfile", folder)


@pytest.fixture
def stack_folder(tmp_path):
    for part in ("target", "drafter", "weaver"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "model.safetensors").write_bytes(part.encode())
    (tmp_path / "prompts").mkdir()
    lines = [json.dumps({"id": f"p{i}", "text": f"prompt {i}", "kind": "text"}) for i in range(PROMPTS)]
    for split in ("dev", "test"):
        (tmp_path / "prompts" / f"math.{split}.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def cells(monkeypatch):
    """tfm_bench.measure.cells, freshly imported on top of the fake engine; every generate call is logged."""
    spec = importlib.util.spec_from_file_location("tfm_bench.engine", FAKE_ENGINE)
    fake = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tfm_bench.engine", fake)
    spec.loader.exec_module(fake)
    calls = []
    original = fake.generate

    def logged(stack, prompt_ids, arm, **options):
        calls.append(SimpleNamespace(prompt=bytes(prompt_ids).decode(), arm=arm, **options))
        return original(stack, prompt_ids, arm, **options)

    fake.generate = logged
    for name in (f"tfm_bench.measure.{name}" for name in ON_THE_ENGINE):
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(sys.modules["tfm_bench.measure"], name.rpartition(".")[2], module)
    module.calls, module.runs = calls, sys.modules["tfm_bench.measure.cell_runs"]
    return module
