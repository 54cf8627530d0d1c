"""What a round costs by the number of its drafts: medians of real rounds, for the rule in drafting.stopping."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tfm_bench.drafting.stopping import round_costs
from tfm_bench.engine import Arm, Stack, generate

PROMPT_TOKENS = 64
ROUND_TOKENS = 12
PASSES = 2  # over all sizes, up and down


class RoundTimes(NamedTuple):
    """drafts: sizes of trees, increasing; samples_ms: per size, the time of each round; budget: the largest tree."""

    drafts: list[int]
    samples_ms: list[list[float]]
    budget: int

    @property
    def medians_ms(self) -> list[float]:
        return [float(np.median(samples)) for samples in self.samples_ms]

    def costs(self) -> list[float]:
        """[budget + 1] milliseconds of a round by its drafts; see stopping.round_costs."""
        return round_costs(self.drafts, self.medians_ms, self.budget)


def tree_sizes(budget: int, step: int) -> list[int]:
    """Where the curve is measured: step, its doubles below the budget, and the budget."""
    sizes = []
    while step < budget:
        sizes.append(step)
        step *= 2
    return [*sizes, budget]


def growth_step(stack: Stack, arm: Arm) -> int:
    """Drafts by which trees of free size differ: those of a Weaver call, and what the target pads to."""
    return max(1, arm.expansion_width, stack.target.width_step)


def measure_round_times(stack: Stack, arm: Arm) -> RoundTimes:
    """Rounds of `arm` with smaller and smaller trees: draft, tree, verification, acceptance and commit together.

    Weaver calls are in it, as many as each size takes. The text before the rounds is made of arbitrary tokens: what a
    round takes depends on how many they are and hardly on which. Runs every size that growth can stop at once before:
    the first verification of a width takes longer than all others.
    """
    step = growth_step(stack, arm)
    sizes = tree_sizes(arm.budget, step)
    for size in (*range(step, arm.budget, step), arm.budget):
        _rounds_ms(stack, arm, size, seed=0, tokens=1)
    samples: list[list[float]] = [[] for _ in sizes]
    for number in range(PASSES):
        order = list(zip(sizes, samples, strict=True))
        for size, own in reversed(order) if number % 2 else order:
            own += _rounds_ms(stack, arm, size, seed=number, tokens=ROUND_TOKENS)
    return RoundTimes(sizes, samples, arm.budget)


def _rounds_ms(stack: Stack, arm: Arm, size: int, *, seed: int, tokens: int) -> list[float]:
    """Milliseconds of each round that emits up to `tokens` tokens from trees of `size` drafts, without the prefill."""
    prompt = [(token * 37 + 11) % stack.target.vocab_size for token in range(PROMPT_TOKENS)]
    sized, limit = replace(arm, budget=size), tokens + 1  # the first token is the prefill's
    done = generate(stack, prompt, sized, temperature=1.0, seed=seed, max_new_tokens=limit, staged=True)
    return [sum(one.stage_ms.values()) for one in done.rounds if one.stage_ms is not None]
