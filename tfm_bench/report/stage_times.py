"""results/tables/stage_times: where the time of a round goes."""

from __future__ import annotations

import pandas as pd

from tfm_bench.config import STAGES
from tfm_bench.report.arms import ARM_COLUMNS, OK, degenerate_prompts

VERSION = 2
STAGE_COLUMNS = [f"{stage}_ms" for stage in (*STAGES, "other")]
KEYS = ["stack", "temperature", *ARM_COLUMNS, "verify_width"]


def table_stage_times(decode: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per round by stage, all datasets of the test split together, from the staged runs.

    The stages sum to staged_round_ms; round_time_ms is the same generations' without inner timers.
    Prompts with degenerate text are in the means, and counted.
    """
    staged = decode[
        (decode["split"] == "test") & decode["other_ms"].notna() & (decode["status"] == OK) & ~decode["control"]
    ]
    groups = staged.groupby(KEYS, sort=False)
    rounds = groups["rounds"].sum()
    table = groups[STAGE_COLUMNS].sum().div(rounds, axis=0)
    table.insert(0, "rounds", rounds)
    table["staged_round_ms"] = table[STAGE_COLUMNS].sum(axis=1)
    table["round_time_ms"] = groups["decode_ms"].sum() / rounds
    table["degenerate_prompts"] = [degenerate_prompts(rows) for _, rows in groups]
    return table.reset_index().sort_values("temperature", kind="stable", ignore_index=True)
