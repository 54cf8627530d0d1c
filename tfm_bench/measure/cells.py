"""A cell: one process that decodes the same prompts with every arm that is compared, and writes what it saw."""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tfm_bench.config import STACK_PARTS, TREE_METHODS, ArmSettings, CellSettings, StackConfig, expansion_width
from tfm_bench.engine import Arm, Stack
from tfm_bench.errors import UserError
from tfm_bench.measure.cell_runs import AR, Cell, measure_prompt, runs_of, warm_up
from tfm_bench.measure.device_lock import device_lock
from tfm_bench.measure.files import require_disk, write_text
from tfm_bench.measure.foreign_load import WARN_CORES
from tfm_bench.measure.gpu_state import read_gpu
from tfm_bench.measure.partial import PartialFile, PromptResult, hash_of, sources_sha256
from tfm_bench.measure.progress import with_progress
from tfm_bench.measure.provenance import CellProvenance, arithmetic, now, origin_of
from tfm_bench.measure.rounds import rounds_path
from tfm_bench.measure.versions import family_version
from tfm_bench.models.capacity import CAPACITY, Capacity
from tfm_bench.models.checkpoints import file_sha256
from tfm_bench.models.device import choose_device
from tfm_bench.models.weaver_control import CONTROLS_FOLDER
from tfm_bench.part_source import recorded_sha256
from tfm_bench.prompts.datasets import Prompt, load_prompts, prompt_set_hash
from tfm_bench.variants import variant_of

VERSION = 5
FAMILIES = ("measure.cells", "measure.records")
DISK_MEGABYTES = 50
LENGTHENING_PROMPTS = 64
PROMPT_TOKENS = 4096
WEIGHT_SUFFIXES = (".safetensors", ".pth")
ATTENTION_PATH = "grouped_bmm"  # tfm_bench.models.layers.grouped_attention


def decode_cell(settings: CellSettings, output: Path) -> None:
    """Measure one cell: its records, one JSON line each, to `output`, the rounds to rounds_path(output).

    Waits while another process measures on the device. Continues what a killed run of the same settings, code,
    checkpoint and prompts left behind. Raises UserError for bad input.
    """
    ablation_cells({"": settings}, output)


def ablation_cells(points: Mapping[str, CellSettings], output: Path) -> None:
    """Measure cells one after the other in this process, and write their records to one file; see decode_cell.

    points: by name. A killed run of several loses the running prompt of the running cell, as that of one does.
    """
    require_disk(output, DISK_MEGABYTES)
    (device,) = {choose_device(settings.stack.device).type for settings in points.values()}
    with device_lock(device):
        partials = [_measured(settings, _part(output, name)) for name, settings in points.items()]
        # Still locked: a second process for the same output must find either the partial files or all of the output.
        _write(output, [prompt for partial in partials for prompt in partial.prompts])
        for partial in partials:
            partial.remove()


def _part(output: Path, point: str) -> Path:
    """Whose partial file a point has."""
    return output.with_name(f"{output.stem}.{point}{output.suffix}") if point else output


def _measured(settings: CellSettings, output: Path) -> PartialFile:
    """The complete partial file of one cell."""
    torch.set_num_threads(settings.stack.threads)
    started_at, start = now(), time.monotonic()
    stack, prompts = load_stack(settings.stack, _capacity(settings)), _load_prompts(settings)
    arms = cell_arms(settings, stack.block_size)
    cell = Cell(
        settings=settings,
        stacks={variant: variant_of(stack, variant) for variant in dict.fromkeys(arm.variant for arm in arms)},
        runs=runs_of(arms),
        prompts=prompts,
        prompts_sha256=prompt_set_hash(prompts),
        checkpoint_sha256=checkpoint_sha256(Path(settings.stack.path)),
    )
    origin = _origin(cell) | {"started_at": started_at, "load_s": time.monotonic() - start}
    partial = PartialFile(output, _key(cell, origin))
    if len(partial.prompts) < len(cell.measured):
        _measure(cell, origin, partial)
    _say_failures(cell, partial.prompts)
    _say_load(cell, partial.prompts)
    return partial


def _measure(cell: Cell, origin: dict[str, Any], partial: PartialFile) -> None:
    """Warm up, then measure the prompts that `partial` lacks."""
    warmup_s, jit_s = warm_up(cell)
    print(f"{cell.label}: warm after {warmup_s:.1f} s, {jit_s:.1f} s of them in first runs", file=sys.stderr)
    gpu = read_gpu(cell.stack.device)
    measured = {"gpu": gpu, "warmup_s": warmup_s, "jit_s": jit_s, "finished_at": now(), "foreign_load": None}
    provenance = CellProvenance(**origin, **measured)
    done = len(partial.prompts)
    for index, prompt in enumerate(with_progress(cell.measured[done:], cell.label), start=done):
        partial.append(measure_prompt(cell, index, prompt, provenance))


def _say_load(cell: Cell, prompts: list[PromptResult]) -> None:
    """A line for each prompt during which others kept the cores busy, and one where they used the GPU."""
    records, effect = [prompt.records[-1] for prompt in prompts], "its times may be too long"
    for record in records:
        load = record.provenance.foreign_load
        if load is not None and load > WARN_CORES:
            name = f"{cell.label}, prompt {record.prompt} ({record.prompt_id})"
            print(f"{name}: other processes kept {load:.1f} cores busy; {effect}", file=sys.stderr)
    gpu = records[-1].provenance.gpu
    if gpu is not None and max(gpu.before.processes, gpu.after.processes) > 1:
        print(f"{cell.label}: other processes use {gpu.name} too; {effect}", file=sys.stderr)


def _origin(cell: Cell) -> dict[str, Any]:
    """The fields of CellProvenance that are known before anything runs."""
    settings = cell.settings
    return {
        **origin_of(cell.stack.device),
        **arithmetic(),
        "attention_path": ATTENTION_PATH,
        "gdn_path": f"{cell.stack.gdn_implementation}:{settings.stack.gdn_verify or 'none'}",
        "dtype": settings.stack.dtype,
        "seed": settings.seed,
        "family_versions": {family: family_version(family) for family in FAMILIES},
        "config_sha256": hash_of(settings.model_dump()),
    }


def _key(cell: Cell, origin: dict[str, Any]) -> str:
    """Equal for runs whose records may stand in one file: of one device and one state of the code, so none is mixed."""
    names = ("config_sha256", "family_versions", "device", "cpu", "gdn_path", "versions")
    hashes = {
        "checkpoint": cell.checkpoint_sha256,
        "configuration": _configuration_sha256(Path(cell.settings.stack.path)),
        "prompts": cell.prompts_sha256,
        "sources": sources_sha256(),
        "weaver": cell.stack.weaver_implementation,
    }
    return hash_of({name: origin[name] for name in names} | hashes)


def _say_failures(cell: Cell, prompts: list[PromptResult]) -> None:
    """One line for each reason why an arm has no number."""
    records = [record for prompt in prompts for record in prompt.records if record.status != "ok"]
    for (arm, reason), count in Counter((f"{r.method} {r.budget}", r.reason) for r in records).items():
        print(f"{cell.label}: {arm} has no number on {count} of {len(prompts)} prompts ({reason})", file=sys.stderr)


def _write(output: Path, prompts: list[PromptResult]) -> None:
    """The companion first: where `output` stands, all is there."""
    rounds = (line.model_dump_json() for prompt in prompts for line in prompt.rounds)
    write_text(rounds_path(output), "".join(f"{line}\n" for line in rounds))
    records = (line.model_dump_json() for prompt in prompts for line in prompt.records)
    write_text(output, "".join(f"{line}\n" for line in records))


def cell_arms(settings: CellSettings, block_size: int) -> list[Arm]:
    """All arms of a cell, `ar` first. The chain drafts the whole block and, like the trees, every smaller budget."""
    arms, block = [AR], block_size - 1
    if settings.arms:
        return [*arms, *(_explicit(arm, block) for arm in settings.arms)]
    if "dflash_chain" in settings.methods:
        shorter = [budget for budget in settings.budgets if budget < block]
        arms += [Arm("dflash_chain", budget=budget) for budget in [*shorter, block]]
    for method in TREE_METHODS:
        for budget in settings.budgets if method in settings.methods else []:
            width = expansion_width(settings.expansion_width, budget) if method == "tfm" else 0
            arms.append(Arm(method, budget=budget, expansion_width=width))
    return arms


def _explicit(arm: ArmSettings, block: int) -> Arm:
    """An arm of an ablation. The chain ends at the drafter's block."""
    return Arm(**arm.model_dump() | ({"budget": min(arm.budget, block)} if arm.method == "dflash_chain" else {}))


def load_stack(stack: StackConfig, capacity: Capacity | None = None) -> Stack:
    """The configured stack. capacity: what its sequences may grow to; without it, no graphs are replayed.

    So observers may keep what rounds leave: a replay would overwrite it.
    """
    options = stack.model_dump(include={"dtype", "gdn_verify", "commit", "device"})
    graphs, room = stack.graphs and capacity is not None, capacity or CAPACITY
    return Stack.load(Path(stack.path), **options, with_weaver=stack.has_weaver, graphs=graphs, capacity=room)


def _capacity(settings: CellSettings) -> Capacity:
    """What the cell's sequences may grow to; a prompt of its own length is taken to fit into PROMPT_TOKENS."""
    widest = max([*settings.budgets, *(arm.budget for arm in settings.arms)], default=0)
    return Capacity((settings.prompt_tokens or PROMPT_TOKENS) + settings.max_new_tokens, widest + 1)


def _load_prompts(settings: CellSettings) -> list[Prompt]:
    """Those that are measured, and behind them what lengthens them."""
    folder = Path(settings.stack.path) / "prompts"
    if settings.prompts == "all":
        return load_prompts(settings.dataset, settings.split, folder)
    wanted = settings.prompts if settings.prompt_tokens is None else max(settings.prompts, LENGTHENING_PROMPTS)
    prompts = load_prompts(settings.dataset, settings.split, folder, wanted)
    if len(prompts) < settings.prompts:
        name = folder / f"{settings.dataset}.{settings.split}.jsonl"
        raise UserError(f"{name}: found {len(prompts)} prompts; prompts.{settings.split} asks for {settings.prompts}")
    return prompts


def checkpoint_sha256(stack: Path) -> str:
    """One hash over the weight files of target, drafter, Weaver and its controls."""
    return hashlib.sha256("".join(map(_weights_sha256, _weight_files(stack))).encode()).hexdigest()


def _weights_sha256(file: Path) -> str:
    return recorded_sha256(file) or file_sha256(file)


def _parts(stack: Path) -> list[Path]:
    """Those that are there: a stack without a Weaver was loaded as one."""
    return [folder for part in STACK_PARTS if (folder := stack / part).is_dir()]


def _weight_files(stack: Path) -> list[Path]:
    listed = [file for folder in _parts(stack) for file in sorted(folder.iterdir())]
    listed += sorted((stack / CONTROLS_FOLDER).rglob("*"))
    return [file for file in listed if file.suffix in WEIGHT_SUFFIXES]


def _configuration_sha256(stack: Path) -> str:
    """One hash over all other files of the three parts: they too decide on the text, by stop ids or the tokenizer."""
    weights = set(_weight_files(stack))
    files = (file for folder in _parts(stack) for file in folder.rglob("*") if file.is_file())
    return hash_of({str(file.relative_to(stack)): file_sha256(file) for file in files if file not in weights})
