"""What finished processes cost: their records, and the time and memory that Snakemake's benchmark file gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from tfm_bench.backends.request_log import requests_path
from tfm_bench.config import CellSettings
from tfm_bench.errors import UserError
from tfm_bench.measure.cost_work import Work, cells_work
from tfm_bench.measure.files import benchmark
from tfm_bench.measure.kernel_records import read_kernel_records
from tfm_bench.measure.records import DecodeRecord, read_records
from tfm_bench.measure.rounds import rounds_path
from tfm_bench.stack_config import PromptedStack

Record = TypeVar("Record")
MILLISECONDS = 1000
# Where processes that decode cells have their benchmark files, and where in the suite's results their records are.
CELL_FOLDERS = {"decode_cell": "raw", "server_cell": "raw", "ablations": "raw/ablations"}


@dataclass(frozen=True)
class Sample:
    """What a finished process cost. start_s: seconds that do not grow with its work; megabytes: peak memory.

    process: its benchmark file, from where Snakemake runs; None for a pilot.
    """

    work: Work
    start_s: float
    work_s: float
    megabytes: float
    bytes: int
    process: str | None = None


def cell_sample(raw: Path, seconds: float, megabytes: float) -> Sample:
    """A finished process of cells: its records, and what it took in all."""
    return _cell_sample(raw, read_records(raw), seconds, megabytes)


def kernel_sample(raw: Path, seconds: float, megabytes: float) -> Sample:
    """A finished kernel benchmark; its work is the number of its problems."""
    cases = len(read_kernel_records(raw)[0].settings.kernels.cases())
    return Sample(Work(cases), 0.0, seconds, megabytes, raw.stat().st_size)


def stored_cells(folder: Path, stack: PromptedStack) -> list[Sample]:
    """Processes of any suite that decoded cells of this stack and have both records and a benchmark file."""
    return [
        _cell_sample(raw, records, *benchmark(log), process=log.relative_to(folder).as_posix())
        for log, raw in _finished(folder)
        if (records := _readable(read_records, raw)) and any(record.settings.stack == stack for record in records)
    ]


def stored_kernels(folder: Path) -> list[Sample]:
    """Kernel benchmarks of any suite that have records and a benchmark file; only the largest one."""
    samples = [
        kernel_sample(raw, *benchmark(log))
        for log in sorted((folder / "logs").glob("**/kernel_cell.tsv"))
        if (raw := _results(folder, log.parent) / "raw/kernels.jsonl").is_file() and _readable(read_kernel_records, raw)
    ]
    return sorted(samples, key=lambda sample: sample.work.amount)[-1:]


def is_of_stack(raw: Path, stack: PromptedStack) -> bool:
    """Whether the first of some process's JSON lines was measured on this stack, or on none."""
    with raw.open(encoding="utf-8") as lines:
        settings = json.loads(lines.readline() or "{}").get("settings", {})
    own = stack.model_dump(mode="json")
    return bool(settings.get("stack", own) == own)


def _cell_sample(
    raw: Path, records: Sequence[DecodeRecord], seconds: float, megabytes: float, process: str | None = None
) -> Sample:
    # Records stand cell by cell: several where an ablation decoded more than one in its process.
    cells = [settings for settings, _ in groupby(record.settings for record in records)]
    companion = rounds_path(raw) if isinstance(cells[0], CellSettings) else requests_path(raw)
    work_s = sum(map(_record_seconds, records))
    return Sample(
        work=cells_work(cells),
        start_s=max(0.0, seconds - work_s),
        work_s=work_s,
        megabytes=megabytes,
        bytes=raw.stat().st_size + companion.stat().st_size,
        process=process,
    )


def _finished(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Benchmark file and records of processes that may have decoded cells."""
    for name, results in CELL_FOLDERS.items():
        for log in sorted((folder / "logs").glob(f"**/{name}/*.tsv")):
            raw = _results(folder, log.parents[1]) / results / f"{log.stem}.jsonl"
            if raw.is_file():
                yield log, raw


def _readable(read: Callable[[Path], list[Record]], raw: Path) -> list[Record]:
    """Its records; none where they are a probe's, or of an older form: a run would replace them."""
    try:
        return read(raw)
    except UserError:
        return []


def _record_seconds(record: DecodeRecord) -> float:
    """Of the timed run, and of the staged one where there is one; a run that failed is not counted."""
    prefill, stages = record.prefill_ms or 0.0, record.stage_ms
    staged = prefill + sum(stages.values()) if stages else 0.0
    return (prefill + (record.decode_ms or 0.0) + staged) / MILLISECONDS


def _results(folder: Path, logs: Path) -> Path:
    """logs/, logs/smoke/ -> results/, results/smoke/"""
    return folder / "results" / logs.relative_to(folder / "logs")
