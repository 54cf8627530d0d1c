"""Where the time of a round goes, each method at the budget that was fastest on dev."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.config import STAGES
from tfm_bench.report.arms import ALL_DATASETS, ARM_COLUMNS
from tfm_bench.report.style import METHOD_STYLES, house_style, new_figure, origin_note

VERSION = 1
PARTS = (*STAGES, "other")
COLUMNS = [
    *["stack", "temperature", *ARM_COLUMNS, "verify_width", "rounds", *(f"{part}_ms" for part in PARTS)],
    *["staged_round_ms", "round_time_ms", "verify_share"],
]
# Colour and hatch: neighbours in the stack differ in grey too.
PART_STYLES = {
    "draft": ("#56B4E9", ""),
    "tree": ("#D55E00", "////"),
    "verify": ("#F0E442", ""),
    "accept": ("#0072B2", "xxxx"),
    "commit": ("#E69F00", "...."),
    "other": ("#333333", ""),
}
NOTE = "Bars: the runs with inner timers, whose stages sum to the bar. Diamonds: the same rounds without inner timers."


def plotted_stages(stage_times: pd.DataFrame, headline: pd.DataFrame) -> pd.DataFrame:
    """Rows of the table of stage times for the arms of the headline table that pools all datasets.

    verify_share: verification's part of the staged round.
    """
    chosen = headline[headline["dataset"] == ALL_DATASETS].drop_duplicates(["temperature", *ARM_COLUMNS])
    rows = stage_times.merge(chosen[["temperature", *ARM_COLUMNS]], on=["temperature", *ARM_COLUMNS])
    return rows.assign(verify_share=rows["verify_ms"] / rows["staged_round_ms"])[COLUMNS]


def stages_note(decode: pd.DataFrame) -> str:
    """The small print: n is that of the staged runs, and there are no intervals."""
    staged = decode[(decode["split"] == "test") & decode["other_ms"].notna()]
    prompts = len(staged[["dataset", "prompt"]].drop_duplicates())
    return f"{origin_note(staged)}; n = {prompts} test prompts of all datasets, once; means, no intervals.\n"


def figure_stage_times(data: pd.DataFrame, note: str) -> Figure:
    """A panel per temperature: stacked bars from zero, one per method; all panels share the scale."""
    temperatures = sorted(data["temperature"].unique())
    with house_style():
        figure, panels = new_figure(len(temperatures), 1, note + NOTE)
        for (axes,), temperature in zip(panels, temperatures, strict=True):
            _panel(axes, data[data["temperature"] == temperature])
            axes.set_title(f"T = {temperature:g}", loc="left")
            axes.set_xlim(0, data[["staged_round_ms", "round_time_ms"]].max(axis=None) * 1.17)
        panels[-1][0].set_xlabel("milliseconds per round")
        handles, labels = panels[0][0].get_legend_handles_labels()
        # Bars in their order, the marker last: matplotlib lists lines first.
        handles, labels = [*handles[1:], handles[0]], [*labels[1:], labels[0]]
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=7)
    return figure


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    rows, places = data.reset_index(drop=True), np.arange(len(data))
    left = np.zeros(len(rows))
    for part in PARTS:
        colour, hatch = PART_STYLES[part]
        widths = rows[f"{part}_ms"].to_numpy()
        axes.barh(places, widths, 0.56, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=part)
        left += widths
    axes.plot(rows["round_time_ms"], places + 0.36, "D", color="black", markersize=3, label="without timers")
    for place, row in rows.iterrows():
        text = f"verify {row['verify_share']:.0%}"
        axes.annotate(
            text, (row["staged_round_ms"], place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7
        )
    axes.set_yticks(places, [_name(row) for _, row in rows.iterrows()])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _name(row: pd.Series) -> str:
    label = METHOD_STYLES[row["method"]].label
    return label if row["method"] == "ar" else f"{label}\nB = {row['budget']}"
