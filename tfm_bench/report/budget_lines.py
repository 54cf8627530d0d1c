"""A panel of lines over budgets, one per method: the look that every figure over budgets shares."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from tfm_bench.config import TREE_METHODS
from tfm_bench.report.style import METHOD_STYLES, label_lines

CHAIN = "dflash_chain"


def budget_lines(axes: Axes, data: pd.DataFrame, column: str, *, bottom: float) -> None:
    """Lines of `column` with bands from `column`_low to _high over log2 budgets, named at their ends.

    The y axis starts at `bottom`. Beyond its block the chain has no more to draft: its line goes on level.
    """
    trees, chain = data[data["method"].isin(TREE_METHODS)], data[data["method"] == CHAIN]
    # The chain's block is nearly a power of two: its tick would stand on that of a tree.
    budgets, ends = sorted((trees if len(trees) else chain)["budget"].unique()), []
    for method, rows in trees.groupby("method", sort=False):
        _line(axes, str(method), rows["budget"].to_list(), rows, column)
        ends.append((float(rows["budget"].iloc[-1]), float(rows[column].iloc[-1]), str(method)))
    if len(chain):
        _line(axes, CHAIN, chain["budget"].to_list(), chain, column)
        last = chain.iloc[[-1, -1]]
        _line(axes, CHAIN, [int(last["budget"].iloc[0]), budgets[-1]], last, column, marker="")
        ends.append((float(budgets[-1]), float(last[column].iloc[0]), CHAIN))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(budgets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.set_ylim(bottom=bottom)
    label_lines(axes, ends)


def _line(axes: Axes, method: str, x: list[int], rows: pd.DataFrame, column: str, marker: str | None = None) -> None:
    style = METHOD_STYLES[method]
    shown = style.marker if marker is None else marker
    axes.plot(x, rows[column], color=style.colour, linestyle=style.line, marker=shown, label=style.label)
    axes.fill_between(x, rows[f"{column}_low"], rows[f"{column}_high"], color=style.colour, alpha=0.18, linewidth=0)
