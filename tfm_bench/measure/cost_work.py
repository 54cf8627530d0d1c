"""The processes that a run would measure in, and the work of each: tokens to decode, starts of what decodes them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfm_bench.ablations import ablation_points
from tfm_bench.backends.flags import server_arms
from tfm_bench.backends.settings import ServerCellSettings, ServerConfig, server_cell_settings
from tfm_bench.config import CellSettings, Config, cell_settings, tree_settings
from tfm_bench.example_config import example_settings
from tfm_bench.measure.cell_runs import STAGED_PROMPTS
from tfm_bench.prompts.datasets import load_prompts
from tfm_bench.prompts.sources import published_count
from tfm_bench.stack_files import is_prepared

AnyConfig = Config | ServerConfig
AnyCell = CellSettings | ServerCellSettings


@dataclass(frozen=True)
class Process:
    """One that is planned. output: the first file that it makes; benchmark: Snakemake's, None for a rule without."""

    rule: str
    wildcards: Mapping[str, str]
    output: str
    benchmark: str | None


@dataclass(frozen=True)
class Work:
    """amount: tokens that may be generated; of the kernel benchmark, its problems. starts: loadings and warm-ups."""

    amount: float
    starts: int = 1


def planned_processes(summary: str, measuring: Mapping[str, tuple[str, str | None]]) -> list[Process]:
    """Those that a run would make, from the table that `snakemake --summary` prints.

    measuring: rule -> regular expression of its first output, and benchmark file with a {name} per wildcard.
    """
    processes = []
    for row in csv.DictReader(summary.splitlines(), delimiter="\t"):
        output, benchmark = measuring.get(row["rule"], (None, None))
        # What else a process makes, the rounds of a cell, has other names.
        found = output and row["plan"] != "no update" and re.fullmatch(output, row["output_file"])
        if found:
            wildcards = found.groupdict()
            file = benchmark.format(**wildcards) if benchmark else None
            processes.append(Process(row["rule"], wildcards, row["output_file"], file))
    return processes


def cells_of(config: AnyConfig, process: Process) -> list[AnyCell]:
    """The cells that a process decodes; none where its rule decodes none."""
    find = CELLS.get(process.rule)
    return find(config, process.wildcards) if find else []


def work_of(config: AnyConfig, process: Process) -> Work | None:
    """What a process decodes; None where that does not follow from the configuration."""
    if process.rule in GENERATIONS:
        return GENERATIONS[process.rule](config)
    cells = cells_of(config, process)
    return cells_work(cells) if cells else None


def cells_work(cells: Sequence[AnyCell]) -> Work:
    """Of cells that share a process."""
    return Work(sum(map(cell_work, cells)), sum(map(_starts, cells)))


def cell_work(settings: AnyCell) -> float:
    """Tokens that a cell may generate: every arm and the A/A control, and the staged runs. The warm-up is its start.

    Prompts that stop early make fewer, in the sample as in what it stands for. Of the chain all budgets count, also
    those beyond its block, and of servers also the arms that they lack: that cancels against cells of the same arms.
    """
    arms, prompts = _arms(settings), _prompts(settings)
    runs = prompts * (arms + 1) + (min(STAGED_PROMPTS, prompts) * arms if _is_staged(settings) else 0)
    return runs * settings.max_new_tokens


def _arms(settings: AnyCell) -> int:
    """`ar` included."""
    if isinstance(settings, ServerCellSettings):
        return len(server_arms(settings))
    return 1 + (len(settings.arms) or len(settings.budgets) * (len(settings.methods) - 1))


def _starts(settings: AnyCell) -> int:
    """The engine loads its stack once per cell; every run of servers, the A/A control too, is a server of its own."""
    return _arms(settings) + 1 if isinstance(settings, ServerCellSettings) else 1


def _is_staged(settings: AnyCell) -> bool:
    return isinstance(settings, CellSettings) and settings.staged and (settings.split, settings.repeat) == ("test", 0)


def _prompts(settings: AnyCell) -> int:
    """Of the cell; of a data set that is still to be prepared as many as the paper decodes."""
    if settings.prompts != "all":
        return settings.prompts
    file = Path(settings.stack.path) / "prompts" / f"{settings.dataset}.{settings.split}.jsonl"
    if file.is_file() or not is_prepared(settings.stack, settings.dataset):
        return len(load_prompts(settings.dataset, settings.split, file.parent))
    return published_count(settings.dataset)


def _tree_work(config: Config) -> Work:
    """Of recorded trees."""
    settings = tree_settings(config)
    prompts = settings.recorded.prompts * len(settings.recorded.datasets)
    return Work(len(settings.kinds) * len(settings.nodes) * prompts * settings.recorded.max_new_tokens)


def _place(wildcards: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of cell_settings."""
    names = {"split": wildcards["split"], "dataset": wildcards["dataset"]}
    return {**names, "temperature_hundredths": int(wildcards["temperature"]), "repeat": int(wildcards["repeat"])}


# Rules that decode cells, and those that decode without comparing arms.
CELLS: Mapping[str, Callable[[Any, Mapping[str, str]], list[AnyCell]]] = {
    "decode_cell": lambda config, wildcards: [cell_settings(config, **_place(wildcards))],
    "server_cell": lambda config, wildcards: [server_cell_settings(config, **_place(wildcards))],
    "ablation_cells": lambda config, wildcards: [*ablation_points(config, wildcards["ablation"]).values()],
}
GENERATIONS: Mapping[str, Callable[[Any], Work]] = {
    "recorded_trees": _tree_work,
    "example_tree": lambda config: Work(example_settings(config).max_new_tokens),
}
