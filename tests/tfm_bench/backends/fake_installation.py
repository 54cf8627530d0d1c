"""Settings of a cell on the fake SGLang of tests/tfm_bench/fake_sglang, and the environment that finds it."""

import os
import sys
from functools import cache
from pathlib import Path

from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.backends.detection import detect
from tfm_bench.backends.settings import load_server_config, server_cell_settings

ROOT = Path(__file__).parents[3]
FAKE = ROOT / "tests" / "tfm_bench" / "fake_sglang"
FLAGS = {"common": ["--page-size", "64"], "ar": [], "dflash_chain": [], "ddtree": [], "tfm": []}


def install(monkeypatch, **switches):
    """Put the fake on the path of child processes; switches become FAKE_SGLANG_*."""
    path = [str(FAKE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    for name, value in switches.items():
        monkeypatch.setenv(f"FAKE_SGLANG_{name.upper()}", str(value))


@cache
def detected(fork=None):
    """What the fake has, with FAKE_SGLANG_FORK as given and set by the caller; asking takes seconds."""
    assert os.environ.get("FAKE_SGLANG_FORK") == fork
    return detect(sys.executable)


def make_config(path="prompts-of", sglang=(), **changes):
    """The configuration as a mapping."""
    stack = {
        "name": "fake",
        "path": str(path),
        "dtype": "float32",
        "block_size": 8,
        "target": {"path": str(SHIPPED / "target")},
        "drafter": {"path": str(SHIPPED / "drafter")},
        "weaver": str(SHIPPED / "weaver" / "weaver.pth"),
    }
    limits = {"python": sys.executable, "start_timeout_s": 90, "request_timeout_s": 60, "flags": FLAGS}
    return {
        "stack": stack,
        "sglang": limits | dict(sglang),
        "datasets": ["math"],
        "temperatures": [0.0],
        "methods": ["ar", "dflash_chain", "ddtree", "tfm"],
        "budgets": [9],
        "prompts": {"dev": 1, "test": 3},
        "max_new_tokens": 40,
        "repeats": 1,
        "seed": 5,
    } | changes


def make_settings(*, repeat=0, temperature_hundredths=0, **changes):
    """The settings of one cell."""
    config = load_server_config(make_config(**changes))
    place = {"split": "test", "dataset": "math", "repeat": repeat}
    return server_cell_settings(config, temperature_hundredths=temperature_hundredths, **place)
