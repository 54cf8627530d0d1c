"""Whole decoding with fused and recurrent Gated-DeltaNet verification: share of the round, end-to-end effect."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.measure.statistics import rate_interval
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import (
    ARM_ROW,
    arm_rows,
    decode_note,
    paired_ratio,
    staged_rate,
    staged_rows,
    with_interval,
)
from tfm_bench.report.arms import OK, ArmData
from tfm_bench.report.figures.stage_times import PART_STYLES
from tfm_bench.report.panels import noise_band
from tfm_bench.report.stage_times import STAGE_COLUMNS
from tfm_bench.report.style import arm_style, house_style, new_figure

VERSION = 1
FAMILY, PLAIN = "gdn_", "torch_"
STAGED = ["staged_prompts", "verify_ms", "commit_ms", "staged_round_ms"]
SHARES = [f"{stage}_share{end}" for stage in ("verify", "commit") for end in ("", "_low", "_high")]
FUSED = ["fused_speedup", "fused_speedup_low", "fused_speedup_high"]
COLUMNS = [
    *[name for name in ARM_ROW if name not in ("prompt_tokens", "variant", "status")],
    *["gdn_verify", "gdn_implementation", *STAGED, *SHARES, *FUSED, "status"],
]
ARM = ["gdn_implementation", "budget", "gdn_verify"]


def table(data: AblationData) -> pd.DataFrame:
    """A row per implementation, budget and method of verification, all under `tfm`.

    verify_ms and commit_ms are per round, of the staged runs, as their shares of staged_round_ms are. speedup is over
    the one `ar` of the cell, which verifies by the stack's own kernels; fused_speedup is the speed of fused
    verification by the same implementation over that of the row. An implementation that lacks a method is not in it:
    where torch stepped in, the row is torch's.
    """
    decode = data.decode
    plain = decode[decode["method"] == "ar"].groupby("repeat")["gdn_implementation"].first()
    # Within a process another implementation is what is compared here, no mixture of machines.
    paired = decode.assign(verified_by=decode["gdn_implementation"], gdn_implementation=decode["repeat"].map(plain))
    rows = arm_rows(paired, further=_of_verification)
    arms = rows[rows["method"] == "tfm"].drop_duplicates(ARM).reindex(columns=COLUMNS)
    return arms.reset_index(drop=True).astype({"staged_prompts": "Int64"})


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals."""
    staged = data.decode.loc[data.decode["other_ms"].notna(), "prompt"].nunique()
    return f"{decode_note(data.decode)} Stages: {staged} prompts, once. Grey: A/A, AR over AR."


def figure(table: pd.DataFrame, note: str) -> Figure:
    """A column per implementation and budget: the round's stages, speedup over AR, and what fused gains over each."""
    groups = list(table.groupby(ARM[:2], sort=False))
    with house_style():
        drawn, panels = new_figure(3, len(groups), note)
        for column, ((implementation, budget), rows) in enumerate(groups):
            stages, speeds, gains = (line[column] for line in panels)
            stages.set_title(f"{implementation}, budget {budget}", loc="left")
            _stages(stages, rows)
            _dots(speeds, rows, "speedup")
            _dots(gains, rows[rows["gdn_verify"] != "fused"], "fused_speedup")
            gains.set_xlabel("recurrence by")
            for axes in (stages, speeds, gains):
                axes.grid(visible=False, axis="x")
        for (axes, *_), label in zip(
            panels, ("ms per round", "speedup over AR", "speed of fused over the other"), strict=True
        ):
            axes.set_ylabel(label)
        _same_height(panels[1])
        _same_height(panels[2])
        handles, labels = panels[0][0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=7)
    return drawn


def _of_verification(arm: ArmData, arms: list[ArmData]) -> dict[str, Any]:
    method, verified_by = _method(arm), arm.rows["verified_by"].iloc[0]
    fused = [
        other
        for other in arms
        if (_method(other), other.budget) == ("fused", arm.budget) and other.rows["verified_by"].iloc[0] == verified_by
    ]
    gain = paired_ratio("fused_speedup", fused[0], arm, ArmData.speed) if fused else {}
    return {"gdn_verify": method, "gdn_implementation": verified_by, **_staged(staged_rows(arm)), **gain}


def _method(arm: ArmData) -> str:
    return arm.variant.removeprefix(FAMILY).removeprefix(PLAIN)


def _staged(rows: pd.DataFrame) -> dict[str, float]:
    """Milliseconds per round and shares of the round; nothing where no generation was staged."""
    if rows.empty:
        return {}
    rounds, whole = rows["rounds"].sum(), rows[STAGE_COLUMNS].sum(axis=1)
    found = {"staged_prompts": float(rows["prompt"].nunique()), "staged_round_ms": whole.sum() / rounds}
    for stage in ("verify", "commit"):
        times = rows[f"{stage}_ms"]
        share = staged_rate(times, whole)
        interval = rate_interval(share)
        found[f"{stage}_ms"] = times.sum() / rounds
        found |= with_interval(f"{stage}_share", share.value(), interval.low, interval.high)
    return found


def _stages(axes: Axes, rows: pd.DataFrame) -> None:
    """Bars of verification, commit and the rest of a staged round, with the first two's share above."""
    places, bottom = np.arange(len(rows)), np.zeros(len(rows))
    rest = rows["staged_round_ms"] - rows["verify_ms"] - rows["commit_ms"]
    for part, heights in {"verify": rows["verify_ms"], "commit": rows["commit_ms"], "other": rest}.items():
        colour, hatch = PART_STYLES[part]
        name = "all else" if part == "other" else part
        axes.bar(places, heights, 0.7, bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=name)
        bottom = bottom + heights.to_numpy(dtype=float)
    for place, row in zip(places, rows.itertuples(index=False), strict=True):
        if not math.isnan(row.verify_share):
            shares = f"{row.verify_share:.0%}\n+ {row.commit_share:.1%}"
            axes.annotate(shares, (place, bottom[place]), (0, 2), textcoords="offset points", ha="center", fontsize=6)
    axes.margins(y=0.22)
    axes.set_ylim(bottom=0)
    _name_methods(axes, rows)


def _dots(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """A marker with its interval per method; a row without a number says why."""
    noise_band(axes, rows)
    for place, row in enumerate(rows.to_dict("records")):
        style, value = arm_style(row["gdn_verify"]), row[column]
        if math.isnan(value):
            why = "no fused arm" if row["status"] == OK else str(row["status"]).partition(":")[0]
            axes.text(place, 0.05, why, rotation=90, ha="center", va="bottom", fontsize=6)
            continue
        axes.vlines(place, row[f"{column}_low"], row[f"{column}_high"], color=style.colour, linewidth=1)
        axes.plot(place, value, color=style.colour, marker=style.marker)
        axes.annotate(f"{value:.2f}", (place, value), (6, 0), textcoords="offset points", va="center", fontsize=6)
    axes.margins(y=0.15)
    _name_methods(axes, rows)


def _name_methods(axes: Axes, rows: pd.DataFrame) -> None:
    names = [arm_style(method).label.removesuffix(" recurrent") for method in rows["gdn_verify"]]
    axes.set_xticks(range(len(rows)), names)
    axes.set_xlim(-0.6, len(rows) - 0.4)


def _same_height(line: list[Axes]) -> None:
    """One scale from zero for all panels of a row."""
    top = max(axes.get_ylim()[1] for axes in line)
    for axes in line:
        axes.set_ylim(0, top)
