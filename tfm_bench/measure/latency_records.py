"""Records of the latency benchmark: JSON lines, one per arm and stage of a round, and their table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, model_validator

from tfm_bench.config import LatencySettings, Method
from tfm_bench.errors import UserError
from tfm_bench.latency_config import GdnVerify
from tfm_bench.measure.files import read_json_lines
from tfm_bench.measure.provenance import Provenance

SCHEMA_VERSION = 1
VERSION = 1

Stage = Literal["draft", "tree", "verify", "accept", "commit", "other", "round"]
KEYS = ["method", "budget", "expansion_width", "gdn_verify"]
COLUMNS = [
    *["device", "shapes", "target_layers", "all_layers", "dtype", *KEYS, "verify_width", "stage"],
    *["median_ms", "p20_ms", "p80_ms", "runs", "status", "reason", "context_tokens", "accepted_drafts"],
    *["launch", "gdn_implementation", "weaver_implementation", "threads", "measured_at"],
]


class LatencyRecord(BaseModel):
    """One stage of one arm's rounds. Times exist only where `status` is ok, a reason only where it is not.

    samples_ms: one time per round, of runs with inner timers; of the stage `round` one per generation, its time without
    inner timers over its rounds. launch: whether draft, verification and commit are replayed from CUDA graphs.
    target_layers: of all_layers, how many the target had. accepted_drafts: what every round was made to accept.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    schema_version: int = SCHEMA_VERSION
    method: Method
    budget: int
    expansion_width: int
    gdn_verify: GdnVerify
    verify_width: int
    stage: Stage
    status: Literal["ok", "failed"]
    reason: str | None
    samples_ms: list[float]
    target_layers: int
    all_layers: int
    accepted_drafts: int
    launch: Literal["graphs", "eager"]
    gdn_implementation: str
    weaver_implementation: str
    settings: LatencySettings
    provenance: Provenance

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.status == "ok") != bool(self.samples_ms) or (self.status == "ok") != (self.reason is None):
            raise ValueError(f"status {self.status!r} with {len(self.samples_ms)} times and reason {self.reason!r}")
        return self


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
    p20, median, p80 = np.quantile(record.samples_ms, [0.2, 0.5, 0.8]) if record.samples_ms else [np.nan] * 3
    latency = record.settings.latency
    return {
        **record.model_dump(exclude={"samples_ms", "settings", "provenance", "schema_version"}),
        **{"median_ms": median, "p20_ms": p20, "p80_ms": p80, "runs": len(record.samples_ms)},
        **{"shapes": latency.shapes, "dtype": latency.dtype, "context_tokens": latency.context},
        **record.provenance.model_dump(include={"device", "threads"}),
        "measured_at": record.provenance.measured_at.isoformat(),
    }
