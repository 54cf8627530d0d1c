"""Acceptance of `tfm` over sizes of Weaver's pool, and how often the target's token is outside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.measure.probe_records import probe_table
from tfm_bench.measure.statistics import Rate, rate_interval
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import CELL, decode_note, paired_ratio, with_interval
from tfm_bench.report.arms import OK, ArmData, arms_of
from tfm_bench.report.style import METHOD_STYLES, MethodStyle, house_style, log2_nodes, new_figure

VERSION = 1
PLACE = [*CELL, "budget", "expansion_width", "pool_size"]
ACCEPTANCE = ["acceptance_length", "acceptance_ratio", "acceptance_ratio_low", "acceptance_ratio_high"]
OUTSIDE = ["depths", "counted_tokens", "outside_share", "outside_share_low", "outside_share_high"]
COLUMNS = [*PLACE, "prompts", "repeats", *ACCEPTANCE, *OUTSIDE, "status"]
# What the places that were counted are split by: depth of the target's token in the round.
DEPTHS: dict[str, Callable[[int], bool]] = {
    "all": lambda depth: True,
    "1": lambda depth: depth == 1,
    "2-4": lambda depth: 2 <= depth <= 4,
    "5+": lambda depth: depth >= 5,
}
STYLES = {
    "all": MethodStyle("all depths", METHOD_STYLES["tfm"].colour, METHOD_STYLES["tfm"].marker, "-", ""),
    "1": MethodStyle("depth 1", "#0072B2", "^", "--", ""),
    "2-4": MethodStyle("depths 2 to 4", "#009E73", "o", "-.", ""),
    "5+": MethodStyle("depths from 5", "#000000", "s", ":", ""),
}


def table(data: AblationData) -> pd.DataFrame:
    """A row per pool size with its acceptance, and one per pool size and range of depths with outside_share.

    acceptance_ratio is paired by prompt: acceptance_length over that of the largest pool.
    """
    rows: list[dict[str, Any]] = []
    for _, cell in data.decode.groupby(CELL, sort=True):
        of_cell = {column: cell[column].iloc[0] for column in CELL}
        arms = sorted((arm for arm in arms_of(cell) if arm.method == "tfm"), key=_pool_size)
        rows += [{**of_cell, **_of_arm(arm), **_acceptance(arm, arms[-1])} for arm in arms]
        place = {**of_cell, "budget": arms[0].budget, "expansion_width": arms[0].expansion_width}
        rows += [{**place, **row} for row in _outside(probe_table(data.probe))]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"counted_tokens": "Int64"})


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals."""
    return decode_note(data.decode)


def figure(table: pd.DataFrame, note: str) -> Figure:
    """Acceptance against the largest pool's, and the target's tokens outside the pool, over a log2 axis of sizes."""
    arms, shares = table[table["depths"].isna()], table[table["depths"].notna()]
    with house_style():
        drawn, ((left, right),) = new_figure(1, 2, note)
        _line(left, arms, "acceptance_ratio", METHOD_STYLES["tfm"])
        last = arms.iloc[-1]
        left.set_title(f"DFlash-TfM, budget {last['budget']}; 1 is {last['acceptance_length']:.2f} tokens", loc="left")
        left.set_ylabel("acceptance length / largest pool's")
        for shift, (depths, rows) in enumerate(shares.groupby("depths", sort=False)):
            _line(right, rows, "outside_share", STYLES[str(depths)], shift)
        right.set_ylabel("target's tokens outside the pool")
        left.set_ylim(0, 1.1)
        right.set_ylim(bottom=0)
        right.yaxis.set_major_formatter("{x:.0%}")
        right.legend(fontsize=7, handlelength=3.5)
        for axes in (left, right):
            log2_nodes(axes, table["pool_size"])
            axes.tick_params(axis="x", labelsize=6)
            axes.set_xlabel("pool size (candidates per depth)")
    return drawn


def _pool_size(arm: ArmData) -> int:
    return int(arm.variant.removeprefix("pool_"))


def _of_arm(arm: ArmData) -> dict[str, Any]:
    return {
        "budget": arm.budget,
        "expansion_width": arm.expansion_width,
        "pool_size": _pool_size(arm),
        "prompts": arm.prompts,
        "repeats": int(arm.rows["repeat"].nunique()),
        "status": arm.status,
    }


def _acceptance(arm: ArmData, largest: ArmData) -> dict[str, float]:
    length = arm.mean_accepted_drafts + 1 if arm.status == OK else math.nan
    return {"acceptance_length": length, **paired_ratio("acceptance_ratio", arm, largest, ArmData.acceptance)}


def _outside(seen: pd.DataFrame) -> list[dict[str, Any]]:
    """Per range of depths and pool size: tokens outside over tokens counted, a prompt being what is drawn."""
    rows = []
    for depths, holds in DEPTHS.items():
        for size, places in seen[seen["depth"].map(holds)].groupby("pool_size", sort=True):
            counts = places.groupby("prompt")[["outside", "tokens"]].sum()
            rate = Rate(*(counts[[column]].to_numpy(dtype=float).T for column in ("outside", "tokens")))
            share = with_interval("outside_share", rate.value(), *astuple(rate_interval(rate)))
            place = {"pool_size": size, "depths": depths, "prompts": len(counts), "repeats": 1, "status": OK}
            rows.append({**place, "counted_tokens": int(counts["tokens"].sum()), **share})
    return rows


def _line(axes: Axes, rows: pd.DataFrame, column: str, style: MethodStyle, shift: int = 0) -> None:
    """A line with whiskers; `shift` moves it aside, so that whiskers of several lines stay apart."""
    x = rows["pool_size"] * 1.06**shift
    axes.vlines(x, rows[f"{column}_low"], rows[f"{column}_high"], color=style.colour, linewidth=0.6)
    axes.plot(x, rows[column], label=style.label, **style.of_lines)
