"""What a run lacks, asked before its first job: what takes days or 60 GB must not end for want of a commit."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tfm_bench.backends.detection import require_installation
from tfm_bench.backends.settings import ServerConfig
from tfm_bench.config import Config
from tfm_bench.errors import UserError
from tfm_bench.models.device import choose_device
from tfm_bench.prompts.pins import Pins
from tfm_bench.prompts.prepare import require_source


def preflight(config: Config | ServerConfig, pins: Pins, rules: Collection[str], datasets: Collection[str]) -> None:
    """rules: names of all that will run; datasets: what it prepares. Raises UserError with all that is missing."""
    problems = list(_problems(config, pins, rules, datasets))
    if problems:
        raise UserError("\n".join(["this run cannot be finished; nothing was started:", *problems]))


def _problems(
    config: Config | ServerConfig, pins: Pins, rules: Collection[str], datasets: Collection[str]
) -> Iterator[str]:
    lacking = []
    for dataset in datasets:
        try:
            require_source(dataset, pins)
        except UserError as error:
            lacking.append(dataset)
            yield f"  {error}"
    kept = [name for name in config.datasets if name not in lacking]
    if lacking and kept:
        yield f"  or leave them out: --config 'datasets=[{','.join(kept)}]'"
    try:
        if isinstance(config, ServerConfig):
            if "server_cell" in rules:
                require_installation(config.sglang)
        elif "decode_cell" in rules:
            choose_device(config.stack.device)
    except UserError as error:
        yield f"  {error}"
