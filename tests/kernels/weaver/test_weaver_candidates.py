"""Candidate order against Python's stable sort, and child log-probabilities against log_softmax."""

import pytest
import torch

from kernels.weaver.candidates import best_children, ordered_topk


@pytest.mark.parametrize("distinct", [1, 3, 20, 10_000])
@pytest.mark.parametrize("count", [1, 7, 64])
def test_ties_go_to_the_lower_index(distinct, count):
    values = (torch.randint(distinct, (3, 64)) - distinct // 2) / 4.0
    expected = [sorted(range(64), key=lambda i, row=row: (-row[i], i))[:count] for row in values.tolist()]
    assert ordered_topk(values, count).tolist() == expected


def test_zeros_tie_and_infinities_come_last():
    values = torch.tensor([-torch.inf, -0.0, 0.0, -1.0, 1e-38, -torch.inf, -0.0])
    assert ordered_topk(values, 7).tolist() == [4, 1, 2, 6, 3, 0, 5]


def test_children_are_normalised_over_the_pool():
    scores = torch.randn(4, 32) * 3
    indices, logprobs = best_children(scores, 5)
    assert torch.equal(indices, scores.topk(5).indices)
    torch.testing.assert_close(logprobs, scores.log_softmax(-1).gather(-1, indices))


def test_a_certain_child_never_gains_from_rounding():
    scores = torch.full((64, 512), -100.0)
    scores[:, 0] = torch.rand(64) * 1000
    assert (best_children(scores, 8)[1] <= 0).all()
