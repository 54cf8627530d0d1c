"""Records of the kernel benchmark: JSON lines as measured, one per (problem, arm, phase, commit), and their table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict

from tfm_bench.config import KernelSettings
from tfm_bench.errors import UserError
from tfm_bench.kernel_config import ImplementationName, Shapes, TreeKind
from tfm_bench.measure.files import read_json_lines
from tfm_bench.measure.provenance import Provenance
from tfm_bench.measure.sampled import Launch, Sampled

SCHEMA_VERSION = 2
VERSION = 2

Phase = Literal["verify", "commit_replay", "commit_fold", "commit_select", "total"]
Commit = Literal["replay", "fold", "select"]

COLUMNS = [
    *["device", "implementation", "shapes", "tree", "nodes", "batch", "arm", "phase", "median_ms", "p20_ms", "p80_ms"],
    *["state_bytes", "relative_error", "roofline_ms", "status", "reason", "commit", "cache", "runs", "threads"],
    *["dtype", "measured_at", "launch"],
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


class KernelRecord(Sampled):
    """One arm in one phase on one problem.

    relative_error: RMS against the fp64 definition; of outputs
    (verify), of the committed state (commit_*), the larger of the two (total). state_bytes: what the layer keeps from
    verification to its commit. layers: states that rotate. cache: whether the committed state is read cold or warm.
    launch: whether a verification is replayed from a CUDA graph; None where nothing was timed.
    """

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
    state_bytes: int | None
    relative_error: float | None
    floor: Floor | None
    depth: int
    path_nodes: int
    layers: int
    allocator: Literal["keep", "system"]
    launch: Launch | None
    settings: KernelSettings
    provenance: Provenance


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
        **record.model_dump(include=shown | {"state_bytes", "relative_error", "launch"}),
        **record.quantiles(),
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
