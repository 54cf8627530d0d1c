"""Rounds by the drafts that they accept, from none to the whole block, every method equally wide."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.measure.statistics import rate_interval
from tfm_bench.report.arms import ALL_DATASETS, ArmData, arms_of, groups_of, not_degenerate
from tfm_bench.report.round_shares import (
    Index,
    arms_of_one_width,
    method_label,
    of_arm,
    rounds_of,
    share_of_rounds,
)
from tfm_bench.report.style import METHOD_STYLES, figure_legend, house_style, new_figure

VERSION = 1
COLUMNS = [
    *["stack", "dataset", "temperature", "method", "budget", "expansion_width", "prompts", "accepted_drafts"],
    *["rounds", "share", "share_low", "share_high"],
]
GROUP_WIDTH = 0.84
NOTE = "\nAll datasets together. B: budget. The last round of each text is left out."


def plotted_lengths(decode: pd.DataFrame, index: Index) -> pd.DataFrame:
    """Per temperature and method a row for each number of drafts up to the most that any method accepted.

    Datasets are pooled, so a dataset weighs by its rounds. Without prompts whose text is a loop.
    """
    rows: list[dict[str, object]] = []
    for temperature, dataset, group in groups_of(decode[decode["split"] == "test"], pooled=True):
        if dataset != ALL_DATASETS:
            continue
        arms = arms_of_one_width(arms_of(not_degenerate(group), group))
        most = max((_most(arm, index) for arm in arms), default=-1)
        for arm in arms:
            place = of_arm(arm, dataset, temperature)
            rows += [{**place, **_with_length(arm, index, length)} for length in range(most + 1)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _most(arm: ArmData, index: Index) -> int:
    return max((done.accepted for generation in rounds_of(arm, index) for done in generation), default=0)


def _with_length(arm: ArmData, index: Index, length: int) -> dict[str, object]:
    rate = share_of_rounds(arm, index, lambda done: done.accepted == length)
    interval = rate_interval(rate)
    share = {"share": rate.value(), "share_low": interval.low, "share_high": interval.high}
    return {"accepted_drafts": length, "rounds": int(rate.counts.sum()), **share}


def figure_accepted_length_histogram(data: pd.DataFrame, note: str) -> Figure:
    """A panel per temperature: bars of all methods side by side at each number of accepted drafts."""
    temperatures = sorted(data["temperature"].unique())
    with house_style():
        figure, panels = new_figure(len(temperatures), 1, note + NOTE)
        for (axes,), temperature in zip(panels, temperatures, strict=True):
            _panel(axes, data[data["temperature"] == temperature])
            axes.set_title(f"T = {temperature:g}", loc="left")
            axes.set_ylabel("share of rounds")
        panels[-1][0].set_xlabel("accepted drafts")
        figure_legend(figure, panels)
    return figure


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    methods = list(data["method"].unique())
    width = GROUP_WIDTH / len(methods)
    for rank, method in enumerate(methods):
        rows, style = data[data["method"] == method], METHOD_STYLES[method]
        shares = rows["share"].to_numpy()
        axes.bar(
            rows["accepted_drafts"] + (rank + 0.5) * width - GROUP_WIDTH / 2,
            shares,
            width * 0.94,
            yerr=np.abs(rows[["share_low", "share_high"]].to_numpy().T - shares),
            label=method_label(style.label, rows),
            color=style.colour,
            hatch=style.hatch,
            edgecolor="white",
            linewidth=0,
            error_kw={"elinewidth": 0.7, "capsize": 1.2},
        )
    axes.set_xticks(sorted(data["accepted_drafts"].unique()))
    axes.set_ylim(bottom=0)
    axes.grid(visible=False, axis="x")
