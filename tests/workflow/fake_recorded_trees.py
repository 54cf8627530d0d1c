"""Stands in for tfm_bench.measure.recorded_trees: no stack decodes, the file says only what was asked for."""

from __future__ import annotations

from pathlib import Path

from tfm_bench.config import TreeSettings
from tfm_bench.measure.files import write_text

VERSION = 1


def recorded_trees(settings: TreeSettings, output: Path) -> None:
    write_text(output, settings.model_dump_json() + "\n")
