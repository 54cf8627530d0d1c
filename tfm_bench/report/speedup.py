"""results/tables/speedup and headline: what each method costs and gains, against decoding without drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tfm_bench.errors import UserError
from tfm_bench.measure.statistics import ratio, ratio_interval
from tfm_bench.report.arms import ALL_DATASETS, ArmData, arms_of, degenerate_prompts, groups_of, selections_of

VERSION = 1
COLUMNS = [
    *["stack", "dataset", "temperature", "method", "budget", "expansion_width", "verify_width"],
    *["prompts", "lossless_prompts", "tokens", "rounds", "acceptance_length", "accepted_drafts"],
    *["round_time_ms", "tokens_per_second", "speedup", "speedup_low", "speedup_high"],
]
HEADLINE_COLUMNS = [*COLUMNS, "baseline", "degenerate_prompts", "prompt_selection", "chosen_on"]
BASELINES = {"tfm": ("ddtree", "dflash_chain")}


def table_speedup(decode: pd.DataFrame) -> pd.DataFrame:
    """Every arm on every dataset and temperature of the test split, with its speedup over `ar`.

    tokens and rounds are sums over prompts and repeats. A row whose text is not lossless in fp32 has no speedup.
    """
    rows: list[dict[str, Any]] = []
    for temperature, dataset, group in groups_of(_split(decode, "test"), pooled=False):
        arms = arms_of(group)
        baseline = _only(arms, "ar")
        rows += [_row(arm, baseline, dataset, temperature) for arm in arms]
    return pd.DataFrame(rows, columns=COLUMNS)


def table_headline(decode: pd.DataFrame) -> pd.DataFrame:
    """Each method at the budget that was fastest on dev, measured on test; then tfm against the other drafters.

    A dataset without a dev split takes the budgets that were fastest on all dev prompts together. Rows of dataset
    "all" pool the datasets. Where some text of a group is degenerate (a loop), its rows come twice: over all prompts,
    and without the flagged ones.
    """
    rows: list[dict[str, Any]] = []
    dev_groups = {(t, dataset): dev for t, dataset, dev in groups_of(_split(decode, "dev"), pooled=True)}
    if not dev_groups:
        raise UserError("datasets: none has a dev split to choose budgets on; add one of the stack's own")
    for temperature, dataset, group in groups_of(_split(decode, "test"), pooled=True):
        dev = dev_groups.get((temperature, dataset), dev_groups[temperature, ALL_DATASETS])
        chosen = _fastest(arms_of(dev))
        for selection, selected in selections_of(group):
            rows += _headline_rows(selected, chosen, dataset, temperature, selection)
    return pd.DataFrame(rows, columns=HEADLINE_COLUMNS)


def _headline_rows(
    group: pd.DataFrame, chosen: dict[str, tuple[int, int]], dataset: str, temperature: float, selection: str
) -> list[dict[str, Any]]:
    arms = {arm.method: arm for arm in arms_of(group) if chosen[arm.method] == (arm.budget, arm.expansion_width)}
    extra = {"degenerate_prompts": degenerate_prompts(group), "prompt_selection": selection, "chosen_on": "dev"}
    pairs = [(method, "ar") for method in arms]
    pairs += [(method, baseline) for method in arms for baseline in BASELINES.get(method, ()) if baseline in arms]
    return [
        {**_row(arms[method], arms[baseline], dataset, temperature), "baseline": baseline, **extra}
        for method, baseline in pairs
    ]


def _fastest(arms: list[ArmData]) -> dict[str, tuple[int, int]]:
    """Per method the (budget, expansion width) with most tokens per second, lossless ones first."""
    ranked = sorted(arms, key=lambda arm: (arm.may_claim_speed, arm.speed().value()))
    return {arm.method: (arm.budget, arm.expansion_width) for arm in ranked}


def _row(arm: ArmData, baseline: ArmData, dataset: str, temperature: float) -> dict[str, Any]:
    rounds, milliseconds = arm.rows["rounds"].sum(), arm.rows["decode_ms"].sum()
    accepted = arm.accepted_drafts().value()
    return {
        "stack": arm.rows["stack"].iloc[0],
        "dataset": dataset,
        "temperature": temperature,
        "method": arm.method,
        "budget": arm.budget,
        "expansion_width": arm.expansion_width,
        "verify_width": arm.verify_width,
        "prompts": arm.prompts,
        "lossless_prompts": arm.lossless_prompts,
        "tokens": arm.rows["tokens"].sum(),
        "rounds": rounds,
        "acceptance_length": accepted + 1,
        "accepted_drafts": accepted,
        "round_time_ms": milliseconds / rounds if rounds else np.nan,
        "tokens_per_second": arm.speed().value(),
        **_speedup(arm, baseline),
    }


def _speedup(arm: ArmData, baseline: ArmData) -> dict[str, float]:
    if not (arm.may_claim_speed and baseline.may_claim_speed):
        return dict.fromkeys(["speedup", "speedup_low", "speedup_high"], np.nan)
    interval = ratio_interval(arm.speed(), baseline.speed())
    point = ratio(arm.speed(), baseline.speed())
    return {"speedup": point, "speedup_low": interval.low, "speedup_high": interval.high}


def _split(decode: pd.DataFrame, split: str) -> pd.DataFrame:
    return decode[decode["split"] == split]


def _only(arms: list[ArmData], method: str) -> ArmData:
    (arm,) = (arm for arm in arms if arm.method == method)
    return arm
