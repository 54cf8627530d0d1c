"""Acceptance, round time and speedup of every method over budgets."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import ARM_ROW, arm_rows, decode_note
from tfm_bench.report.arms import OK
from tfm_bench.report.budget_lines import budget_lines
from tfm_bench.report.panels import noise_band
from tfm_bench.report.style import METHOD_STYLES, house_style, new_figure

VERSION = 1
COLUMNS = [name for name in ARM_ROW if name not in ("prompt_tokens", "variant")]
# What a row of panels shows: column, label of the axis, where the axis starts.
ROWS = (
    ("acceptance_length", "acceptance length", 1),
    ("round_time_ms", "round time (ms)", 0),
    ("speedup", "speedup over AR", 0),
)


def table(data: AblationData) -> pd.DataFrame:
    """A row per temperature, method and budget, `ar` included."""
    return arm_rows(data.decode)[COLUMNS]


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals."""
    return f"{decode_note(data.decode)} Grey: A/A, AR over AR."


def figure(table: pd.DataFrame, note: str) -> Figure:
    """Panels quantity × temperature over log2 budgets. Without arms that may claim no number; see `status`."""
    shown, temperatures = table[table["status"] == OK], sorted(table["temperature"].unique())
    with house_style():
        drawn, panels = new_figure(len(ROWS), len(temperatures), note)
        for line, (column, label, bottom) in zip(panels, ROWS, strict=True):
            for axes, temperature in zip(line, temperatures, strict=True):
                _panel(axes, shown[shown["temperature"] == temperature], column, bottom)
            line[0].set_ylabel(label)
        for axes, temperature in zip(panels[0], temperatures, strict=True):
            axes.set_title(f"T = {temperature:g}", loc="left")
        for axes in panels[-1]:
            axes.set_xlabel("budget (draft nodes)")
    return drawn


def _panel(axes: Axes, rows: pd.DataFrame, column: str, bottom: float) -> None:
    drafting, plain = rows[rows["method"] != "ar"], rows[rows["method"] == "ar"]
    if column == "speedup":
        noise_band(axes, rows.iloc[:1])
    elif column == "round_time_ms" and len(plain):
        style, height = METHOD_STYLES["ar"], float(plain[column].iloc[0])
        axes.axhline(height, color=style.colour, linestyle=style.line)
        at_end = axes.get_yaxis_transform()
        axes.text(1.0, height, style.label, transform=at_end, color=style.colour, va="top", fontsize=7)
    if len(drafting):
        budget_lines(axes, drafting, column, bottom=bottom)
