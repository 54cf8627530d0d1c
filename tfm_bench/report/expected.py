"""What a run shows differently from the committed one: marks of figures whose intervals do not overlap.

Two runs of one code on one machine differ by noise; a mark has moved where its interval in this run and in the
expected one have no point in common. On another machine times move and acceptance does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from tfm_bench.errors import UserError

VERSION = 1
COLUMNS = [
    *["file", "mark", "column", "expected", "expected_low", "expected_high", "found", "found_low", "found_high"],
]
# Columns that tell marks of one figure apart; what a figure lacks is left out.
KEYS = [
    *[
        "stack",
        "split",
        "dataset",
        "temperature",
        "dtype",
        "prompt_tokens",
        "implementation",
        "shapes",
        "tree",
        "nodes",
    ],
    *["batch", "cache", "method", "budget", "expansion_width", "variant", "rule", "baseline", "arm", "commit", "phase"],
    *["drafter", "depth", "size", "panel", "measure", "tokens_committed", "prompt_selection", "repeat", "prompt"],
]
PERCENTILES = {"median_ms": ("p20_ms", "p80_ms")}


def expected_files(expected: Path) -> list[Path]:
    """Tables of figures and ablations, relative to the folder. Raises UserError where there is none."""
    found = [*sorted(expected.glob("figures/*.csv")), *sorted(expected.glob("ablation_*.csv"))]
    if not found:
        raise UserError(f"{expected}: found no figures/*.csv and no ablation_*.csv; the repository has them")
    return [path.relative_to(expected) for path in found]


def compare(found: pd.DataFrame, expected: pd.DataFrame, file: str) -> tuple[pd.DataFrame, int]:
    """Marks that moved, and how many were compared: those that both have, with intervals in both."""
    keys = [key for key in KEYS if key in found and key in expected]
    marks = expected.merge(found, on=keys, suffixes=("_expected", "_found"), how="inner")
    rows, compared = [], 0
    for column, (low, high) in _intervals(found, expected).items():
        for mark in marks.to_dict("records"):
            ends = [mark[f"{end}_{run}"] for run in ("expected", "found") for end in (low, high)]
            if any(map(pd.isna, ends)):
                continue
            compared += 1
            if ends[1] < ends[2] or ends[3] < ends[0]:
                rows.append(
                    {"file": file, "mark": _name(mark, keys), "column": column, **_sides(mark, column, low, high)}
                )
    return pd.DataFrame(rows, columns=COLUMNS), compared


def _intervals(found: pd.DataFrame, expected: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Column -> columns of the ends of its interval, for those that both tables have."""
    both = set(found) & set(expected)
    ends = {column: (f"{column}_low", f"{column}_high") for column in found} | PERCENTILES
    return {column: pair for column, pair in ends.items() if {column, *pair} <= both}


def _sides(mark: dict[Any, Any], column: str, low: str, high: str) -> dict[str, float]:
    names = {"": column, "_low": low, "_high": high}
    return {f"{run}{end}": mark[f"{name}_{run}"] for run in ("expected", "found") for end, name in names.items()}


def _name(mark: dict[Any, Any], keys: list[str]) -> str:
    """The keys of a mark, for reading."""
    return " ".join(f"{key}={mark[key]}" for key in keys if not pd.isna(mark[key]))


def check_expected(results: Path, expected: Path) -> tuple[pd.DataFrame, list[str]]:
    """All marks that moved, and a line per file. Raises UserError for a folder without expected tables."""
    moved, lines = [], []
    for file in expected_files(expected):
        if not (results / file).is_file():
            lines.append(f"{file}: not made by this run")
            continue
        rows, compared = compare(_read(results / file), _read(expected / file), file.stem)
        moved.append(rows)
        lines.append(f"{file}: {len(rows)} of {compared} marks moved beyond their intervals")
    return pd.concat([pd.DataFrame(columns=COLUMNS), *moved], ignore_index=True), lines


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, na_values=[""])
