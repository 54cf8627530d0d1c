"""The runs of a cell: which arms at which place in the order, warm-up, and a prompt's records."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfm_bench.config import DEFAULT_VARIANT, CellSettings
from tfm_bench.engine import Arm, Generation, Stack, generate
from tfm_bench.measure.foreign_load import LoadMeter
from tfm_bench.measure.gpu_state import read_gpu_again
from tfm_bench.measure.logit_gap import logit_gap
from tfm_bench.measure.lossless import first_divergence, is_degenerate, tokens_sha256
from tfm_bench.measure.partial import PromptResult
from tfm_bench.measure.provenance import CellProvenance, now
from tfm_bench.measure.records import TOKEN_IDENTICAL, DecodeRecord, Status
from tfm_bench.measure.rounds import RoundsRecord
from tfm_bench.prompts.datasets import Prompt, encode_for
from tfm_bench.prompts.lengthened import lengthened

WARMUP_TOKENS = 24
STAGED_PROMPTS = 4  # enough for the share of each stage; every one costs a second pass

AR = Arm("ar")


@dataclass(frozen=True)
class Run:
    """One measurement per prompt. control: the second one of `ar`, whose distance from the first is noise."""

    arm: Arm
    control: bool = False


@dataclass(frozen=True)
class Failure:
    """What a run gave that raised."""

    status: Status
    reason: str


@dataclass(frozen=True)
class Cell:
    """What stays the same from prompt to prompt. Of `prompts` only those in `measured` are decoded."""

    settings: CellSettings
    stacks: Mapping[str, Stack]
    runs: list[Run]
    prompts: list[Prompt]
    prompts_sha256: str
    checkpoint_sha256: str

    @property
    def stack(self) -> Stack:
        """The stack as it is, without a variant."""
        return self.stacks[DEFAULT_VARIANT]

    @property
    def measured(self) -> list[Prompt]:
        """The first `settings.prompts`, or all; the others lengthen them."""
        return self.prompts if self.settings.prompts == "all" else self.prompts[: self.settings.prompts]

    def prompt_ids(self, index: int, prompt: Prompt) -> list[int]:
        """What is decoded: the prompt, and in front of it others where the settings ask for a length."""
        stack = self.settings.stack
        ids = encode_for(stack, self.stack.tokenizer, prompt)
        if self.settings.prompt_tokens is None:
            return ids
        others = [encode_for(stack, self.stack.tokenizer, other) for other in self.prompts]
        return lengthened(others[index + 1 :] + others[:index], ids, self.settings.prompt_tokens)

    @property
    def label(self) -> str:
        """For lines on the terminal."""
        settings = self.settings
        length = "" if settings.prompt_tokens is None else f" {settings.prompt_tokens} tokens"
        place = f"{settings.split} {settings.dataset}{length} T={settings.temperature:g}"
        return f"{place} {settings.stack.dtype} repeat {settings.repeat}"

    @property
    def staged(self) -> bool:
        """Stage times come from the first prompts of one repeat of the reported split, where they are asked for."""
        return self.settings.staged and self.settings.split == "test" and self.settings.repeat == 0


def runs_of(arms: Sequence[Arm]) -> list[Run]:
    """A run per arm and the A/A control, half a turn of the order away from `ar`, the first arm."""
    runs = [Run(arm) for arm in arms]
    runs.insert((len(runs) + 1) // 2, Run(AR, control=True))
    return runs


def run_order(runs: Sequence[Run], prompt: int, repeat: int) -> list[Run]:
    """Order of the runs at a prompt: rotated every two prompts and every repeat, reversed on odd prompts (ABBA)."""
    shift = (prompt // 2 + repeat) % len(runs)
    order = [*runs[shift:], *runs[:shift]]
    return order[::-1] if prompt % 2 else order


def warm_up(cell: Cell) -> tuple[float, float]:
    """Run every arm, so every verify width, before anything is timed.

    Returns the seconds that it took and how many of them first runs took longer than second ones: compilation,
    graph captures and the first touch of memory.
    """
    ids, limit = cell.prompt_ids(0, cell.prompts[0]), min(WARMUP_TOKENS, cell.settings.max_new_tokens)
    start, first_runs = time.monotonic(), 0.0
    for run in cell.runs:
        if run.control:
            continue
        clock = [time.monotonic()]
        for staged in (False, False, True) if cell.staged else (False, False):
            _attempt(cell, ids, run, seed=cell.settings.seed, limit=limit, staged=staged)
            clock.append(time.monotonic())
        first_runs += max(0.0, (clock[1] - clock[0]) - (clock[2] - clock[1]))
    return time.monotonic() - start, first_runs


def measure_prompt(cell: Cell, index: int, prompt: Prompt, provenance: CellProvenance) -> PromptResult:
    """Every run once without inner timers, then, for staged prompts, every arm once more for the stage times.

    A run that raises leaves a record that says so; what `ar` raises ends the cell, since nothing can be judged then.
    """
    ids = cell.prompt_ids(index, prompt)
    order = run_order(cell.runs, index, cell.settings.repeat)
    seed, limit = cell.settings.seed + index, cell.settings.max_new_tokens
    meter = LoadMeter()
    timed = {run: _attempt(cell, ids, run, seed=seed, limit=limit) for run in order}
    again = [run for run in order if not run.control] if cell.staged and index < STAGED_PROMPTS else []
    staged = {run: _attempt(cell, ids, run, seed=seed, limit=limit, staged=True) for run in again}
    own = {
        "seed": seed,
        "finished_at": now(),
        "foreign_load": meter.foreign_load(),
        "gpu": read_gpu_again(provenance.gpu, cell.stack.device),
    }
    common = {
        "prompt": index,
        "prompt_id": prompt.id,
        "prompt_tokens": len(ids),
        "checkpoint_sha256": cell.checkpoint_sha256,
        "prompts_sha256": cell.prompts_sha256,
        "settings": cell.settings,
        "provenance": provenance.model_copy(update=own),
    }
    records, rounds = [], []
    for run in cell.runs:
        stack, outcome, stages = cell.stacks[run.arm.variant], timed[run], _same_text(staged.get(run), timed[run])
        numbers = _numbers(cell, ids, outcome, timed[Run(AR)], seed, stack.rule.name)
        stage_ms = stages.stage_ms if stages else None
        place = {
            **_place(run),
            "rule": stack.rule.name,
            "gdn_implementation": stack.gdn_implementation,
            "weaver_implementation": stack.weaver_implementation,
        }
        records.append(DecodeRecord(**common, **place, **numbers, stage_ms=stage_ms))
        rounds.append(_rounds(index, run, outcome, stages))
    return PromptResult(records=records, rounds=rounds)


def _attempt(
    cell: Cell, ids: list[int], run: Run, *, seed: int, limit: int, staged: bool = False
) -> Generation | Failure:
    temperature = cell.settings.temperature
    try:
        stack = cell.stacks[run.arm.variant]
        return generate(stack, ids, run.arm, temperature=temperature, seed=seed, max_new_tokens=limit, staged=staged)
    except Exception as error:
        if run == Run(AR):
            raise
        status: Status = "unsupported" if isinstance(error, NotImplementedError) else "failed"
        return Failure(status, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def _same_text(staged: Generation | Failure | None, timed: Generation | Failure) -> Generation | None:
    """The staged run where it did what the timed one did: only then do its stage times belong to those rounds."""
    if isinstance(staged, Generation) and isinstance(timed, Generation) and staged.accepted == timed.accepted:
        return staged
    return None


def _place(run: Run) -> dict[str, Any]:
    arm = run.arm
    place = {"method": arm.method, "budget": arm.budget, "expansion_width": arm.expansion_width}
    return {**place, "variant": arm.variant, "control": run.control}


def _numbers(
    cell: Cell, ids: list[int], outcome: Generation | Failure, reference: Generation | Failure, seed: int, rule: str
) -> dict[str, Any]:
    if isinstance(outcome, Failure):
        return {"status": outcome.status, "reason": outcome.reason}
    assert isinstance(reference, Generation), "what `ar` raises ends the cell"
    judged = rule == TOKEN_IDENTICAL
    divergence = first_divergence(outcome.tokens, reference.tokens) if judged else None
    gap = None
    if divergence is not None and cell.settings.stack.dtype == "bfloat16":
        gap = _gap(cell, ids, outcome.tokens, reference.tokens, divergence, seed)
    tokens, rounds, accepted = len(outcome.tokens) - 1, len(outcome.rounds), outcome.accepted
    return {
        "status": "ok",
        "reason": None,
        "verify_width": outcome.verify_width,
        "tokens": tokens,
        "rounds": rounds,
        "accepted_drafts_sum": sum(accepted),
        "accepted_drafts": sum(accepted) / rounds if rounds else None,
        "acceptance_length": tokens / rounds if rounds else None,
        "max_depth": max(accepted, default=0),
        "prefill_ms": outcome.prefill_ms,
        "decode_ms": outcome.decode_ms,
        "tokens_sha256": tokens_sha256(outcome.tokens),
        "lossless": divergence is None if judged else None,
        "first_divergence": divergence,
        "logit_gap": gap,
        "degenerate": is_degenerate(outcome.tokens),
    }


def _gap(
    cell: Cell, ids: list[int], tokens: list[int], reference: list[int], divergence: int, seed: int
) -> float | None:
    """logit_gap where the texts part; None where one of them ends there, so that no two tokens can be compared."""
    if divergence >= min(len(tokens), len(reference)):
        return None
    return logit_gap(
        cell.stack,
        ids,
        reference[:divergence],
        expected=reference[divergence],
        found=tokens[divergence],
        temperature=cell.settings.temperature,
        seed=seed,
    )


def _rounds(index: int, run: Run, outcome: Generation | Failure, staged: Generation | None) -> RoundsRecord:
    rounds = outcome.rounds if isinstance(outcome, Generation) else []
    return RoundsRecord(
        prompt=index,
        **_place(run),
        accepted=[done.accepted for done in rounds],
        verify_width=[done.verify_width for done in rounds],
        depth=[done.depth for done in rounds],
        spine=[done.spine for done in rounds],
        stage_ms=staged.round_stage_ms if staged else None,
    )
