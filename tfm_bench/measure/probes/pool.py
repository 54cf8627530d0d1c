"""How often the target's token is outside the drafter's best C tokens, along the rounds of `tfm`.

Counted where the target's own token is known: at depth 1 and below each accepted draft, up to the bonus token.
Observations, one per prompt, depth and pool size: prompt; depth, from 1; pool_size; tokens, the places counted;
outside, those of them where the target's token is not among the pool_size best of the drafter at that depth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import Tensor

from tfm_bench.ablations import ProbeSettings
from tfm_bench.config import expansion_width
from tfm_bench.engine import Arm, Draft, Stack, generate
from tfm_bench.measure.progress import with_progress
from tfm_bench.models.target import TargetOutput
from tfm_bench.prompts.datasets import encode_for, load_prompts
from tfm_bench.tree import TokenTree
from tfm_bench.verification.sample_match import Acceptance

VERSION = 1


def probe(stack: Stack, settings: ProbeSettings) -> Iterable[dict[str, Any]]:
    """Observations of the module's docstring; the prompts and seeds are those of the ablation's cells."""
    ablations = settings.ablations
    folder = stack.directory / "prompts"
    prompts = load_prompts(ablations.dataset, "test", folder, ablations.prompts)
    for index, prompt in enumerate(with_progress(prompts, "pool")):
        ids = encode_for(settings.stack, stack.tokenizer, prompt)
        ranks = ranks_of_prompt(stack, ids, settings, settings.seed + index)
        for depth in sorted({depth for depth, _ in ranks}):
            at_depth = [rank for reached, rank in ranks.elements() if reached == depth]
            for size in ablations.pool.sizes:
                outside = sum(rank >= size for rank in at_depth)
                place = {"prompt": index, "depth": depth, "pool_size": size}
                yield {**place, "tokens": len(at_depth), "outside": outside}


def ranks_of_prompt(stack: Stack, ids: list[int], settings: ProbeSettings, seed: int) -> Counter[tuple[int, int]]:
    """(depth, rank of the target's token there) -> how often, over the rounds of one generation."""
    ablations, ranks = settings.ablations, Counter[tuple[int, int]]()
    budget = ablations.pool.budget

    def observe(draft: Draft | None, tree: TokenTree, _output: TargetOutput, outcome: Acceptance) -> None:
        assert draft is not None, "tfm drafts in every round"
        tokens = [*tree.tokens[outcome.path[1:]].tolist(), outcome.bonus]
        ranks.update(round_ranks(draft.logits, tokens, stack.stop_ids))

    arm = Arm("tfm", budget, expansion_width(settings.expansion_width, budget))
    generate(
        stack,
        ids,
        arm,
        temperature=ablations.temperature,
        seed=seed,
        max_new_tokens=ablations.max_new_tokens,
        observer=observe,
    )
    return ranks


def round_ranks(logits: Tensor, tokens: list[int], stop_ids: Collection[int]) -> Iterator[tuple[int, int]]:
    """(depth, rank) of the target's tokens of one round, none beyond a stop id or the drafted depths.

    logits [D, V] of the drafter. Rank 0 is its best token; equal logits rank by token id, as in Weaver's pool.
    """
    for depth, (row, token) in enumerate(zip(logits.float(), tokens, strict=False), start=1):
        better = (row > row[token]).sum() + (row[:token] == row[token]).sum()
        yield depth, int(better)
        if token in stop_ids:
            return
