"""The README's menu of targets: what each measures, how long that took, and how much memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from tfm_bench.report.tables import to_markdown

RULES = Path("workflows/ablations.smk")
TARGET = re.compile(
    r'^rule (ablation_\w+):\n    """(.+)"""\n    input:\n        wanted_ablation\("(\w+)"\)', re.MULTILINE
)
SECONDS = 60  # per minute


def targets_section(seconds: pd.DataFrame, rules: str) -> str:
    """A line per target that measures. seconds: benchmark, seconds, megabytes; rules: the text of RULES."""
    return to_markdown(pd.DataFrame(_lines(seconds, rules)))


def _lines(seconds: pd.DataFrame, rules: str) -> Iterator[dict[str, object]]:
    kernels = seconds["benchmark"] == "logs/kernel_cell.tsv"
    yield _line("kernel_benchmark", "Gated-DeltaNet verification and commit, every arm", seconds[kernels])
    for target, text, name in TARGET.findall(rules):
        own = seconds["benchmark"].isin([f"logs/ablations/{name}.tsv", f"logs/ablations/{name}.probe.tsv"])
        yield _line(target, text.removesuffix("."), seconds[own])
    yield _line("reproduce_all", "all of it, and the tables of the methods", seconds)


def _line(target: str, text: str, processes: pd.DataFrame) -> dict[str, object]:
    return {
        "target": f"`{target}`",
        "question": text,
        "minutes": float(processes["seconds"].sum() / SECONDS),
        "memory (MB)": int(processes["megabytes"].max()) if len(processes) else 0,
    }
