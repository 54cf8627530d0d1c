"""The chain against a loop over depths."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfm_bench.drafting.chain import build_chain


@given(depths=st.integers(0, 6), vocab=st.integers(1, 5), budget=st.integers(0, 8), seed=st.integers(0, 1000))
def test_chain_takes_the_best_token_of_each_depth(depths: int, vocab: int, budget: int, seed: int) -> None:
    # Few distinct values, so that equal logits are common.
    logits = torch.randint(0, 3, (depths, vocab), generator=torch.Generator().manual_seed(seed)).float()
    tree = build_chain(9, logits, budget)

    length = min(budget, depths)
    assert tree.tokens.tolist() == [9] + [row.index(max(row)) for row in logits[:length].tolist()]
    assert tree.parents.tolist() == list(range(-1, length))
    assert tree.size == tree.width == length + 1
    probabilities = [row.double().softmax(-1)[row.argmax()].item() for row in logits[:length]]
    assert tree.edge_logprobs.double().exp().tolist() == pytest.approx([1.0, *probabilities], rel=1e-6)


def test_budget_above_the_block_is_capped() -> None:
    tree = build_chain(0, torch.randn(15, 32), budget=64)
    assert (tree.size, tree.width, int(tree.depths.max())) == (16, 16, 15)


def test_half_precision_logits_are_scored_in_single() -> None:
    logits = torch.randn(3, 64).bfloat16()
    assert torch.equal(build_chain(0, logits, 3).edge_logprobs, build_chain(0, logits.float(), 3).edge_logprobs)


def test_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="budget is -1"):
        build_chain(0, torch.zeros(3, 4), budget=-1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_distribution_are_refused(value: float) -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = value
    assert build_chain(0, logits, budget=1).size == 2
    with pytest.raises(ValueError, match="no distribution"):
        build_chain(0, logits, budget=2)
    with pytest.raises(ValueError, match="no distribution"):
        build_chain(0, torch.full((1, 4), -float("inf")), budget=1)
