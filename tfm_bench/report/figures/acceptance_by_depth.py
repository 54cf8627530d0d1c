"""How deep acceptance reaches: the share of rounds that accept at least d drafts, every method equally wide."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfm_bench.measure.statistics import rate_interval
from tfm_bench.report.arms import ArmData, arms_of, groups_of, not_degenerate
from tfm_bench.report.panels import dataset_panels, interval_line
from tfm_bench.report.round_shares import (
    Index,
    arms_of_one_width,
    method_label,
    of_arm,
    rounds_of,
    share_of_rounds,
)
from tfm_bench.report.style import METHOD_STYLES, figure_legend, house_style

VERSION = 1
COLUMNS = [
    *["stack", "dataset", "temperature", "method", "budget", "expansion_width", "prompts", "depth"],
    *["share", "share_low", "share_high", "reach"],
]
NOTE = "\nThin: share of rounds whose tree has a node that deep. B: budget. The last round of each text is left out."


def plotted_depths(decode: pd.DataFrame, index: Index) -> pd.DataFrame:
    """Per dataset, temperature and method a row for each depth that some tree of the method reaches.

    share: of all rounds, also of those whose tree ends before; over all depths it sums to the accepted drafts per
    round. Without prompts whose text is a loop.
    """
    rows: list[dict[str, object]] = []
    for temperature, dataset, group in groups_of(decode[decode["split"] == "test"], pooled=False):
        for arm in arms_of_one_width(arms_of(not_degenerate(group), group)):
            place = of_arm(arm, dataset, temperature)
            rows += [{**place, **_at_depth(arm, index, depth)} for depth in range(1, _deepest(arm, index) + 1)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _deepest(arm: ArmData, index: Index) -> int:
    return max((done.depth for generation in rounds_of(arm, index) for done in generation), default=0)


def _at_depth(arm: ArmData, index: Index, depth: int) -> dict[str, object]:
    accepting = share_of_rounds(arm, index, lambda done: done.accepted >= depth)
    reaching = share_of_rounds(arm, index, lambda done: done.depth >= depth)
    interval = rate_interval(accepting)
    share = {"share": accepting.value(), "share_low": interval.low, "share_high": interval.high}
    return {"depth": depth, **share, "reach": reaching.value()}


def figure_acceptance_by_depth(data: pd.DataFrame, note: str) -> Figure:
    """Panels temperature × dataset; shares from 0 to 1 against depth."""
    with house_style():
        figure, panels = dataset_panels(data, note + NOTE, _panel, x="accepted drafts, at least", y="share of rounds")
        figure_legend(figure, panels)
    return figure


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    for method, rows in data.groupby("method", sort=False):
        style = METHOD_STYLES[str(method)]
        interval_line(axes, rows, "depth", "share", replace(style, label=method_label(style.label, rows)))
        axes.plot(rows["depth"], rows["reach"], **style.of_lines | {"marker": "", "linewidth": 0.7})
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
