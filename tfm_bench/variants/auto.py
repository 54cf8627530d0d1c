"""Trees that stop growing where a node no longer pays."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tfm_bench.drafting.ddtree import build_ddtree
from tfm_bench.engine import Arm, Draft, Stack
from tfm_bench.errors import UserError
from tfm_bench.measure.round_times import growth_step, measure_round_times
from tfm_bench.tree import TokenTree

THETA = "theta"


def auto(stack: Stack, value: str) -> Stack:
    """The stack whose trees end by the theta rule (see drafting.stopping), at the arm's budget at the latest.

    Times of rounds are measured once per arm, on this stack with fixed budgets, when the arm's first tree is built: in
    a cell that is its warm-up. Raises UserError for another rule.
    """
    if value != THETA:
        raise UserError(f"variant: found 'auto_{value}'; accepted is auto_{THETA}")

    @cache
    def round_ms(arm: Arm) -> list[float]:
        return measure_round_times(stack, arm).costs()

    def ddtree(own: Stack, arm: Arm, draft: Draft) -> TokenTree:
        return _padded(own, arm, build_ddtree(draft.anchor, draft.logits, arm.budget, round_ms(arm)))

    def tfm(own: Stack, arm: Arm, draft: Draft) -> TokenTree:
        inputs = (draft.anchor, draft.target_hidden, draft.hidden, draft.logits)
        width = min(arm.expansion_width, arm.budget)
        return _padded(own, arm, own.weaver.build(*inputs, arm.budget, width, round_ms(arm)))

    return replace(stack, builders={**stack.builders, "ddtree": ddtree, "tfm": tfm})


def _padded(stack: Stack, arm: Arm, tree: TokenTree) -> TokenTree:
    """The tree with as many rows as one of the sizes has that were measured."""
    step = growth_step(stack, arm) if stack.target.width_step > 1 else 1
    drafts = min(-(-(tree.size - 1) // step) * step, arm.budget)
    if drafts + 1 == tree.width:
        return tree
    parts = (tree.tokens, tree.parents, tree.edge_logprobs)
    tokens, parents, edges = (part[: tree.size].tolist() for part in parts)
    return TokenTree.from_lists(tokens, parents, edges, drafts + 1)
