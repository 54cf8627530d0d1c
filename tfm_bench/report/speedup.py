"""results/tables/speedup and headline: what each method costs and gains, against decoding without drafts."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from tfm_bench.errors import UserError
from tfm_bench.measure.statistics import ratio, ratio_interval
from tfm_bench.report.arms import (
    ALL_DATASETS,
    MILLISECONDS,
    NO_INTERVAL,
    OK,
    ArmData,
    arms_of,
    degenerate_prompts,
    groups_of,
    noise_floor,
    not_degenerate,
    selections_of,
    status_of_pair,
)

VERSION = 3
COLUMNS = [
    *["stack", "dataset", "temperature", "method", "budget", "expansion_width", "verify_width"],
    *["prompts", "lossless_prompts", "tokens", "rounds", "acceptance_length", "accepted_drafts"],
    *["round_time_ms", "tokens_per_second", "speedup", "speedup_low", "speedup_high", "noise_low", "noise_high"],
    *["degenerate_prompts", "acceptance_ratio", "round_time_ratio", "status"],
]
FACTOR_INTERVALS = [f"{factor}_ratio_{end}" for factor in ("acceptance", "round_time") for end in ("low", "high")]
HEADLINE_COLUMNS = [*COLUMNS, *FACTOR_INTERVALS, "baseline", "prompt_selection", "chosen_on"]
RATIOS = {"speedup": ArmData.speed, "acceptance_ratio": ArmData.acceptance, "round_time_ratio": ArmData.round_speed}
BASELINES = {"tfm": ("ddtree", "dflash_chain")}


def table_speedup(decode: pd.DataFrame) -> pd.DataFrame:
    """Every arm on every dataset and temperature of the test split, with its speedup over `ar`.

    tokens and rounds are sums over prompts and repeats. speedup = acceptance_ratio x round_time_ratio: tokens per round
    over those of `ar`, times the round time of `ar` over that of the arm. noise_low and noise_high are the A/A interval
    of the dataset and temperature. A row without speedup says why in `status`.
    """
    rows: list[dict[str, Any]] = []
    for temperature, dataset, group in groups_of(_split(decode, "test"), pooled=False):
        arms, extra = arms_of(group), _of_group(group)
        baseline = _only(arms, "ar")
        rows += [{**_row(arm, baseline, dataset, temperature), **extra} for arm in arms]
    return _table(rows, COLUMNS)


def table_headline(decode: pd.DataFrame) -> pd.DataFrame:
    """Each method at the budget that was fastest on dev, measured on test; then tfm against the other drafters.

    Looping prompts of dev choose no budget where there are others. A dataset without a dev split takes the budgets
    that were fastest on all dev prompts together. Rows of dataset "all" pool the datasets. Where some text of a group
    is degenerate (a loop), its rows come twice: over all prompts, and without the flagged ones.
    """
    rows: list[dict[str, Any]] = []
    dev_groups = {(t, dataset): dev for t, dataset, dev in groups_of(_split(decode, "dev"), pooled=True)}
    if not dev_groups:
        raise UserError("datasets: none has a dev split to choose budgets on; add one of the stack's own")
    for temperature, dataset, group in groups_of(_split(decode, "test"), pooled=True):
        dev = dev_groups.get((temperature, dataset), dev_groups[temperature, ALL_DATASETS])
        chosen = _fastest(arms_of(_readable(dev), dev))
        for selection, selected in selections_of(group):
            rows += _headline_rows(selected, group, chosen, dataset, temperature, selection)
    return _table(rows, HEADLINE_COLUMNS)


def _readable(group: pd.DataFrame) -> pd.DataFrame:
    """Without looping prompts, which flatter wide trees; where there are no others, the group itself."""
    clean = not_degenerate(group)
    return clean if len(clean) else group


def _headline_rows(
    selected: pd.DataFrame,
    group: pd.DataFrame,
    chosen: dict[str, tuple[int, int]],
    dataset: str,
    temperature: float,
    selection: str,
) -> list[dict[str, Any]]:
    listed = arms_of(selected, group)
    arms = {arm.method: arm for arm in listed if chosen[arm.method] == (arm.budget, arm.expansion_width)}
    extra = {**_of_group(selected), "prompt_selection": selection, "chosen_on": "dev"}
    pairs = [(method, "ar") for method in arms]
    pairs += [(method, baseline) for method in arms for baseline in BASELINES.get(method, ()) if baseline in arms]
    return [
        {**_row(arms[method], arms[baseline], dataset, temperature), "baseline": baseline, **extra}
        for method, baseline in pairs
    ]


def _fastest(arms: list[ArmData]) -> dict[str, tuple[int, int]]:
    """Per method the (budget, expansion width) with most tokens per second among those that may claim a speed."""
    ranked = sorted(arms, key=lambda arm: (arm.status == OK, _speed(arm)))
    return {arm.method: (arm.budget, arm.expansion_width) for arm in ranked}


def _table(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """Served text at T > 0 is not judged: whole numbers stay whole beside that gap."""
    return pd.DataFrame(rows, columns=columns).astype({"lossless_prompts": "Int64"})


def _of_group(group: pd.DataFrame) -> dict[str, Any]:
    noise = noise_floor(group)
    return {"noise_low": noise.low, "noise_high": noise.high, "degenerate_prompts": degenerate_prompts(group)}


def _row(arm: ArmData, baseline: ArmData, dataset: str, temperature: float) -> dict[str, Any]:
    rounds, accepted = arm.total("rounds"), arm.mean_accepted_drafts
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
        "tokens": arm.total("tokens"),
        "rounds": rounds,
        "acceptance_length": accepted + 1,
        "accepted_drafts": accepted,
        "round_time_ms": arm.total("decode_ms") / rounds if rounds else math.nan,
        "tokens_per_second": _speed(arm),
        **_comparison(arm, baseline),
    }


def _comparison(arm: ArmData, baseline: ArmData) -> dict[str, Any]:
    """speedup and its two factors with their intervals; all are empty unless the status is "ok"."""
    status = status_of_pair(arm, baseline)
    compared: dict[str, Any] = {"status": status}
    for name, rate in RATIOS.items():
        point, interval = math.nan, NO_INTERVAL
        if status == OK:
            point, interval = ratio(rate(arm), rate(baseline)), ratio_interval(rate(arm), rate(baseline))
        compared |= {name: point, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return compared


def _speed(arm: ArmData) -> float:
    milliseconds = arm.total("decode_ms")
    return arm.total("tokens") / milliseconds * MILLISECONDS if milliseconds else math.nan


def _split(decode: pd.DataFrame, split: str) -> pd.DataFrame:
    return decode[decode["split"] == split]


def _only(arms: list[ArmData], method: str) -> ArmData:
    (arm,) = (arm for arm in arms if arm.method == method)
    return arm
