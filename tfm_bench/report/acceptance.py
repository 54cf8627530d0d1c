"""results/tables/acceptance_ratio: accepted drafts of the methods against each other, at one budget."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tfm_bench.measure.statistics import ratio, ratio_interval
from tfm_bench.report.arms import ArmData, arms_of, groups_of

VERSION = 1
BASELINES = {"ddtree": ("dflash_chain",), "tfm": ("dflash_chain", "ddtree")}
COLUMNS = [
    *["stack", "dataset", "temperature", "method", "budget", "expansion_width", "verify_width"],
    *["baseline", "baseline_verify_width", "prompts", "accepted_drafts", "baseline_accepted_drafts"],
    *["accepted_drafts_ratio", "accepted_drafts_ratio_low", "accepted_drafts_ratio_high"],
]


def table_acceptance_ratio(decode: pd.DataFrame) -> pd.DataFrame:
    """Tree methods against the chain and against each other on the test split, per dataset and pooled ("all").

    ddtree stands at the budget of the row; the chain has one width, its block. Intervals are paired by prompt.
    """
    rows: list[dict[str, Any]] = []
    for temperature, dataset, group in groups_of(decode[decode["split"] == "test"], pooled=True):
        arms = arms_of(group)
        for arm in arms:
            rows += [_row(arm, baseline, dataset, temperature) for baseline in _baselines(arm, arms)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _baselines(arm: ArmData, arms: list[ArmData]) -> list[ArmData]:
    wanted = BASELINES.get(arm.method, ())
    return [b for b in arms if b.method in wanted and (b.method == "dflash_chain" or b.budget == arm.budget)]


def _row(arm: ArmData, baseline: ArmData, dataset: str, temperature: float) -> dict[str, Any]:
    accepted, reference = arm.accepted_drafts(), baseline.accepted_drafts()
    interval = ratio_interval(accepted, reference)
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
        "accepted_drafts": accepted.value(),
        "baseline_accepted_drafts": reference.value(),
        "accepted_drafts_ratio": ratio(accepted, reference),
        "accepted_drafts_ratio_low": interval.low,
        "accepted_drafts_ratio_high": interval.high,
    }
