"""Acceptance lost against Weaver calls saved, over expansion widths and budgets."""

from __future__ import annotations

from math import ceil
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.config import expansion_width
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import ARM_ROW, arm_rows, decode_note, paired_ratio
from tfm_bench.report.arms import ArmData
from tfm_bench.report.panels import number_map
from tfm_bench.report.style import house_style, new_figure

VERSION = 1
ADDED = ["weaver_calls", "acceptance_ratio", "acceptance_ratio_low", "acceptance_ratio_high"]
COLUMNS = [name for name in ARM_ROW if name not in ("prompt_tokens", "variant", "status")] + [*ADDED, "status"]


def table(data: AblationData) -> pd.DataFrame:
    """A row per budget and width of `tfm`.

    weaver_calls: at most so many one after the other in a round, ⌈budget / width⌉. acceptance_ratio: acceptance length
    over that of width 1 at the same budget, paired by prompt.
    """
    rows = arm_rows(data.decode, further=_against_width_1)
    return rows.loc[rows["method"] == "tfm", COLUMNS].reset_index(drop=True)


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals."""
    return f"{decode_note(data.decode)} Brackets: the same."


def figure(table: pd.DataFrame, note: str) -> Figure:
    """Heat maps budget × width: acceptance, its ratio to width 1, Weaver calls, round time; ⌈budget/16⌉ framed."""
    with house_style():
        drawn, ((lengths, calls), (ratios, times)) = new_figure(2, 2, note)
        _map(lengths, table, "acceptance_length", 2, "acceptance length")
        _map(calls, table, "weaver_calls", 0, "Weaver calls per round, ⌈budget / width⌉")
        _map(times, table, "round_time_ms", 1, "round time (ms)")
        _map(ratios, table, "acceptance_ratio", 2, "acceptance length over that of width 1")
    return drawn


def _against_width_1(arm: ArmData, arms: list[ArmData]) -> dict[str, Any]:
    same = [a for a in arms if (a.method, a.budget, a.expansion_width) == (arm.method, arm.budget, 1)]
    ratios = paired_ratio("acceptance_ratio", arm, same[0] if same else None, ArmData.acceptance)
    return {"weaver_calls": ceil(arm.budget / arm.expansion_width) if arm.expansion_width else 0, **ratios}


def _map(axes: Axes, table: pd.DataFrame, column: str, decimals: int, title: str) -> None:
    """Of what is acceptance, a cell's interval stands below its number."""
    grid = _grid(table, column)
    texts = grid.map(lambda value: f"{value:.{decimals}f}")
    if column.startswith("acceptance"):
        low, high = (_grid(table, f"{column}_{end}").map(lambda x: f"{x:.{decimals}f}") for end in ("low", "high"))
        texts = texts + "\n[" + low + ", " + high + "]"
    chosen = [(row, expansion_width("auto", int(budget))) for row, budget in enumerate(grid.index)]
    marked = [(row, list(grid.columns).index(width)) for row, width in chosen if width in grid.columns]
    number_map(axes, grid, texts, marked)
    axes.set_xlabel("expansion width")
    axes.set_ylabel("budget")
    axes.set_title(title, loc="left")


def _grid(table: pd.DataFrame, column: str) -> pd.DataFrame:
    return table.pivot(index="budget", columns="expansion_width", values=column)
