"""What a run shows differently from the committed one: marks of figures whose intervals do not overlap.

Two runs of one code on one machine differ by noise; a mark has moved where its interval in this run and in the
expected one have no point in common. On another machine times move and acceptance does not.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        "gdn_implementation",
        "shapes",
        "tree",
    ],
    *["nodes", "batch", "cache", "method", "budget", "expansion_width", "variant", "rule", "gdn_verify", "baseline"],
    *["arm", "commit", "phase", "drafter", "depth", "depths", "pool_size", "panel", "source", "measure", "counted_by"],
    *["counted_at", "draft_nodes", "tokens_committed", "prompt_selection", "repeat", "prompt", "accepted_drafts"],
    "length",
]
PERCENTILES = {"median_ms": ("p20_ms", "p80_ms")}


def expected_files(expected: Path) -> list[Path]:
    """Tables of figures and ablations, relative to the folder. Raises UserError where there is none."""
    found = [*sorted(expected.glob("figures/*.csv")), *sorted(expected.glob("ablation_*.csv"))]
    if not found:
        raise UserError(f"{expected}: found no figures/*.csv and no ablation_*.csv; the repository has them")
    return [path.relative_to(expected) for path in found]


def compare(found: pd.DataFrame, expected: pd.DataFrame, file: str) -> tuple[pd.DataFrame, int]:
    """Marks that moved or that this run lacks, and how many were compared: those with an interval in the expected run.

    Raises ValueError where the keys do not tell the rows of a table apart.
    """
    keys, intervals = keys_of(expected), _intervals(expected)
    needed = [*keys, *(name for column, ends in intervals.items() for name in (column, *ends))]
    if missing := [name for name in needed if name not in found]:
        raise ValueError(f"{file}: this run's table lacks {', '.join(missing)}")
    found, expected = (_with_interval(table, intervals) for table in (found, expected))
    marks = expected.merge(found, on=keys, suffixes=("_expected", "_found"), how="left", validate="one_to_one")
    rows, compared = [], 0
    for column, (low, high) in intervals.items():
        for mark in marks.to_dict("records"):
            own = [mark[f"{end}_expected"] for end in (low, high)]
            if any(map(pd.isna, own)):
                continue
            compared += 1
            # A mark or an interval that is gone compares as false, and so has moved.
            if not (own[0] <= mark[f"{high}_found"] and mark[f"{low}_found"] <= own[1]):
                sides = _sides(mark, column, low, high)
                rows.append({"file": file, "mark": _name(mark, keys), "column": column, **sides})
    return pd.DataFrame(rows, columns=COLUMNS), compared


def keys_of(table: pd.DataFrame) -> list[str]:
    """The columns of KEYS that tell rows apart. What has an interval, or is a fraction, is a measure there."""
    measures = {key for key in KEYS if f"{key}_low" in table}
    parts = {key for key in ("accepted_drafts", "draft_nodes") if key in table and table[key].dtype.kind == "f"}
    return [key for key in KEYS if key in table and key not in measures | parts]


def _with_interval(table: pd.DataFrame, intervals: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Rows that have at least one: others draw what is compared nowhere."""
    complete = [table[list(ends)].notna().all(axis=1) for ends in intervals.values()]
    return table[pd.concat(complete, axis=1).any(axis=1)] if complete else table[:0]


def _intervals(expected: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Column -> columns of the ends of its interval."""
    ends = {column: (f"{column}_low", f"{column}_high") for column in expected} | PERCENTILES
    return {column: pair for column, pair in ends.items() if {column, *pair} <= set(expected)}


def _sides(mark: dict[Any, Any], column: str, low: str, high: str) -> dict[str, float]:
    names = {"": column, "_low": low, "_high": high}
    return {f"{run}{end}": mark[f"{name}_{run}"] for run in ("expected", "found") for end, name in names.items()}


def _name(mark: dict[Any, Any], keys: list[str]) -> str:
    """The keys of a mark, for reading."""
    return " ".join(f"{key}={mark[key]}" for key in keys if not pd.isna(mark[key]))


def check_expected(results: Path, expected: Path) -> tuple[pd.DataFrame, list[str]]:
    """All marks that moved, and a line per file.

    Raises UserError for a folder without expected tables, and where there was no mark to compare: that is no agreement.
    """
    moved, lines, marks = [], [], 0
    for file in expected_files(expected):
        if not (results / file).is_file():
            lines.append(f"{file}: not made by this run")
            continue
        rows, compared = compare(_read(results / file), _read(expected / file), file.stem)
        moved.append(rows)
        marks += compared
        outcome = f"{len(rows)} of {compared} marks moved beyond their intervals"
        lines.append(f"{file}: {outcome if compared else 'has no intervals, so nothing was compared'}")
    if not marks:
        raise UserError(f"{results}: no mark was compared; what is needed is a run, as by snakemake reproduce_all")
    return pd.concat([pd.DataFrame(columns=COLUMNS), *moved], ignore_index=True), lines


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, na_values=[""])
