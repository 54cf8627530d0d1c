"""What finished processes cost: their records, and the time and memory that Snakemake's benchmark file gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tfm_bench.config import (
    CellSettings,
    StackConfig,
)
from tfm_bench.errors import UserError
from tfm_bench.measure.cell_runs import STAGED_PROMPTS
from tfm_bench.measure.files import benchmark
from tfm_bench.measure.kernel_records import read_kernel_records
from tfm_bench.measure.records import DecodeRecord, read_records
from tfm_bench.measure.rounds import rounds_path
from tfm_bench.prompts.datasets import load_prompts
from tfm_bench.prompts.sources import published_count
from tfm_bench.stack_files import (
    is_prepared,
)

Record = TypeVar("Record")
MILLISECONDS = 1000


@dataclass(frozen=True)
class Sample:
    """What a finished process cost. start_s: seconds that do not grow with its work; megabytes: peak memory."""

    work: float
    start_s: float
    work_s: float
    megabytes: float
    bytes: int


def cell_work(settings: CellSettings) -> float:
    """Tokens that a cell may generate: every arm and the A/A control, and the staged runs. The warm-up is its start.

    Prompts that stop early make fewer, in the sample as in what it stands for. Of the chain all budgets count, also
    those beyond its block: that cancels against cells of the same budgets.
    """
    arms = 1 + len(settings.budgets) * (len(settings.methods) - 1)
    staged = settings.split == "test" and settings.repeat == 0
    prompts = _prompts(settings)
    runs = prompts * (arms + 1) + (min(STAGED_PROMPTS, prompts) * arms if staged else 0)
    return runs * settings.max_new_tokens


def _prompts(settings: CellSettings) -> int:
    """Of the cell; of a data set that is still to be prepared as many as the paper decodes."""
    if settings.prompts != "all":
        return settings.prompts
    file = Path(settings.stack.path) / "prompts" / f"{settings.dataset}.{settings.split}.jsonl"
    if file.is_file() or not is_prepared(settings.stack, settings.dataset):
        return len(load_prompts(settings.dataset, settings.split, file.parent))
    return published_count(settings.dataset)


def cell_sample(raw: Path, seconds: float, megabytes: float) -> Sample:
    """A finished cell: its records, and what its process took in all."""
    records = read_records(raw)
    settings, work_s = records[0].settings, sum(map(_record_seconds, records))
    assert isinstance(settings, CellSettings), "stored_cells and pilots look at cells of the engine alone"
    return Sample(
        work=cell_work(settings),
        start_s=max(0.0, seconds - work_s),
        work_s=work_s,
        megabytes=megabytes,
        bytes=raw.stat().st_size + rounds_path(raw).stat().st_size,
    )


def kernel_sample(raw: Path, seconds: float, megabytes: float) -> Sample:
    """A finished kernel benchmark; its work is the number of its problems."""
    cases = len(read_kernel_records(raw)[0].settings.kernels.cases())
    return Sample(cases, 0.0, seconds, megabytes, raw.stat().st_size)


def stored_cells(folder: Path, stack: StackConfig) -> list[Sample]:
    """Cells of any suite of this stack that have both records and a benchmark file."""
    found = [
        (raw, *benchmark(log))
        for log in sorted((folder / "logs").glob("**/decode_cell/*.tsv"))
        if (raw := _raw(folder, log.parents[1]) / f"{log.stem}.jsonl").is_file()
    ]
    return [
        cell_sample(*cell)
        for cell in found
        if any(record.settings.stack == stack for record in _readable(read_records, cell[0]))
    ]


def stored_kernels(folder: Path) -> list[Sample]:
    """Kernel benchmarks of any suite that have records and a benchmark file; only the largest one."""
    samples = [
        kernel_sample(raw, *benchmark(log))
        for log in sorted((folder / "logs").glob("**/kernel_cell.tsv"))
        if (raw := _raw(folder, log.parent) / "kernels.jsonl").is_file() and _readable(read_kernel_records, raw)
    ]
    return sorted(samples, key=lambda sample: sample.work)[-1:]


def _readable(read: Callable[[Path], list[Record]], raw: Path) -> list[Record]:
    """Its records; none where they are of an older form: a run would replace them, so they foretell nothing."""
    try:
        return read(raw)
    except UserError:
        return []


def _record_seconds(record: DecodeRecord) -> float:
    """Of the timed run, and of the staged one where there is one; a run that failed is not counted."""
    prefill, stages = record.prefill_ms or 0.0, record.stage_ms
    staged = prefill + sum(stages.values()) if stages else 0.0
    return (prefill + (record.decode_ms or 0.0) + staged) / MILLISECONDS


def _raw(folder: Path, logs: Path) -> Path:
    """logs/, logs/smoke/ -> results/raw, results/smoke/raw"""
    return folder / "results" / logs.relative_to(folder / "logs") / "raw"
