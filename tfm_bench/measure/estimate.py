"""What a run would cost: time, peak memory and disk of the processes that measure, from finished ones or from a pilot.

A cell takes a start (imports, loading, warm-up) and a time per arm and prompt. Both come from cells of the same stack:
what their runs took by themselves, and what is left of the time that Snakemake's benchmark file gives for the process.
The kernel benchmark is scaled by its number of problems. Tables and figures, seconds each, are not counted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tfm_bench.config import CellSettings, Config, KernelSettings, cell_settings, kernel_settings, tree_settings
from tfm_bench.measure.cost_samples import Sample, cell_work, stored_cells, stored_kernels
from tfm_bench.measure.files import BYTES_PER_MEGABYTE

CELL = re.compile(r"results/raw/(dev|test)\.([a-z0-9_-]+)\.t(\d{3,4})\.r(\d+)\.jsonl")
KERNELS, TREES = "results/raw/kernels.jsonl", "results/raw/recorded_trees.jsonl"
SECONDS = 60  # per minute


@dataclass(frozen=True)
class Cost:
    """What is to be expected of `jobs` processes, and what says so."""

    name: str
    jobs: int
    seconds: float
    megabytes: float
    bytes: float
    source: str


class Pilots(Protocol):
    """Short runs for what was never measured."""

    def cell(self, settings: CellSettings) -> Sample: ...

    def kernels(self, settings: KernelSettings) -> Sample: ...


def planned_files(summary: str) -> list[str]:
    """Raw files that a run would make, from the table that `snakemake --summary` prints."""
    rows = csv.DictReader(summary.splitlines(), delimiter="\t")
    pending = [row["output_file"] for row in rows if row["plan"] != "no update"]
    return [file for file in pending if CELL.fullmatch(file) or file in (KERNELS, TREES)]


def estimate(config: Config, files: Sequence[str], stored: Path, pilots: Pilots) -> list[str]:
    """A line per kind of process and one for their sum. stored: the folder whose results/ and logs/ are looked at."""
    costs = [*_decode_costs(config, files, stored, pilots), *_kernel_costs(config, files, stored, pilots)]
    return [*map(_line, costs), _line(_sum(costs))]


def _decode_costs(config: Config, files: Sequence[str], stored: Path, pilots: Pilots) -> list[Cost]:
    cells = [_settings(config, found) for file in files if (found := CELL.fullmatch(file))]
    trees = [_tree_work(config)] if TREES in files else []
    if not cells and not trees:
        return []
    samples = stored_cells(stored, config.stack)
    source = f"stored cells of this stack: {len(samples)}"
    if not samples:
        shortest = min(cells or [_tree_cell(config)], key=cell_work)
        samples, source = [pilots.cell(shortest)], "a pilot of two prompts: a rough guess"
    costs = [_cost("decode cells", [cell_work(cell) for cell in cells], samples, source)]
    return [*costs, _cost("recorded trees", trees, samples, source)] if trees else costs


def _kernel_costs(config: Config, files: Sequence[str], stored: Path, pilots: Pilots) -> list[Cost]:
    if KERNELS not in files:
        return []
    settings = kernel_settings(config)
    samples, source = stored_kernels(stored), "a stored benchmark"
    if not samples:
        samples, source = [pilots.kernels(settings)], "a pilot of its smallest chains: a rough guess"
    return [_cost("kernel benchmark", [len(settings.kernels.cases())], samples, source)]


def _settings(config: Config, found: re.Match[str]) -> CellSettings:
    split, dataset, temperature, repeat = found.groups()
    place = {"temperature_hundredths": int(temperature), "repeat": int(repeat)}
    return cell_settings(config, split="dev" if split == "dev" else "test", dataset=dataset, **place)


def _tree_cell(config: Config) -> CellSettings:
    """A cell like the rounds that recorded trees come from."""
    return cell_settings(
        config, split="dev", dataset=config.kernels.recorded.datasets[0], temperature_hundredths=100, repeat=0
    )


def _tree_work(config: Config) -> float:
    """Tokens that are generated for recorded trees."""
    settings = tree_settings(config)
    prompts = settings.recorded.prompts * len(settings.recorded.datasets)
    return len(settings.kinds) * len(settings.nodes) * prompts * settings.recorded.max_new_tokens


def _cost(name: str, jobs: Sequence[float], samples: Sequence[Sample], source: str) -> Cost:
    """jobs: the work of each process."""
    done = sum(sample.work for sample in samples)
    start = sum(sample.start_s for sample in samples) / len(samples)
    return Cost(
        name=name,
        jobs=len(jobs),
        seconds=len(jobs) * start + sum(jobs) * sum(sample.work_s for sample in samples) / done,
        megabytes=max(sample.megabytes for sample in samples),
        bytes=sum(jobs) * sum(sample.bytes for sample in samples) / done,
        source=source,
    )


def _sum(costs: Sequence[Cost]) -> Cost:
    """One after the other."""
    return Cost(
        name="all",
        jobs=sum(cost.jobs for cost in costs),
        seconds=sum(cost.seconds for cost in costs),
        megabytes=max((cost.megabytes for cost in costs), default=0.0),
        bytes=sum(cost.bytes for cost in costs),
        source="the lines above" if costs else "nothing is to be measured",
    )


def _line(cost: Cost) -> str:
    return (
        f"{cost.name:<17}{cost.jobs:>4} jobs {cost.seconds / SECONDS:>8.1f} min {cost.megabytes:>8.0f} MB memory "
        f"{cost.bytes / BYTES_PER_MEGABYTE:>8.1f} MB disk  (from {cost.source})"
    )
