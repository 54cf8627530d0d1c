"""Chains drafted otherwise than by the argmax of each marginal."""

from __future__ import annotations

from dataclasses import replace

from tfm_bench.engine import Arm, Draft, Stack
from tfm_bench.errors import UserError
from tfm_bench.tree import TokenTree
from tfm_bench.verification.sample_match import KeyedNoise, draw

# Far from the seeds of a run's prompts, which are its own and the next ones.
SEED_OFFSET = 2**63
DRAFT_TEMPERATURE = 1.0


def chain(stack: Stack, kind: str) -> Stack:
    """The stack whose chains are samples of the drafter's marginals. Raises UserError for another kind than sampled."""
    if kind != "sampled":
        raise UserError(f"variant: found 'chain_{kind}'; accepted is chain_sampled")
    return replace(stack, builders={**stack.builders, "dflash_chain": _sampled})


def _sampled(_stack: Stack, arm: Arm, draft: Draft) -> TokenTree:
    """Tree without branches: each depth a sample of its own marginal at temperature 1, as trees rank them too.

    The noise is keyed by position like the target's, under another seed: a position is drafted in one round at most
    whose drafts reach it, so no draft was chosen with knowledge of a draw.
    """
    logits = draft.logits[: arm.budget].float()
    noise = KeyedNoise((draft.noise.seed + SEED_OFFSET) % 2**64)
    tokens = [draw(row, DRAFT_TEMPERATURE, noise, draft.position + depth) for depth, row in enumerate(logits, start=1)]
    laws = logits.log_softmax(-1)
    return TokenTree.chain([draft.anchor, *tokens], [0.0, *(float(laws[d, token]) for d, token in enumerate(tokens))])
