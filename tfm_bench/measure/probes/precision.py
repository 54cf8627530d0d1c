"""Drift of the commits `replay` and `fold` over a long text, in float32 and bfloat16: see measure.commit_drift.

One observation per dtype, commit and checkpoint: dtype, commit, tokens, state_error, logit_error. The text: test
prompts and their answers one after the other, as if they were one conversation. Trees and accepted paths are those of
rounds that answered each prompt by itself (`tfm` at the ablation's budget, the stack as configured); both dtypes verify
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfm_bench.ablations import ProbeSettings
from tfm_bench.config import expansion_width
from tfm_bench.engine import Arm, Stack
from tfm_bench.errors import UserError
from tfm_bench.measure.cells import load_stack
from tfm_bench.measure.commit_drift import VerifiedRound, commit_drift, recorded_rounds
from tfm_bench.prompts.datasets import encode_for, load_prompts

VERSION = 1
EVERY_TOKENS = 64
DTYPES = ("float32", "bfloat16")


def probe(stack: Stack, settings: ProbeSettings) -> Iterator[dict[str, Any]]:
    """Drift of both commits every EVERY_TOKENS tokens; see the module."""
    rounds = long_text(stack, settings)
    for dtype in DTYPES:
        target = load_stack(settings.stack.model_copy(update={"dtype": dtype})).target
        for drift in commit_drift(target, rounds, every=EVERY_TOKENS):
            yield {
                "dtype": dtype,
                "commit": drift.commit,
                "tokens": drift.tokens,
                "state_error": drift.state,
                "logit_error": drift.logits,
            }


def long_text(stack: Stack, settings: ProbeSettings) -> list[VerifiedRound]:
    """Rounds that commit `ablations.precision.drift_tokens` tokens, and the one that is verified behind them.

    Raises UserError where all test prompts together are too short.
    """
    ablations, folder = settings.ablations, Path(settings.stack.path) / "prompts"
    wanted, budget = ablations.precision.drift_tokens, ablations.precision.budget
    arm = Arm("tfm", budget=budget, expansion_width=expansion_width(settings.expansion_width, budget))
    text: list[VerifiedRound] = []
    committed = 0
    for index, prompt in enumerate(load_prompts(ablations.dataset, "test", folder)):
        answer = recorded_rounds(
            stack,
            encode_for(settings.stack, stack.tokenizer, prompt),
            arm,
            temperature=ablations.temperature,
            seed=settings.seed + index,
            max_new_tokens=ablations.max_new_tokens,
        )
        for done in answer:
            text.append(done)
            if committed >= wanted:
                return text
            committed += len(done.path)
    raise UserError(
        f"ablations.precision.drift_tokens: found {wanted}; the test prompts of {ablations.dataset} give {committed}"
    )
