"""results/tables/latency_27b: where the time of a round goes at real shapes, and the speedup that this projects to."""

from __future__ import annotations

import pandas as pd

from tfm_bench.config import STAGES
from tfm_bench.measure.latency_records import KEYS
from tfm_bench.report.arms import OK

VERSION = 2
PARTS = (*STAGES, "other")
ARM = ["method", "budget", "expansion_width"]
COLUMNS = [
    *[*KEYS, "target_layers", "all_layers", "status", *(f"{part}_ms" for part in PARTS), "round_time_ms"],
    *["acceptance_from", "temperature", "acceptance_length", "speedup", "projected"],
]


def table_latency(latency: pd.DataFrame, decode: pd.DataFrame) -> pd.DataFrame:
    """Medians per round by stage, an arm per line; round_time_ms is without inner timers.

    projected: whether the line has a speedup: acceptance that another run recorded (its stack in acceptance_from,
    pooled over the datasets of its test split) times the round of plain decoding over that of the arm. A line per
    temperature of that run, and one without for arms that it did not have. A target that lacks layers projects to
    nothing: its drafter is whole.
    """
    stages = latency.pivot(index=KEYS, columns="stage", values="median_ms")
    rounds = stages.rename(columns={stage: f"{stage}_ms" for stage in PARTS} | {"round": "round_time_ms"})
    arms = latency.drop_duplicates(KEYS)[[*KEYS, "target_layers", "all_layers", "status"]]
    rows = arms.merge(rounds.reset_index(), on=KEYS, how="left")
    rows = rows.merge(recorded_acceptance(decode), on=ARM, how="left")
    plain = rows.loc[rows["method"] == "ar", "round_time_ms"].iloc[0]
    whole = rows["target_layers"] == rows["all_layers"]
    rows["speedup"] = (rows["acceptance_length"] * plain / rows["round_time_ms"]).where(whole)
    rows["projected"] = rows["speedup"].notna()
    return rows[COLUMNS]


def recorded_acceptance(decode: pd.DataFrame) -> pd.DataFrame:
    """Tokens per round of every arm and temperature of decode.csv, all datasets of the test split together."""
    kept = decode[(decode["split"] == "test") & (decode["status"] == OK) & ~decode["control"]]
    sums = kept.groupby(["stack", "temperature", *ARM], sort=False)[["tokens", "rounds"]].sum().reset_index()
    sums["acceptance_length"] = sums["tokens"] / sums["rounds"]
    return sums.rename(columns={"stack": "acceptance_from"}).drop(columns=["tokens", "rounds"])
