"""Records of the kernel benchmark: JSON lines as measured, one per (problem, arm, phase, commit), and their table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, model_validator

from tfm_bench.config import KernelSettings
from tfm_bench.errors import UserError
from tfm_bench.kernel_config import ImplementationName, Shapes, TreeKind
from tfm_bench.measure.files import read_json_lines
from tfm_bench.measure.provenance import Provenance

SCHEMA_VERSION = 1
VERSION = 1

Phase = Literal["verify", "commit_replay", "commit_fold", "commit_select", "total"]
Commit = Literal["replay", "fold", "select"]
Status = Literal["ok", "failed", "skipped", "unsupported"]

COLUMNS = [
    *["device", "implementation", "shapes", "tree", "nodes", "batch", "arm", "phase", "median_ms", "p20_ms", "p80_ms"],
    *["state_bytes", "relative_error", "roofline_ms", "status", "reason", "commit", "cache", "runs", "threads"],
    *["dtype", "measured_at"],
]
ARM_KEYS = ["implementation", "shapes", "tree", "nodes", "batch", "arm", "cache"]


class Floor(BaseModel):
    """What the counted work needs at the device's measured limits."""

    model_config = ConfigDict(allow_inf_nan=False)

    bytes: int
    flops: int
    bytes_per_second: float
    cached_bytes_per_second: float
    flops_per_second: float
    milliseconds: float


class KernelRecord(BaseModel):
    """One arm in one phase on one problem. Times exist only where `status` is ok, a reason only where it is not.

    samples_ms: one time per run, in the order of the runs. relative_error: RMS against the fp64 definition; of outputs
    (verify), of the committed state (commit_*), the larger of the two (total). state_bytes: what the layer keeps from
    verification to its commit. layers: states that rotate. cache: whether the committed state is read cold or warm.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    schema_version: int = SCHEMA_VERSION
    implementation: ImplementationName
    shapes: Shapes
    tree: TreeKind
    nodes: int
    batch: int
    arm: str
    phase: Phase
    commit: Commit | None
    cache: Literal["cold", "warm"]
    status: Status
    reason: str | None
    samples_ms: list[float]
    state_bytes: int | None
    relative_error: float | None
    floor: Floor | None
    depth: int
    path_nodes: int
    layers: int
    allocator: Literal["keep", "system"]
    settings: KernelSettings
    provenance: Provenance

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.status == "ok") != bool(self.samples_ms) or (self.status == "ok") != (self.reason is None):
            raise ValueError(f"status {self.status!r} with {len(self.samples_ms)} times and reason {self.reason!r}")
        return self


def read_kernel_records(path: Path) -> list[KernelRecord]:
    """Raises UserError naming file and line of what is not a record."""
    return read_json_lines(path, KernelRecord, "a record")


def kernel_table(records: list[KernelRecord]) -> pd.DataFrame:
    """results/gdn_verify.csv: medians with p20 and p80 in milliseconds, in the order of the records.

    Of an arm with several commits, `total` is that with the commit whose own phase has the lower median: chosen by
    another measurement than the one that is shown.
    """
    if not records:
        raise UserError("results: no kernel record found; delete the raw file and rerun")
    frame = pd.DataFrame([_row(record) for record in records])
    return frame[~_is_slower_total(frame)].reset_index(drop=True)[COLUMNS]


def read_kernel_table(path: Path) -> pd.DataFrame:
    """results/gdn_verify.csv with its types; empty cells are missing values."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def _row(record: KernelRecord) -> dict[str, Any]:
    p20, median, p80 = np.quantile(record.samples_ms, [0.2, 0.5, 0.8]) if record.samples_ms else [np.nan] * 3
    shown = {
        "implementation",
        "shapes",
        "tree",
        "nodes",
        "batch",
        "arm",
        "phase",
        "commit",
        "cache",
        "status",
        "reason",
    }
    return {
        **record.model_dump(include=shown | {"state_bytes", "relative_error"}),
        **{"median_ms": median, "p20_ms": p20, "p80_ms": p80, "runs": len(record.samples_ms)},
        "roofline_ms": record.floor.milliseconds if record.floor else np.nan,
        "dtype": record.settings.kernels.dtype,
        **record.provenance.model_dump(include={"device", "threads"}),
        "measured_at": record.provenance.measured_at.isoformat(),
    }


def _is_slower_total(frame: pd.DataFrame) -> pd.Series:
    """Marks the totals of an arm but the one whose commit is fastest (the first, where none has a time)."""
    commits = frame[frame["phase"].str.startswith("commit_")]
    own = commits.set_index([*ARM_KEYS, "commit"])["median_ms"]
    totals = frame[frame["phase"] == "total"]
    speed = pd.Series(own.loc[list(totals[[*ARM_KEYS, "commit"]].itertuples(index=False, name=None))].to_numpy())
    ranked = totals.assign(commit_ms=speed.to_numpy()).sort_values("commit_ms", kind="stable")
    kept = ranked.drop_duplicates(ARM_KEYS).index
    return (frame["phase"] == "total") & ~frame.index.isin(kept)
