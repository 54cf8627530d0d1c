"""Acceptance length against node budget: one line per tree method, the chain as reference."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from tfm_bench.config import TREE_METHODS
from tfm_bench.measure.statistics import rate_interval
from tfm_bench.report.arms import OK, arms_of, groups_of, not_degenerate
from tfm_bench.report.style import METHOD_STYLES, house_style, label_lines, new_figure

VERSION = 5


def plotted_acceptance(decode: pd.DataFrame) -> pd.DataFrame:
    """Acceptance length with its interval per dataset, temperature and arm of the test split.

    Without `ar`, whose length is 1, without prompts whose text is a loop, and without arms that failed or are not lossless.
    """
    rows = []
    for temperature, dataset, group in groups_of(decode[decode["split"] == "test"], pooled=False):
        for arm in arms_of(not_degenerate(group), group):
            if arm.method == "ar" or arm.status != OK:
                continue
            interval = rate_interval(arm.accepted_drafts())
            rows.append(
                {
                    "stack": group["stack"].iloc[0],
                    "dataset": dataset,
                    "temperature": temperature,
                    "method": arm.method,
                    "budget": arm.budget,
                    "expansion_width": arm.expansion_width,
                    "verify_width": arm.verify_width,
                    "prompts": arm.prompts,
                    "acceptance_length": arm.accepted_drafts().value() + 1,
                    "acceptance_length_low": interval.low + 1,
                    "acceptance_length_high": interval.high + 1,
                }
            )
    return pd.DataFrame(rows)


def figure_acceptance_by_budget(data: pd.DataFrame, note: str) -> Figure:
    """Panels temperature × dataset with log2 budgets; axes start at 1, the acceptance length without drafts."""
    temperatures, datasets = sorted(data["temperature"].unique()), list(data["dataset"].unique())
    with house_style():
        figure, panels = new_figure(len(temperatures), len(datasets), note)
        for line, temperature in zip(panels, temperatures, strict=True):
            for axes, dataset in zip(line, datasets, strict=True):
                _panel(axes, data[(data["temperature"] == temperature) & (data["dataset"] == dataset)])
                axes.set_title(f"{dataset}, T = {temperature:g}", loc="left")
            line[0].set_ylabel("acceptance length")
        for axes in panels[-1]:
            axes.set_xlabel("budget (draft nodes)")
    return figure


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    trees, chain = data[data["method"].isin(TREE_METHODS)], data[data["method"] == "dflash_chain"]
    budgets = sorted(trees["budget"].unique())
    ends = []
    for method, rows in trees.groupby("method", sort=False):
        _line(axes, str(method), rows["budget"].to_list(), rows)
        ends.append((float(budgets[-1]), float(rows["acceptance_length"].iloc[-1]), str(method)))
    if len(chain) and budgets:
        _line(axes, "dflash_chain", chain["budget"].to_list(), chain)
        # Beyond its block the chain has no more to draft: the line goes on level.
        last = chain.iloc[[-1, -1]]
        _line(axes, "dflash_chain", [int(last["budget"].iloc[0]), budgets[-1]], last, marker="")
        ends.append((float(budgets[-1]), float(last["acceptance_length"].iloc[0]), "dflash_chain"))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(budgets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.set_ylim(bottom=1)
    label_lines(axes, ends)


def _line(axes: Axes, method: str, x: list[int], rows: pd.DataFrame, marker: str | None = None) -> None:
    style = METHOD_STYLES[method]
    shown = style.marker if marker is None else marker
    axes.plot(x, rows["acceptance_length"], color=style.colour, linestyle=style.line, marker=shown, label=style.label)
    low, high = rows["acceptance_length_low"], rows["acceptance_length_high"]
    axes.fill_between(x, low, high, color=style.colour, alpha=0.18, linewidth=0)
