"""Speedup over plain decoding per dataset, each method at the budget that was fastest on dev."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.report.arms import clean_rows
from tfm_bench.report.style import METHOD_STYLES, house_style, new_figure

VERSION = 3
COLUMNS = [
    *["stack", "dataset", "temperature", "method", "budget", "expansion_width", "prompts"],
    *["speedup", "speedup_low", "speedup_high", "noise_low", "noise_high", "status"],
]
GROUP_WIDTH = 0.8


def plotted_speedups(headline: pd.DataFrame) -> pd.DataFrame:
    """The rows of the headline table that the figure shows: over AR, and on prompts whose text is no loop."""
    clean = clean_rows(headline)
    return clean.loc[clean["baseline"] == "ar", COLUMNS].reset_index(drop=True)


def figure_speedup_by_dataset(data: pd.DataFrame, note: str) -> Figure:
    """Grouped bars from zero with interval whiskers, one panel per temperature.

    The line at 1 is `ar`; the grey band around it is the A/A interval: what `ar` against itself shows.
    """
    temperatures = sorted(data["temperature"].unique())
    with house_style():
        figure, panels = new_figure(len(temperatures), 1, note)
        for (axes,), temperature in zip(panels, temperatures, strict=True):
            _panel(axes, data[data["temperature"] == temperature])
            axes.set_title(f"T = {temperature:g}", loc="left")
        handles, labels = panels[0][0].get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True))
        figure.legend(entries.values(), entries, loc="outside upper right", ncols=len(entries), fontsize=7)
    return figure


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    datasets, methods = list(data["dataset"].unique()), list(data["method"].unique())
    width = GROUP_WIDTH / len(methods)
    for rank, method in enumerate(methods):
        rows = data[data["method"] == method].set_index("dataset").reindex(datasets)
        centres = np.arange(len(datasets)) + (rank + 0.5) * width - GROUP_WIDTH / 2
        _bars(axes, centres, width, method, rows)
    _noise_bands(axes, data.drop_duplicates("dataset"))
    axes.axhline(1.0, color="black", linewidth=0.7)
    axes.set_xticks(range(len(datasets)), datasets)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.15)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("speedup over AR")


def _noise_bands(axes: Axes, rows: pd.DataFrame) -> None:
    """A band per dataset, over its bars and under its whiskers' labels; none where the control was not measured."""
    for place, (low, high) in enumerate(zip(rows["noise_low"], rows["noise_high"], strict=True)):
        if not np.isnan(low):
            ends = [place - GROUP_WIDTH / 2, place + GROUP_WIDTH / 2]
            axes.fill_between(ends, low, high, color="#999999", alpha=0.4, linewidth=0, zorder=2.5, label="A/A noise")


def _bars(axes: Axes, centres: np.ndarray, width: float, method: str, rows: pd.DataFrame) -> None:
    style, heights = METHOD_STYLES[method], rows["speedup"].to_numpy()
    whiskers = np.abs(rows[["speedup_low", "speedup_high"]].to_numpy().T - heights)
    axes.bar(
        centres,
        heights,
        width * 0.92,
        yerr=whiskers,
        label=style.label,
        color=style.colour,
        hatch=style.hatch,
        edgecolor="white",
        linewidth=0,
        error_kw={"elinewidth": 0.8, "capsize": 1.5},
    )
    for centre, height, top, status in zip(centres, heights, rows["speedup_high"], rows["status"], strict=True):
        if np.isnan(height):
            patch = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            why = str(status).partition(":")[0]
            axes.text(centre, 0.05, why, rotation=90, ha="center", va="bottom", fontsize=6, bbox=patch)
        else:
            text = (centre, np.nanmax([top, height]))
            axes.annotate(f"{height:.2f}", text, xytext=(0, 2), textcoords="offset points", ha="center", fontsize=6)
