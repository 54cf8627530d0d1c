"""Verification with its commit against the size of the tree: every arm, and the limit that the device sets it."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.report.gdn_verify import one_problem, require_times
from tfm_bench.report.style import arm_style, figure_legend, house_style, log2_nodes, new_figure

VERSION = 1
COLUMNS = [
    *["device", "implementation", "shapes", "tree", "nodes", "batch", "cache", "arm", "commit"],
    *["median_ms", "p20_ms", "p80_ms", "roofline_ms"],
]
NOTE = "Lines: medians with bands from p20 to p80. Thin dotted: bytes and FLOPs of the arm at the measured limits."


def plotted_latency(kernels: pd.DataFrame) -> pd.DataFrame:
    """Times of verification with commit on Weaver trees at batch 1; only arms that are right."""
    rows = one_problem(kernels)
    return require_times(rows.loc[(rows["phase"] == "total") & (rows["status"] == "ok"), COLUMNS].reset_index(drop=True))


def figure_gdn_verify_latency(data: pd.DataFrame, note: str) -> Figure:
    """Panels implementation × shapes, log-log: milliseconds per layer against nodes."""
    implementations, shapes = list(data["implementation"].unique()), list(data["shapes"].unique())
    with house_style():
        figure, panels = new_figure(len(implementations), len(shapes), note + NOTE)
        for line, implementation in zip(panels, implementations, strict=True):
            for axes, top, shape in zip(line, panels[0], shapes, strict=True):
                if axes is not top:
                    axes.sharey(top)
                chosen = (data["implementation"] == implementation) & (data["shapes"] == shape)
                _panel(axes, data[chosen])
                axes.set_title(f"{shape}, {implementation}", loc="left")
            line[0].set_ylabel("verify and commit (ms per layer)")
        for axes in panels[-1]:
            axes.set_xlabel("nodes")
        figure_legend(figure, panels)
    return figure


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    for arm, rows in data.sort_values("nodes").groupby("arm", sort=False):
        style = arm_style(str(arm))
        axes.plot(rows["nodes"], rows["median_ms"], label=style.label, **style.of_lines)
        axes.fill_between(rows["nodes"], rows["p20_ms"], rows["p80_ms"], color=style.colour, alpha=0.18, linewidth=0)
        # In the arm's colour, with its marker hollow: it is found in grey too.
        limit = style.of_lines | {"linestyle": ":", "linewidth": 0.7, "markersize": 2.5, "markerfacecolor": "white"}
        axes.plot(rows["nodes"], rows["roofline_ms"], **limit)
    axes.set_yscale("log")
    log2_nodes(axes, data["nodes"])
