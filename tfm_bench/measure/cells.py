"""A cell: one process that decodes the same prompts with every arm that is compared, and writes what it saw."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tfm_bench.config import STACK_PARTS, TREE_METHODS, CellSettings, expansion_width
from tfm_bench.engine import Arm, Generation, Stack, generate
from tfm_bench.errors import UserError
from tfm_bench.measure.files import require_disk, write_text
from tfm_bench.measure.lossless import first_divergence, is_degenerate, tokens_sha256
from tfm_bench.measure.progress import with_progress
from tfm_bench.measure.provenance import Provenance, collect_provenance
from tfm_bench.measure.records import DecodeRecord
from tfm_bench.models.checkpoints import file_sha256
from tfm_bench.prompts.datasets import Prompt, encode_prompt, load_prompts, prompt_set_hash

VERSION = 2
DISK_MEGABYTES = 50
WARMUP_TOKENS = 24
STAGED_PROMPTS = 4  # enough for the share of each stage; every one costs a second pass
WEIGHT_SUFFIXES = (".safetensors", ".pth")

AR = Arm("ar")


@dataclass(frozen=True)
class _Cell:
    """What stays the same from prompt to prompt."""

    settings: CellSettings
    stack: Stack
    arms: list[Arm]
    provenance: Provenance
    prompts_sha256: str
    checkpoint_sha256: str

    @property
    def label(self) -> str:
        settings = self.settings
        return f"{settings.split} {settings.dataset} T={settings.temperature:g} repeat {settings.repeat}"

    @property
    def staged(self) -> bool:
        """Stage times come from the first prompts of one repeat of the reported split."""
        return self.settings.split == "test" and self.settings.repeat == 0


def decode_cell(settings: CellSettings, output: Path) -> None:
    """Measure one cell and write its records, one JSON line each, to `output`. Raises UserError for bad input."""
    require_disk(output, DISK_MEGABYTES)
    torch.set_num_threads(settings.stack.threads)
    stack, prompts = _load_stack(settings), _load_prompts(settings)
    cell = _Cell(
        settings=settings,
        stack=stack,
        arms=cell_arms(settings, stack.block_size),
        provenance=collect_provenance(stack.device),
        prompts_sha256=prompt_set_hash(prompts),
        checkpoint_sha256=checkpoint_sha256(Path(settings.stack.path)),
    )
    _warm_up(cell, prompts[0])
    records = [
        record
        for index, prompt in enumerate(with_progress(prompts, cell.label))
        for record in _measure_prompt(cell, index, prompt)
    ]
    write_text(output, "".join(record.model_dump_json() + "\n" for record in records))


def cell_arms(settings: CellSettings, block_size: int) -> list[Arm]:
    """All arms of a cell, `ar` first. The chain drafts the whole block and, like the trees, every smaller budget."""
    arms, block = [AR], block_size - 1
    if "dflash_chain" in settings.methods:
        shorter = [budget for budget in settings.budgets if budget < block]
        arms += [Arm("dflash_chain", budget=budget) for budget in [*shorter, block]]
    for method in TREE_METHODS:
        for budget in settings.budgets if method in settings.methods else []:
            width = expansion_width(settings.expansion_width, budget) if method == "tfm" else 0
            arms.append(Arm(method, budget=budget, expansion_width=width))
    return arms


def arm_order(arms: Sequence[Arm], prompt: int, repeat: int) -> list[Arm]:
    """Order of the arms at a prompt: rotated every two prompts and every repeat, reversed on odd prompts (ABBA)."""
    shift = (prompt // 2 + repeat) % len(arms)
    order = [*arms[shift:], *arms[:shift]]
    return order[::-1] if prompt % 2 else order


def _load_stack(settings: CellSettings) -> Stack:
    stack = settings.stack
    return Stack.load(Path(stack.path), dtype=stack.dtype, gdn_verify=stack.gdn_verify, commit=stack.commit)


def _load_prompts(settings: CellSettings) -> list[Prompt]:
    folder = Path(settings.stack.path) / "prompts"
    prompts = load_prompts(settings.dataset, settings.split, folder, settings.prompts)
    if len(prompts) < settings.prompts:
        name = folder / f"{settings.dataset}.{settings.split}.jsonl"
        raise UserError(f"{name}: found {len(prompts)} prompts; prompts.{settings.split} asks for {settings.prompts}")
    return prompts


def checkpoint_sha256(stack: Path) -> str:
    """One hash over the weight files of target, drafter and Weaver."""
    listed = [file for part in STACK_PARTS for file in sorted((stack / part).iterdir())]
    files = [file for file in listed if file.suffix in WEIGHT_SUFFIXES]
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()


def _warm_up(cell: _Cell, prompt: Prompt) -> None:
    """Run every arm, so every verify width, before anything is timed."""
    start, limit = time.monotonic(), min(WARMUP_TOKENS, cell.settings.max_new_tokens)
    for arm in cell.arms:
        for staged in (False, True) if cell.staged else (False,):
            _generate(cell, prompt, arm, seed=cell.settings.seed, staged=staged, limit=limit)
    print(f"{cell.label}: {len(cell.arms)} arms warm after {time.monotonic() - start:.1f} s", file=sys.stderr)


def _measure_prompt(cell: _Cell, index: int, prompt: Prompt) -> list[DecodeRecord]:
    """Every arm once without inner timers, then, for staged prompts, once more for the stage times."""
    order = arm_order(cell.arms, index, cell.settings.repeat)
    seed, limit = cell.settings.seed + index, cell.settings.max_new_tokens
    timed = {arm: _generate(cell, prompt, arm, seed=seed, limit=limit) for arm in order}
    staged = order if cell.staged and index < STAGED_PROMPTS else []
    stages = {arm: _generate(cell, prompt, arm, seed=seed, limit=limit, staged=True).stage_ms for arm in staged}
    return [_record(cell, index, prompt, arm, timed[arm], timed[AR], stages.get(arm)) for arm in cell.arms]


def _generate(cell: _Cell, prompt: Prompt, arm: Arm, *, seed: int, limit: int, staged: bool = False) -> Generation:
    return generate(
        cell.stack,
        encode_prompt(cell.stack.tokenizer, prompt),
        arm,
        temperature=cell.settings.temperature,
        seed=seed,
        max_new_tokens=limit,
        staged=staged,
    )


def _record(
    cell: _Cell,
    index: int,
    prompt: Prompt,
    arm: Arm,
    generation: Generation,
    reference: Generation,
    stage_ms: dict[str, float] | None,
) -> DecodeRecord:
    divergence = first_divergence(generation.tokens, reference.tokens)
    return DecodeRecord(
        prompt=index,
        prompt_id=prompt.id,
        method=arm.method,
        budget=arm.budget,
        expansion_width=arm.expansion_width,
        verify_width=generation.verify_width,
        tokens=len(generation.tokens) - 1,
        accepted=generation.accepted,
        prefill_ms=generation.prefill_ms,
        decode_ms=generation.decode_ms,
        stage_ms=stage_ms,
        tokens_sha256=tokens_sha256(generation.tokens),
        lossless=divergence is None,
        first_divergence=divergence,
        degenerate=is_degenerate(generation.tokens),
        gdn_implementation=cell.stack.gdn_implementation,
        weaver_implementation=cell.stack.weaver.implementation,
        checkpoint_sha256=cell.checkpoint_sha256,
        prompts_sha256=cell.prompts_sha256,
        settings=cell.settings,
        provenance=cell.provenance,
    )
