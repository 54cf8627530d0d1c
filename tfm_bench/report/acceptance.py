"""results/tables/acceptance_ratio: accepted drafts of the methods against each other, at one budget."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from tfm_bench.measure.statistics import ratio, ratio_interval
from tfm_bench.report.arms import (
    NO_INTERVAL,
    OK,
    ArmData,
    arms_of,
    degenerate_prompts,
    groups_of,
    selections_of,
    status_of_pair,
)

VERSION = 4
BASELINES = {"ddtree": ("dflash_chain",), "tfm": ("dflash_chain", "ddtree")}
COLUMNS = [
    *["stack", "dataset", "temperature", "method", "budget", "expansion_width", "verify_width"],
    *["baseline", "baseline_verify_width", "prompts", "accepted_drafts", "baseline_accepted_drafts"],
    *["accepted_drafts_ratio", "accepted_drafts_ratio_low", "accepted_drafts_ratio_high"],
    *["degenerate_prompts", "prompt_selection", "status"],
]


def table_acceptance_ratio(decode: pd.DataFrame) -> pd.DataFrame:
    """Tree methods against the chain and against each other on the test split, per dataset and pooled ("all").

    The baseline has the budget of the row; beyond the drafter's block the chain stays at its block. Intervals are
    paired by prompt. Groups with some degenerate text come twice, with it and without. A row without ratio says why in
    `status`.
    """
    rows: list[dict[str, Any]] = []
    for temperature, dataset, group in groups_of(decode[decode["split"] == "test"], pooled=True):
        for selection, selected in selections_of(group):
            extra = {"degenerate_prompts": degenerate_prompts(selected), "prompt_selection": selection}
            arms = arms_of(selected, group)
            pairs = [(arm, baseline) for arm in arms for baseline in _baselines(arm, arms)]
            rows += [{**_row(arm, baseline, dataset, temperature), **extra} for arm, baseline in pairs]
    return pd.DataFrame(rows, columns=COLUMNS)


def _baselines(arm: ArmData, arms: list[ArmData]) -> list[ArmData]:
    """Of each method that `arm` is compared with, the arm with the largest budget up to its own."""
    narrower = [b for b in arms if b.method in BASELINES.get(arm.method, ()) and b.budget <= arm.budget]
    return list({b.method: b for b in sorted(narrower, key=lambda b: b.budget)}.values())


def _row(arm: ArmData, baseline: ArmData, dataset: str, temperature: float) -> dict[str, Any]:
    status = status_of_pair(arm, baseline)
    point, interval = math.nan, NO_INTERVAL
    if status == OK:
        accepted, reference = arm.accepted_drafts(), baseline.accepted_drafts()
        point, interval = ratio(accepted, reference), ratio_interval(accepted, reference)
    return {
        "stack": arm.rows["stack"].iloc[0],
        "dataset": dataset,
        "temperature": temperature,
        "method": arm.method,
        "budget": arm.budget,
        "expansion_width": arm.expansion_width,
        "verify_width": arm.verify_width,
        "baseline": baseline.method,
        "baseline_verify_width": baseline.verify_width,
        "prompts": arm.prompts,
        "accepted_drafts": arm.mean_accepted_drafts,
        "baseline_accepted_drafts": baseline.mean_accepted_drafts,
        "accepted_drafts_ratio": point,
        "accepted_drafts_ratio_low": interval.low,
        "accepted_drafts_ratio_high": interval.high,
        "status": status,
    }
