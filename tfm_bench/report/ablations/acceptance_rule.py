"""Accepted drafts under each acceptance rule, and what inexact samplers gain by leaving the target's law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from tfm_bench.config import TREE_METHODS
from tfm_bench.measure.probe_records import probe_table
from tfm_bench.measure.statistics import Rate, rate_interval
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import CELL, decode_note, with_interval
from tfm_bench.report.arms import NO_INTERVAL, OK, ArmData, arms_of
from tfm_bench.report.style import METHOD_STYLES, MethodStyle, figure_legend, house_style, new_figure

VERSION = 2
COLUMNS = [
    *[*CELL, "method", "budget", "rule", "counted_by", "prompts", "rounds", "left_out_rounds"],
    *["accepted_drafts", "accepted_drafts_low", "accepted_drafts_high"],
    *["accepted_drafts_gain", "accepted_drafts_gain_low", "accepted_drafts_gain_high"],
    *["text_variation", "text_variation_low", "text_variation_high"],
    *["first_token_variation", "first_token_variation_low", "first_token_variation_high", "status"],
]
VARIATIONS = ("text_variation", "first_token_variation")
DECODING, ENUMERATION = "decoding", "enumeration"
STYLES = {
    "sample_match": MethodStyle("sample_match", "#999999", "s", "", ""),
    "traversal": MethodStyle("traversal", "#0072B2", "o", "", ""),
    "traversal_fixed_order": MethodStyle("traversal, children in fixed order", "#D55E00", "^", "", ""),
    "traversal_no_residual": MethodStyle("traversal, target not reduced", "#CC79A7", "D", "", ""),
}


def table(data: AblationData) -> pd.DataFrame:
    """Per method and rule a row for each budget that was decoded, and one for the rounds that were enumerated.

    accepted_drafts_gain and the variations stand in the latter: expected accepted drafts less those of sample_match in
    the same rounds, and the distances from the target's law, all means over rounds.
    """
    rows = [_decoded(arm) for arm in arms_of(data.decode) if arm.method in TREE_METHODS]
    place = {column: data.decode[column].iloc[0] for column in CELL}
    groups = with_all_rules(probe_table(data.probe)).groupby(["method", "budget", "rule"], sort=False)
    rows += [
        {"method": method, "budget": budget, "rule": rule, **_enumerated(group)}
        for (method, budget, rule), group in groups
    ]
    return pd.DataFrame([place | row for row in rows], columns=COLUMNS)


def with_all_rules(seen: pd.DataFrame) -> pd.DataFrame:
    """A round that was not enumerated under one rule loses its results under all: means are over the same rounds."""
    known = seen["accepted_drafts"].notna().groupby([seen["prompt"], seen["method"], seen["round"]]).transform("all")
    return seen.assign(accepted_drafts=seen["accepted_drafts"].where(known))


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals."""
    return decode_note(data.decode).replace("paired bootstrap", "bootstrap, each mark for itself,")


def figure(table: pd.DataFrame, note: str) -> Figure:
    """A row of panels per tree method: accepted drafts by budget and rule; gain against distance from the law."""
    methods = list(table["method"].unique())
    with house_style():
        drawn, panels = new_figure(len(methods), 2, note)
        for method, (left, right) in zip(methods, panels, strict=True):
            of_method, label = table[table["method"] == method], METHOD_STYLES[method].label
            _accepted(left, of_method[of_method["counted_by"] == DECODING])
            enumerated = of_method[of_method["counted_by"] == ENUMERATION]
            _gain(right, enumerated)
            left.set_title(f"{label}, decoded", loc="left")
            right.set_title(f"{label}, budget {enumerated['budget'].iloc[0]}, enumerated", loc="left")
        panels[-1][0].set_xlabel("budget (draft nodes)")
        panels[-1][1].set_xlabel(
            "total variation from the target's law\n(filled: text that a round begins, hollow: first token)"
        )
        figure_legend(drawn, panels)
    return drawn


def _decoded(arm: ArmData) -> dict[str, Any]:
    row = {
        "method": arm.method,
        "budget": arm.budget,
        "rule": arm.rows["rule"].iloc[0],
        "counted_by": DECODING,
        "prompts": arm.prompts,
        "rounds": int(arm.total("rounds")),
        "status": arm.status,
    }
    if arm.status != OK:
        return row | with_interval("accepted_drafts", float("nan"), NO_INTERVAL.low, NO_INTERVAL.high)
    return row | _mean("accepted_drafts", arm.accepted_drafts())


def _enumerated(rows: pd.DataFrame) -> dict[str, Any]:
    """Means over rounds, with intervals over prompts; rounds with too many outcomes are left out, and counted."""
    done = rows.dropna(subset="accepted_drafts")
    done = done.assign(accepted_drafts_gain=done["accepted_drafts"] - done["matched_drafts"])
    row = {"counted_by": ENUMERATION, "prompts": done["prompt"].nunique(), "rounds": len(done)}
    row |= {"left_out_rounds": len(rows) - len(done), "status": OK}
    per_prompt = done.groupby("prompt")
    for name in ("accepted_drafts", "accepted_drafts_gain", *VARIATIONS):
        sums, counts = per_prompt[name].sum(), per_prompt.size()
        row |= _mean(name, Rate(*(x.to_numpy(dtype=float)[None] for x in (sums, counts))))
    return row


def _mean(name: str, rate: Rate) -> dict[str, float]:
    interval = rate_interval(rate)
    return with_interval(name, rate.value(), interval.low, interval.high)


def _accepted(axes: Axes, rows: pd.DataFrame) -> None:
    """Budgets as groups, a mark per rule in each."""
    budgets = sorted(rows["budget"].unique())
    for place, rule in enumerate(STYLES):
        shown = rows[rows["rule"] == rule].dropna(subset="accepted_drafts")
        at = [budgets.index(budget) + (place - 1.5) * 0.16 for budget in shown["budget"]]
        _marks(axes, at, shown, "accepted_drafts", STYLES[rule])
    axes.set_xticks(range(len(budgets)), [str(budget) for budget in budgets])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(-0.5, len(budgets) - 0.5)
    axes.set_ylim(0, 1.05 * rows[["accepted_drafts", "accepted_drafts_high"]].max(axis=None))
    axes.set_ylabel("accepted drafts per round")


def _gain(axes: Axes, rows: pd.DataFrame) -> None:
    """The origin is sample_match, which draws from the target's law: gains are counted from it. Hollow: first token."""
    axes.axhline(0, color="black", linewidth=0.7)
    axes.plot([0], [0], label=STYLES["sample_match"].label, **STYLES["sample_match"].of_lines)
    for rule, row in rows.groupby("rule", sort=False):
        for column in VARIATIONS:
            _marks(axes, row[column], row, "accepted_drafts_gain", STYLES[str(rule)], across=column)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set_ylabel("gain over sample_match\n(accepted drafts per round)")


def _marks(
    axes: Axes,
    x: Sequence[float] | pd.Series,
    rows: pd.DataFrame,
    column: str,
    style: MethodStyle,
    across: str | None = None,
) -> None:
    """Marks with whiskers, upright and, for the column `across`, level."""
    whiskers: dict[str, Any] = {"yerr": _reach(rows, column)} | ({"xerr": _reach(rows, across)} if across else {})
    own: dict[str, Any] = (
        {"markerfacecolor": "white", "label": "_"} if across == VARIATIONS[1] else {"label": style.label}
    )
    look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": "", "elinewidth": 1.0}
    axes.errorbar(x, rows[column], **whiskers, **look, **own)


def _reach(rows: pd.DataFrame, column: str) -> list[pd.Series]:
    """Distances to both ends of the interval."""
    ends = (rows[column] - rows[f"{column}_low"], rows[f"{column}_high"] - rows[column])
    return [end.clip(lower=0) for end in ends]
