"""Round time and speedup over prompt lengths: where verification stops being cheap."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.measure.statistics import ratio, ratio_interval
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import ARM_ROW, arm_rows, decode_note, staged_rate, staged_rows, with_interval
from tfm_bench.report.arms import OK, ArmData
from tfm_bench.report.panels import interval_line, noise_band, start_at
from tfm_bench.report.stage_times import STAGE_COLUMNS
from tfm_bench.report.style import METHOD_STYLES, figure_legend, house_style, log2_nodes, new_figure

VERSION = 1
ADDED = ["staged_prompts", "verify_ms", "verify_over_ar_step", "verify_over_ar_step_low", "verify_over_ar_step_high"]
COLUMNS = [name for name in ARM_ROW if name not in ("variant", "status")] + [*ADDED, "status"]
PLACE = ["repeat", "dataset", "prompt"]


def table(data: AblationData) -> pd.DataFrame:
    """A row per length of the prompt and method, `ar` included.

    verify_ms: the verify stage per round, in staged runs; verify_over_ar_step: over a whole round of `ar`, in its
    staged runs of the same prompts.
    """
    rows = arm_rows(data.decode, by=["prompt_tokens"], further=_cost_of_verification)
    return rows[COLUMNS].astype({"prompt_tokens": int})


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals."""
    staged = data.decode.loc[data.decode["other_ms"].notna(), "prompt"].nunique()
    return f"{decode_note(data.decode)} Verify stage: {staged} prompts, once. Grey: A/A, AR over AR."


def figure(table: pd.DataFrame, note: str) -> Figure:
    """Over log2 lengths: acceptance, round time, verification over a step of AR, speedup; `ar` where it can change."""
    shown = table[table["status"] == OK]
    with house_style():
        drawn, ((lengths, times), (costs, speedups)) = new_figure(2, 2, note)
        drafting = shown[shown["method"] != "ar"]
        _panel(lengths, drafting, "acceptance_length", "acceptance length", bottom=1)
        _panel(times, shown, "round_time_ms", "round time (ms)")
        _panel(costs, shown, "verify_over_ar_step", "verify stage over a step of AR")
        noise_band(speedups, shown, "prompt_tokens")
        _panel(speedups, drafting, "speedup", "speedup over AR")
        for axes in (costs, speedups):
            axes.set_xlabel("prompt (tokens)")
        figure_legend(drawn, [[times, speedups]])
    return drawn


def _panel(axes: Axes, rows: pd.DataFrame, column: str, label: str, bottom: float = 0) -> None:
    for method, own in rows.groupby("method", sort=False):
        interval_line(axes, own, "prompt_tokens", column, METHOD_STYLES[str(method)])
    log2_nodes(axes, rows["prompt_tokens"])
    start_at(axes, bottom)
    axes.set_title(label, loc="left")


def _cost_of_verification(arm: ArmData, arms: list[ArmData]) -> dict[str, Any]:
    (plain,) = (a for a in arms if a.method == "ar")
    both = staged_rows(arm).merge(staged_rows(plain), on=PLACE, suffixes=("", "_ar"))
    verify = staged_rate(both["verify_ms"], both["rounds"])
    step = staged_rate(both[[f"{column}_ar" for column in STAGE_COLUMNS]].sum(axis=1), both["rounds_ar"])
    value, low, high = math.nan, math.nan, math.nan
    if len(both):
        interval = ratio_interval(verify, step)
        value, low, high = ratio(verify, step), interval.low, interval.high
    milliseconds = verify.value() if len(both) else math.nan
    return {
        "staged_prompts": len(both[["dataset", "prompt"]].drop_duplicates()),
        "verify_ms": milliseconds,
        **with_interval("verify_over_ar_step", value, low, high),
    }
