"""What a run would cost: time, peak memory and disk of the processes that measure.

What decodes takes a time per start (imports, loading, warm-up) and one per token. Both come from finished cells of the
same stack: what their runs took by themselves, and what is left of the time that Snakemake's benchmark file gives for
the process. Without any, the engine decodes a pilot; servers take too long for one. The kernel benchmark is scaled by
its number of problems. Everything else takes what it took the last time, or what it took in the committed run of the
same stack; of the rest nothing is known, and the estimate says so. Tables and figures, seconds each, are not counted.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from tfm_bench.backends.settings import ServerConfig
from tfm_bench.config import CellSettings, Config, KernelSettings, cell_settings, kernel_settings
from tfm_bench.errors import UserError
from tfm_bench.measure.cost_samples import Sample, is_of_stack, stored_cells, stored_kernels
from tfm_bench.measure.cost_work import AnyConfig, Process, Work, cell_work, cells_of, work_of
from tfm_bench.measure.files import BYTES_PER_MEGABYTE, benchmark
from tfm_bench.measure.plan import EXPECTED, expected_costs, ratio

KERNELS = "kernel_cell"
SECONDS = 60  # per minute


@dataclass(frozen=True)
class Cost:
    """What is to be expected of `jobs` processes of one rule, and what says so; None where nothing does."""

    name: str
    jobs: int
    seconds: float | None
    megabytes: float | None
    bytes: float | None
    source: str


class Pilots(Protocol):
    """Short runs for what was never measured."""

    def cell(self, settings: CellSettings) -> Sample: ...

    def kernels(self, settings: KernelSettings) -> Sample: ...


def estimate(config: AnyConfig, processes: Sequence[Process], stored: Path, pilots: Pilots) -> list[str]:
    """A line per rule and source, and one for their sum. stored: the folder whose results/ and logs/ are looked at.

    A pilot that fails leaves what it stood for unknown.
    """
    samples = stored_cells(stored, config.stack) if processes else []
    works = [(process, work_of(config, process)) for process in processes]
    decoding = [(process, work) for process, work in works if work is not None]
    kernels = [process for process, work in works if work is None and process.rule == KERNELS]
    others = [process for process, work in works if work is None and process.rule != KERNELS]
    costs = [
        *(_decode_costs(config, decoding, samples, pilots) if decoding else []),
        *(_kernel_costs(config, kernels, stored, pilots) if kernels else []),
        *_other_costs(config, others, samples, stored),
    ]
    lines = [_sum(list(alike), *kind) for kind, alike in groupby(sorted(costs, key=_kind), key=_kind)]
    return [*map(_line, lines), _line(_total(lines))]


def _kind(cost: Cost) -> tuple[str, str]:
    return cost.name, cost.source


def _decode_costs(
    config: AnyConfig, decoding: Sequence[tuple[Process, Work]], samples: Sequence[Sample], pilots: Pilots
) -> list[Cost]:
    """Of each process its own earlier run says most; without that, all that decoded on this stack do."""
    processes, source = [process for process, _ in decoding], f"stored cells of this stack: {len(samples)}"
    if not samples and isinstance(config, ServerConfig):
        shortest, _ = min(decoding, key=lambda pair: pair[1].amount)
        return _unknown(processes, f"no served cell of this stack is stored; measure one, such as {shortest.output}")
    if not samples:
        assert isinstance(config, Config), "of a stack that is served no pilot is made"
        try:
            samples, source = [pilots.cell(_shortest(config, processes))], "a pilot of two prompts: a rough guess"
        except UserError as error:
            return _unknown(processes, str(error))
    return [
        _scaled(process, work, [one for one in samples if one.process == process.benchmark] or samples, source)
        for process, work in decoding
    ]


def _kernel_costs(config: AnyConfig, kernels: Sequence[Process], stored: Path, pilots: Pilots) -> list[Cost]:
    assert isinstance(config, Config), "a run of servers has no kernel benchmark"
    settings = kernel_settings(config)
    samples, source = stored_kernels(stored), "a stored benchmark"
    if not samples:
        try:
            samples, source = [pilots.kernels(settings)], "a pilot of its smallest chains: a rough guess"
        except UserError as error:
            return _unknown(kernels, str(error))
    return [_scaled(process, Work(len(settings.kernels.cases())), samples, source) for process in kernels]


def _other_costs(
    config: AnyConfig, others: Sequence[Process], samples: Sequence[Sample], stored: Path
) -> Iterator[Cost]:
    """Of processes whose work does not follow from the configuration."""
    expected = expected_costs(stored / EXPECTED) if _committed_stack(stored) == config.stack.name else {}
    # How much slower this machine is, from cells that were decoded on both.
    took = {sample.process: sample.start_s + sample.work_s for sample in samples if sample.process is not None}
    scale = ratio(took, {name: seconds for name, (seconds, _) in expected.items()})
    source = (
        "the committed run, as on its machine"
        if scale is None
        else f"the committed run, times {scale:.2g} as its cells here"
    )
    for process in others:
        output, log = stored / process.output, stored / (process.benchmark or "")
        if log.is_file() and output.is_file() and is_of_stack(output, config.stack):
            size = output.stat().st_size
            yield Cost(process.rule, 1, *benchmark(log), size, "their last runs, whatever their settings were")
        elif process.benchmark in expected:
            seconds, megabytes = expected[process.benchmark]
            yield Cost(process.rule, 1, (scale or 1.0) * seconds, megabytes, None, source)
        else:
            yield from _unknown([process], "no run on this stack is stored")


def _shortest(config: Config, processes: Sequence[Process]) -> CellSettings:
    """What a pilot is a slice of: a cell of the run, best one that compares all arms."""
    cells = {
        rule: [cell for process in processes if process.rule == rule for cell in cells_of(config, process)]
        for rule in ("decode_cell", "ablation_cells")
    }
    cell = min(cells["decode_cell"] or cells["ablation_cells"] or [_tree_cell(config)], key=cell_work)
    assert isinstance(cell, CellSettings), "a configuration of the engine has no others"
    return cell


def _tree_cell(config: Config) -> CellSettings:
    """A cell like the rounds that recorded trees come from."""
    return cell_settings(
        config, split="dev", dataset=config.kernels.recorded.datasets[0], temperature_hundredths=100, repeat=0
    )


def _committed_stack(stored: Path) -> str | None:
    """Name of the stack that the committed run is of."""
    table = (stored / EXPECTED).with_name("decode.csv")
    if not table.is_file():
        return None
    with table.open(encoding="utf-8", newline="") as rows:
        return next(csv.DictReader(rows))["stack"]


def _scaled(process: Process, work: Work, samples: Sequence[Sample], source: str) -> Cost:
    done = sum(sample.work.amount for sample in samples)
    start_s = sum(sample.start_s for sample in samples) / sum(sample.work.starts for sample in samples)
    return Cost(
        name=process.rule,
        jobs=1,
        seconds=work.starts * start_s + work.amount * sum(sample.work_s for sample in samples) / done,
        megabytes=max(sample.megabytes for sample in samples),
        bytes=work.amount * sum(sample.bytes for sample in samples) / done,
        source=source,
    )


def _unknown(processes: Sequence[Process], reason: str) -> list[Cost]:
    return [Cost(process.rule, 1, None, None, None, reason) for process in processes]


def _sum(costs: Sequence[Cost], name: str, source: str) -> Cost:
    """One after the other, as far as anything is known of them."""
    return Cost(
        name=name,
        jobs=sum(cost.jobs for cost in costs),
        seconds=_known(sum, [cost.seconds for cost in costs]),
        megabytes=_known(max, [cost.megabytes for cost in costs]),
        bytes=_known(sum, [cost.bytes for cost in costs]),
        source=source,
    )


def _known(total: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    """Of the values that are known; None where none of them is."""
    known = [value for value in values if value is not None]
    return total([0.0, *known]) if known or not values else None


def _total(lines: Sequence[Cost]) -> Cost:
    unknown = sum(cost.jobs for cost in lines if cost.seconds is None)
    source = "the lines above" if lines else "nothing is to be measured"
    return _sum(lines, "all", f"{source}; left out as unknown: {unknown} jobs" if unknown else source)


def _line(cost: Cost) -> str:
    jobs = f"{cost.name:<17}{cost.jobs:>4} jobs"
    if cost.seconds is None:
        return f"{jobs}  unknown  ({cost.source})"
    disk = None if cost.bytes is None else cost.bytes / BYTES_PER_MEGABYTE
    return (
        f"{jobs} {cost.seconds / SECONDS:>8.1f} min {_number(cost.megabytes, 0)} MB memory {_number(disk, 1)} MB disk  "
        f"(from {cost.source})"
    )


def _number(value: float | None, digits: int) -> str:
    return f"{'unknown':>8}" if value is None else f"{value:>8.{digits}f}"
