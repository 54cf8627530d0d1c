"""One row per arm of an ablation's cells: what most ablation tables are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from tfm_bench.measure.statistics import Rate, rate_interval, ratio, ratio_interval
from tfm_bench.report.arms import MILLISECONDS, NO_INTERVAL, OK, ArmData, arms_of, noise_floor, status_of_pair
from tfm_bench.report.style import measured_note

VERSION = 2
ARM_ROW = [
    *["stack", "dataset", "temperature", "dtype", "prompt_tokens", "method", "budget", "expansion_width", "variant"],
    *["prompts", "repeats", "acceptance_length", "acceptance_length_low", "acceptance_length_high"],
    *["round_time_ms", "round_time_ms_low", "round_time_ms_high", "tokens_per_second"],
    *["speedup", "speedup_low", "speedup_high", "noise_low", "noise_high", "degenerate_prompts", "status"],
]
# A cell of an ablation: rows that share these were measured side by side, on the same prompts, against their own `ar`.
CELL = ["stack", "dataset", "temperature", "dtype"]
# Further columns of an arm, from it and all arms of its cell, `ar` first.
Further = Callable[[ArmData, list[ArmData]], dict[str, Any]]


def arm_rows(decode: pd.DataFrame, by: Sequence[str] = (), further: Further | None = None) -> pd.DataFrame:
    """A row per cell and arm, `ar` included; `by`: further columns of `decode` that tell cells apart.

    Prompts with degenerate text stay in, and are counted: an ablation compares arms on the same text. speedup is that
    over `ar` of the same cell with its 95 % interval (see measure.statistics), noise_low and noise_high the interval of
    `ar` over `ar`. acceptance_length and round_time_ms have intervals too. prompt_tokens: mean over the prompts. A row
    without speedup says why in `status`. `further` adds columns at the end.
    """
    rows: list[dict[str, Any]] = []
    for _, cell in decode.groupby([*CELL, *by], sort=True):
        arms = arms_of(cell)
        (baseline,) = (arm for arm in arms if arm.method == "ar")
        floor = noise_floor(cell)
        of_cell = {column: cell[column].iloc[0] for column in CELL} | {"noise_low": floor.low, "noise_high": floor.high}
        added = (further(arm, arms) if further else {} for arm in arms)
        rows += [{**of_cell, **_row(arm, baseline), **more} for arm, more in zip(arms, added, strict=True)]
    known = dict.fromkeys(name for row in rows for name in row if name not in ARM_ROW)
    return pd.DataFrame(rows, columns=[*ARM_ROW, *known])


def decode_note(decode: pd.DataFrame) -> str:
    """The small print of a figure made of arm_rows: device, date, n, and the intervals, with looping prompts inside."""
    return measured_note(decode).replace(", less prompts whose text loops", "")


def paired_ratio(
    name: str, arm: ArmData, baseline: ArmData | None, rate: Callable[[ArmData], Rate]
) -> dict[str, float]:
    """`name` and its interval, paired by prompt: a rate of `arm` over that of `baseline`; nan where none can be had."""
    if baseline is None or status_of_pair(arm, baseline) != OK:
        return with_interval(name, math.nan, NO_INTERVAL.low, NO_INTERVAL.high)
    interval = ratio_interval(rate(arm), rate(baseline))
    return with_interval(name, ratio(rate(arm), rate(baseline)), interval.low, interval.high)


def with_interval(name: str, value: float, low: float, high: float) -> dict[str, float]:
    """Three columns."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def staged_rows(arm: ArmData) -> pd.DataFrame:
    """Generations of which a second run, with inner timers, did the same: only they have stage times."""
    return arm.ok[arm.ok["other_ms"].notna()]


def staged_rate(counts: pd.Series, per: pd.Series) -> Rate:
    """Of staged generations, a row each: they are of one repeat."""
    return Rate(counts.to_numpy(dtype=float)[None], per.to_numpy(dtype=float)[None])


def _row(arm: ArmData, baseline: ArmData) -> dict[str, Any]:
    status = status_of_pair(arm, baseline)
    length, length_interval, round_time, round_interval = math.nan, NO_INTERVAL, math.nan, NO_INTERVAL
    if arm.status == OK:
        length, length_interval = arm.accepted_drafts().value() + 1, rate_interval(arm.accepted_drafts())
        times = Rate(arm.matrix("decode_ms"), arm.matrix("rounds"))
        round_time, round_interval = times.value(), rate_interval(times)
    milliseconds = arm.total("decode_ms")
    return {
        "prompt_tokens": float(arm.rows["prompt_tokens"].mean()),
        "method": arm.method,
        "budget": arm.budget,
        "expansion_width": arm.expansion_width,
        "variant": arm.variant,
        "prompts": arm.prompts,
        "repeats": int(arm.rows["repeat"].nunique()),
        **with_interval("acceptance_length", length, length_interval.low + 1, length_interval.high + 1),
        **with_interval("round_time_ms", round_time, round_interval.low, round_interval.high),
        "tokens_per_second": arm.total("tokens") / milliseconds * MILLISECONDS if milliseconds else math.nan,
        **paired_ratio("speedup", arm, baseline, ArmData.speed),
        "degenerate_prompts": int(arm.ok.loc[arm.ok["degenerate"].astype(bool), "prompt"].nunique()),
        "status": status,
    }
