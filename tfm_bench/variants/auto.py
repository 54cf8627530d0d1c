"""Trees that stop growing where a node no longer pays."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tfm_bench.drafting.ddtree import build_ddtree
from tfm_bench.engine import Arm, Draft, Stack
from tfm_bench.errors import UserError
from tfm_bench.measure.round_times import measure_round_times
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

    def ddtree(_: Stack, arm: Arm, draft: Draft) -> TokenTree:
        return build_ddtree(draft.anchor, draft.logits, arm.budget, round_ms(arm))

    def tfm(own: Stack, arm: Arm, draft: Draft) -> TokenTree:
        inputs = (draft.anchor, draft.target_hidden, draft.hidden, draft.logits)
        return own.weaver.build(*inputs, arm.budget, min(arm.expansion_width, arm.budget), round_ms(arm))

    return replace(stack, builders={**stack.builders, "ddtree": ddtree, "tfm": tfm})
