"""The small run of any stack: config/smoke.yaml over the configuration, on prompts and kernels that the stack has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfm_bench.backends.settings import ServerConfig
from tfm_bench.config import (
    Config,
)
from tfm_bench.stack_files import (
    splits_of,
)

NODES = [16, 64]  # of the kernel problems, anchor included


def smoke_mapping(config: Config | ServerConfig, run: Mapping[str, Any], smoke: Mapping[str, Any]) -> dict[str, Any]:
    """`run`, from which `config` was loaded, with the values of `smoke`.

    The data set of smoke.yaml ships with the embedded stack. Another stack decodes its own first one that has a dev
    split, measures kernels of its own shapes, and of the ablations those that it runs at full length too.
    """
    if isinstance(config, ServerConfig):
        own = {key: value for key, value in smoke.items() if key in ServerConfig.model_fields}
        return {**run, **own, "datasets": [_dataset(config)]}
    if config.stack.wording is None:
        return {**run, **smoke}
    return {**run, **smoke, **_sections(config, smoke)}


def _dataset(config: Config | ServerConfig) -> str:
    """The first that can choose budgets; without any, what needs one says so."""
    known = (name for name in config.datasets if "dev" in splits_of(config.stack, name))
    return next(known, config.datasets[0])


def _sections(config: Config, smoke: Mapping[str, Any]) -> dict[str, Any]:
    dataset, first = _dataset(config), config.kernels.grids[0]
    grid = {"shapes": first.shapes[:1], "trees": first.trees[:1], "nodes": NODES, "batches": [1]}
    own = {"recorded": {**smoke["kernels"]["recorded"], "datasets": [dataset]}, "dtype": config.kernels.dtype}
    ablations = smoke["ablations"]
    run = [name for name in ablations["run"] if name in config.ablations.run]
    ceiling = {**ablations["ceiling"], "datasets": [dataset]}
    return {
        "datasets": [dataset],
        "kernels": {**smoke["kernels"], **own, "grids": [grid]},
        "ablations": {**ablations, "run": run, "dataset": dataset, "ceiling": ceiling},
    }
