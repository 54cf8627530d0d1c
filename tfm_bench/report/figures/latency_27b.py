"""Where the time of a round goes at the shapes of the 27B stack, and the speedup that this projects to."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.config import expansion_width
from tfm_bench.report.figures.stage_times import PART_STYLES
from tfm_bench.report.latency import PARTS
from tfm_bench.report.style import METHOD_STYLES, arm_style, house_style, new_figure

VERSION = 2
COLUMNS = [
    *["method", "budget", "expansion_width", "gdn_verify", *(f"{part}_ms" for part in PARTS), "round_time_ms"],
    *["temperature", "acceptance_length", "speedup", "projected"],
]
HATCH = "////"  # of every bar that was not measured
BAR_INCHES = 0.26
MARGIN_INCHES = 0.9


def plotted_latency(table: pd.DataFrame) -> pd.DataFrame:
    """Arms that ran, with the automatic width alone, at the highest temperature that acceptance was recorded at."""
    automatic = [expansion_width("auto", budget) for budget in table["budget"]]
    shown = table[(table["status"] == "ok") & ((table["method"] != "tfm") | (table["expansion_width"] == automatic))]
    recorded = shown["temperature"].isna() | (shown["temperature"] == shown["temperature"].max())
    return shown[recorded].sort_values(["budget", "method"], kind="stable", ignore_index=True)[COLUMNS]


def latency_note(latency: pd.DataFrame, table: pd.DataFrame) -> str:
    """The small print: what was measured, on what, and what was not."""
    row, stacks = latency.iloc[0], "/".join(table["acceptance_from"].dropna().unique())
    where = f"{row['device']}, {row['threads']} threads, {row['dtype']}"
    what = f"shapes {row['shapes']}, random weights, {row['target_layers']} of {row['all_layers']} target layers"
    if row["target_layers"] < row["all_layers"]:
        projected = "No speedup is projected from a target that lacks layers: its drafter is whole."
    else:
        projected = f"Hatched: projected, not measured, from acceptance lengths of the stack {stacks or '(none)'}."
    measured = f"Measured {str(row['measured_at'])[:10]} on {where}; {what}."
    return f"{measured}\nStacked bars: medians of each stage. {projected}\n"


def figure_latency_27b(data: pd.DataFrame, note: str) -> Figure:
    """Stacked round times, and beside them, where there are any, hatched bars of projected speedups; an arm per line."""
    with house_style():
        panels = 2 if data["projected"].any() else 1
        figure, ((times, *rest),) = new_figure(1, panels, note, panel_height=MARGIN_INCHES + BAR_INCHES * len(data))
        _stacks(times, data)
        for speedups in rest:
            _projections(speedups, data)
        figure.legend(*times.get_legend_handles_labels(), loc="outside upper center", ncols=len(PARTS), fontsize=7)
    return figure


def _stacks(axes: Axes, data: pd.DataFrame) -> None:
    places, left = np.arange(len(data)), np.zeros(len(data))
    for part in PARTS:
        colour, hatch = PART_STYLES[part]
        widths = data[f"{part}_ms"].to_numpy()
        axes.barh(places, widths, 0.7, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=part)
        left += widths
    axes.set_yticks(places, [_name(row) for _, row in data.iterrows()], fontsize=7)
    axes.set_ylim(len(data) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds per round")


def _projections(axes: Axes, data: pd.DataFrame) -> None:
    for place, row in data.iterrows():
        if not row["projected"]:
            continue
        colour = METHOD_STYLES[row["method"]].colour
        axes.barh(place, row["speedup"], 0.7, color="white", edgecolor=colour, hatch=HATCH)
        axes.annotate(
            f"{row['speedup']:.2f}", (row["speedup"], place), xytext=(3, 0), textcoords="offset points", va="center",
            fontsize=7,
        )  # fmt: skip
    axes.set_yticks(range(len(data)), [""] * len(data))
    axes.set_ylim(len(data) - 0.5, -0.5)
    axes.axvline(1.0, color="black", linewidth=0.6)
    axes.margins(x=0.15)
    axes.grid(visible=False, axis="y")
    temperature = data["temperature"].max()
    axes.set_xlabel("projected speedup over AR" + ("" if pd.isna(temperature) else f", T = {temperature:g}"))


def _name(row: pd.Series) -> str:
    label = METHOD_STYLES[row["method"]].label
    if row["method"] == "ar":
        return label
    kernel = "" if row["gdn_verify"] == "fused" else f", {arm_style(row['gdn_verify']).label}"
    return f"{label}, B = {row['budget']}{kernel}"
