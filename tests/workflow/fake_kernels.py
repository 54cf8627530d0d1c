"""Stands in for tfm_bench.measure.kernels: every arm takes a known time, nothing is run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tfm_bench.config import KernelSettings
from tfm_bench.measure.files import write_text
from tfm_bench.measure.kernel_records import Floor, KernelRecord
from tfm_bench.measure.provenance import Provenance

VERSION = 1
ARM_MS = {"fused": 1.0, "node_recurrent": 4.0, "path_recurrent": 6.0}
PHASES = {
    "fused": [("verify", None, 1), ("commit_replay", "replay", 1), ("total", "replay", 2)],
    "node_recurrent": [("verify", None, 1), ("commit_select", "select", 1), ("total", "select", 1.5)],
    "path_recurrent": [("verify", None, 1), ("commit_replay", "replay", 1), ("total", "replay", 1.5)],
}
FLOOR = Floor(
    bytes=1, flops=1, bytes_per_second=1.0, cached_bytes_per_second=1.0, flops_per_second=1.0, milliseconds=0.5
)


def kernel_cell(settings: KernelSettings, trees: Path, output: Path) -> None:
    assert trees.is_file()
    provenance = Provenance(
        commit=None, dirty=None, versions={}, device="Some CPU", cpu="Some CPU", threads=settings.threads,
        measured_at=datetime(2026, 11, 30, tzinfo=UTC),
    )  # fmt: skip
    records = [
        KernelRecord(
            **case._asdict(),
            **{
                "implementation": "torch",
                "arm": arm,
                "phase": phase,
                "commit": commit,
                "cache": "cold",
                "reason": None,
            },
            **{"status": "ok", "samples_ms": [ARM_MS[arm] * factor * case.nodes / 16] * settings.kernels.least_runs},
            **{"state_bytes": case.nodes * 1000, "relative_error": 1e-7, "floor": FLOOR, "depth": 3, "path_nodes": 3},
            **{"layers": 1, "allocator": "keep", "launch": "eager", "settings": settings, "provenance": provenance},
        )
        for case in settings.kernels.cases()
        for arm in ARM_MS
        for phase, commit, factor in PHASES[arm]
    ]
    write_text(output, "".join(record.model_dump_json() + "\n" for record in records))
