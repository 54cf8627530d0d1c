"""How many times as fast fused verification is as each recurrence of the same implementation."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.report.gdn_verify import SHAPES, fused_against_baselines, one_problem, paper_rows, require_times
from tfm_bench.report.style import arm_style, figure_legend, house_style, log2_nodes, new_figure

VERSION = 1
COLUMNS = [
    *["source", "device", "implementation", "shapes", "tree", "nodes", "batch", "cache", "baseline"],
    *["verify_ratio", "total_ratio"],
]
NOTE = "Filled: commit included, each arm with its own. Hollow and thin: verification only. Line at 1: no gain."


def plotted_speedup(kernels: pd.DataFrame) -> pd.DataFrame:
    """Ratios of medians, baseline over fused, on Weaver trees at batch 1; then the paper's."""
    ours = require_times(fused_against_baselines(one_problem(kernels))).assign(source="measured")
    return pd.concat([ours, paper_rows()], ignore_index=True).reindex(columns=COLUMNS)


def figure_gdn_verify_speedup(data: pd.DataFrame, note: str) -> Figure:
    """Panels implementation × shapes, log-log; the paper's ratios stand as crosses beside the shapes of its model."""
    ours, paper = data[data["source"] == "measured"], data[data["source"] == "paper"]
    implementations, shapes = list(ours["implementation"].unique()), list(ours["shapes"].unique())
    with house_style():
        figure, panels = new_figure(len(implementations), len(shapes), note + NOTE)
        for line, implementation in zip(panels, implementations, strict=True):
            for axes, shape in zip(line, shapes, strict=True):
                rows = ours[(ours["implementation"] == implementation) & (ours["shapes"] == shape)]
                _panel(axes, rows, paper if shape == SHAPES else paper.head(0))
                axes.set_title(f"{shape}, {implementation}", loc="left")
            line[0].set_ylabel("time of baseline / time of fused")
        for axes in panels[-1]:
            axes.set_xlabel("nodes")
        figure_legend(figure, panels)
    return figure


def _panel(axes: Axes, data: pd.DataFrame, paper: pd.DataFrame) -> None:
    for baseline, rows in data.sort_values("nodes").groupby("baseline", sort=False):
        style = arm_style(str(baseline))
        axes.plot(rows["nodes"], rows["total_ratio"], label=f"over {style.label}", **style.of_lines)
        axes.plot(rows["nodes"], rows["verify_ratio"], linewidth=0.6, markerfacecolor="white", **style.of_lines)
    if len(paper):
        label = "paper: B200, verification only"
        axes.plot(paper["nodes"], paper["verify_ratio"], color="black", linestyle="", marker="x", label=label)
    axes.axhline(1.0, color="black", linewidth=0.7)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    log2_nodes(axes, data["nodes"])
