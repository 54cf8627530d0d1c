"""One row per arm of an ablation's cells: what most ablation tables are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from tfm_bench.measure.statistics import rate_interval, ratio, ratio_interval
from tfm_bench.report.arms import MILLISECONDS, NO_INTERVAL, OK, ArmData, arms_of, noise_floor, status_of_pair

VERSION = 1
ARM_ROW = [
    *["stack", "dataset", "temperature", "dtype", "prompt_tokens", "method", "budget", "expansion_width", "variant"],
    *["prompts", "repeats", "acceptance_length", "acceptance_length_low", "acceptance_length_high", "round_time_ms"],
    *["tokens_per_second", "speedup", "speedup_low", "speedup_high", "noise_low", "noise_high"],
    *["degenerate_prompts", "status"],
]
# A cell of an ablation: rows that share these were measured side by side, on the same prompts, against their own `ar`.
CELL = ["stack", "dataset", "temperature", "dtype"]


def arm_rows(decode: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """A row per cell and arm, `ar` included; `by`: further columns of `decode` that tell cells apart.

    Prompts with degenerate text stay in, and are counted: an ablation compares arms on the same text. speedup is that
    over `ar` of the same cell with its 95 % interval (see measure.statistics), noise_low and noise_high the interval of
    `ar` over `ar`. acceptance_length has an interval too. prompt_tokens: mean over the prompts. A row without speedup
    says why in `status`.
    """
    rows: list[dict[str, Any]] = []
    for _, cell in decode.groupby([*CELL, *by], sort=True):
        arms = arms_of(cell)
        (baseline,) = (arm for arm in arms if arm.method == "ar")
        floor = noise_floor(cell)
        of_cell = {column: cell[column].iloc[0] for column in CELL} | {"noise_low": floor.low, "noise_high": floor.high}
        rows += [{**of_cell, **_row(arm, baseline)} for arm in arms]
    return pd.DataFrame(rows, columns=ARM_ROW)


def _row(arm: ArmData, baseline: ArmData) -> dict[str, Any]:
    rounds, status = arm.total("rounds"), status_of_pair(arm, baseline)
    speedup, interval, length, accepted = math.nan, NO_INTERVAL, math.nan, NO_INTERVAL
    if arm.status == OK:
        length, accepted = arm.accepted_drafts().value() + 1, rate_interval(arm.accepted_drafts())
    if status == OK:
        speedup, interval = ratio(arm.speed(), baseline.speed()), ratio_interval(arm.speed(), baseline.speed())
    milliseconds = arm.total("decode_ms")
    return {
        "prompt_tokens": float(arm.rows["prompt_tokens"].mean()),
        "method": arm.method,
        "budget": arm.budget,
        "expansion_width": arm.expansion_width,
        "variant": arm.variant,
        "prompts": arm.prompts,
        "repeats": int(arm.rows["repeat"].nunique()),
        "acceptance_length": length,
        "acceptance_length_low": accepted.low + 1,
        "acceptance_length_high": accepted.high + 1,
        "round_time_ms": milliseconds / rounds if rounds else math.nan,
        "tokens_per_second": arm.total("tokens") / milliseconds * MILLISECONDS if milliseconds else math.nan,
        "speedup": speedup,
        "speedup_low": interval.low,
        "speedup_high": interval.high,
        "degenerate_prompts": int(arm.ok.loc[arm.ok["degenerate"].astype(bool), "prompt"].nunique()),
        "status": status,
    }
