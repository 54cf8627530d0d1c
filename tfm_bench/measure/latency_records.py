"""Records of the latency benchmark: JSON lines, one per arm and stage of a round, and their table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pandas as pd

from tfm_bench.config import LatencySettings, Method
from tfm_bench.errors import UserError
from tfm_bench.latency_config import GdnVerify
from tfm_bench.measure.files import read_json_lines
from tfm_bench.measure.provenance import Provenance
from tfm_bench.measure.sampled import Launch, Sampled

SCHEMA_VERSION = 1
VERSION = 1

Stage = Literal["draft", "tree", "verify", "accept", "commit", "other", "round"]
KEYS = ["method", "budget", "expansion_width", "gdn_verify"]
COLUMNS = [
    *["device", "shapes", "target_layers", "all_layers", "dtype", *KEYS, "verify_width", "stage"],
    *["median_ms", "p20_ms", "p80_ms", "runs", "status", "reason", "context_tokens", "accepted_drafts"],
    *["launch", "gdn_implementation", "weaver_implementation", "threads", "measured_at"],
]


class LatencyRecord(Sampled):
    """One stage of one arm's rounds.

    samples_ms: one time per round, of runs with inner timers; of the stage `round` one per generation, its time without
    inner timers over its rounds. launch: whether draft, verification and commit are replayed from CUDA graphs.
    target_layers: of all_layers, how many the target had. accepted_drafts: what every round was made to accept.
    """

    schema_version: int = SCHEMA_VERSION
    method: Method
    budget: int
    expansion_width: int
    gdn_verify: GdnVerify
    verify_width: int
    stage: Stage
    target_layers: int
    all_layers: int
    accepted_drafts: int
    launch: Launch
    gdn_implementation: str
    weaver_implementation: str
    settings: LatencySettings
    provenance: Provenance


def read_latency_records(path: Path) -> list[LatencyRecord]:
    """Raises UserError naming file and line of what is not a record."""
    return read_json_lines(path, LatencyRecord, "a record")


def latency_table(records: list[LatencyRecord]) -> pd.DataFrame:
    """results/latency_27b.csv: medians with p20 and p80 in milliseconds, in the order of the records."""
    if not records:
        raise UserError("results: no latency record found; delete the raw file and rerun")
    return pd.DataFrame([_row(record) for record in records])[COLUMNS]


def read_latency_table(path: Path) -> pd.DataFrame:
    """results/latency_27b.csv with its types; empty cells are missing values."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def _row(record: LatencyRecord) -> dict[str, Any]:
    latency = record.settings.latency
    return {
        **record.model_dump(exclude={"samples_ms", "settings", "provenance", "schema_version"}),
        **record.quantiles(),
        **{"shapes": latency.shapes, "dtype": latency.dtype, "context_tokens": latency.context},
        **record.provenance.model_dump(include={"device", "threads"}),
        "measured_at": record.provenance.measured_at.isoformat(),
    }
