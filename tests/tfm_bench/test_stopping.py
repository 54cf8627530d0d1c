"""The theta rule: against brute force over all sizes, on every builder; and the convex fit of its costs."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from tests.tfm_bench.tiny_stack import random_stack, shipped_stack
from tfm_bench.drafting.best_first import grow_tree
from tfm_bench.drafting.ddtree import build_ddtree
from tfm_bench.drafting.stopping import ThetaStop, convex_fit, cut, first_nodes, round_costs
from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.tree import TokenTree

BUDGET = 24


def path_probabilities(tree: TokenTree) -> list[float]:
    """Of every node, the anchor's 1 first."""
    parents, edges = tree.parents.tolist(), tree.edge_logprobs.double().tolist()
    scores = [0.0]
    for node in range(1, tree.size):
        scores.append(scores[parents[node]] + edges[node])
    return [math.exp(score) for score in scores]


def same_prefix(tree: TokenTree, whole: TokenTree) -> bool:
    """Whether `tree` is the first nodes of `whole`, without padding."""
    assert tree.width == tree.size
    names = ("tokens", "parents", "edge_logprobs")
    return all(torch.equal(getattr(tree, name), getattr(whole, name)[: tree.size]) for name in names)


def random_costs(seed: int, budget: int = BUDGET, steepest: float = 0.4) -> list[float]:
    """A convex non-decreasing curve from 10 ms on."""
    slopes = np.sort(np.random.default_rng(seed).random(budget) * steepest)
    return [10.0, *(10.0 + np.cumsum(slopes)).tolist()]


def random_logits(seed: int, vocab: int = 30, depths: int = 6) -> torch.Tensor:
    return torch.randn(depths, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@given(seed=st.integers(0, 2**16), steepest=st.sampled_from([0.0, 0.1, 1.0, 10.0]))
def test_ddtree_stops_at_the_best_of_all_sizes(seed, steepest):
    """Probabilities do not increase and costs are convex: the first peak is the highest."""
    costs, logits = random_costs(seed, steepest=steepest), random_logits(seed)
    whole, tree = build_ddtree(3, logits, BUDGET), build_ddtree(3, logits, BUDGET, costs)
    emitted = np.cumsum(path_probabilities(whole))
    theta = [emitted[n] / costs[n] for n in range(BUDGET + 1)]
    assert same_prefix(tree, whole)
    assert theta[tree.size - 1] == pytest.approx(max(theta), rel=1e-12)


def first_peak(probabilities: list[float], costs: list[float], step: int) -> int:
    """Nodes up to the first batch after which theta is no higher, by its definition."""
    ends = [0, *range(step, len(probabilities) - 1, step), len(probabilities) - 1]
    theta = [sum(probabilities[: end + 1]) / costs[end] for end in ends]
    for place, (before, after) in enumerate(pairwise(theta)):
        if after <= before:
            return ends[place]
    return ends[-1]


def table_scorer(seed: int):
    """Children of a node by its depth and token, from a table; more than a batch takes."""
    logprobs = random_logits(seed, vocab=10).log_softmax(-1)

    def expand(nodes):
        rows = [(logprobs[node.depth].roll(node.token)).sort(descending=True) for node in nodes]
        return [row.indices[:8].tolist() for row in rows], [row.values[:8].tolist() for row in rows]

    return expand


@pytest.mark.parametrize("width", [1, 3, 5])
@given(seed=st.integers(0, 2**16), steepest=st.sampled_from([0.1, 1.0, 10.0]))
def test_batches_stop_at_the_first_peak(width, seed, steepest):
    costs = random_costs(seed, steepest=steepest)
    options = {"budget": BUDGET, "expansion_width": width, "max_depth": 6}
    whole = grow_tree(1, table_scorer(seed), **options)
    tree = grow_tree(1, table_scorer(seed), **options, round_ms=costs)
    assert same_prefix(tree, whole)
    assert tree.size - 1 == first_peak(path_probabilities(whole), costs, width)
    assert same_prefix(cut(whole, costs, width), tree)


def test_calls_are_saved():
    calls = []
    expand = table_scorer(0)

    def counted(nodes):
        calls.append(len(nodes))
        return expand(nodes)

    costs = [1.0, *(1.0 + 5.0 * n for n in range(1, BUDGET + 1))]
    tree = grow_tree(1, counted, budget=BUDGET, expansion_width=2, max_depth=6, round_ms=costs)
    assert (tree.size, len(calls)) == (1, 1)


def test_a_frontier_that_runs_dry_ends_the_tree():
    tree = grow_tree(
        1, lambda nodes: ([[5]] * len(nodes), [[-0.1]] * len(nodes)), budget=8, expansion_width=2, max_depth=2,
        round_ms=[1.0] * 9,
    )  # fmt: skip
    assert tree.tokens.tolist() == [1, 5, 5]


def weaver_inputs(stack, seed):
    generator = torch.Generator().manual_seed(seed)
    depths, hidden, vocab = stack.block_size - 1, stack.target.hidden_size, stack.target.vocab_size
    target_hidden = torch.randn(hidden, generator=generator)
    draft_hidden = torch.randn(depths, hidden, generator=generator)
    return 3, target_hidden, draft_hidden, 3 * torch.randn(depths, vocab, generator=generator)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_weaver_trees_stop_at_the_first_peak(compiled, width):
    """The shipped Weaver, compiled and in torch: what is grown is the beginning of the whole tree."""
    stack = shipped_stack()
    runtime = WeaverRuntime(stack.weaver.weaver, stack.target.embedding, stack.target.head.weight, compiled=compiled)
    sizes = set()
    for seed in range(6):
        inputs, costs = weaver_inputs(stack, seed), random_costs(seed, steepest=0.1 + 0.4 * (seed % 3))
        whole = runtime.build(*inputs, BUDGET, width)
        tree = runtime.build(*inputs, BUDGET, width, costs)
        assert same_prefix(tree, whole)
        assert tree.size - 1 == first_peak(path_probabilities(whole), costs, width)
        sizes.add(tree.size)
    assert len(sizes) > 1
    assert compiled or runtime.implementation == "torch"


def test_flat_costs_grow_the_whole_tree():
    stack = random_stack()
    inputs = weaver_inputs(stack, 0)
    whole = stack.weaver.build(*inputs, 12, 3)
    assert same_prefix(stack.weaver.build(*inputs, 12, 3, [1.0] * 13), whole)


def test_costs_of_another_budget_are_an_error():
    stack = shipped_stack()
    if stack.weaver.implementation != "compiled":
        pytest.skip("no compiler here")
    with pytest.raises(ValueError, match="9 round times for trees of 0 to 12 drafts"):
        stack.weaver.build(*weaver_inputs(stack, 0), 12, 3, [1.0] * 9)


def test_nothing_more_never_pays():
    stop = ThetaStop([1.0, 1.0, 1.0])
    assert stop.pays([0.0])
    assert not stop.pays([])


def test_first_nodes_has_no_padding():
    tree = TokenTree.from_lists([1, 2, 3], [-1, 0, 1], [0.0, -1.0, -2.0], width=6)
    assert first_nodes(tree, 2).tokens.tolist() == [1, 2]
    assert first_nodes(tree, 2).structure.depths.tolist() == [0, 1]


NODES = [1, 2, 4, 8, 16, 32, 64]


@given(seed=st.integers(0, 2**16))
def test_the_fit_is_convex_rising_and_closest(seed):
    rng = np.random.default_rng(seed)
    measured = 5 + 0.1 * np.array(NODES) * rng.random() + rng.normal(size=len(NODES))
    fitted = np.array(convex_fit(NODES, measured))
    slopes = np.diff(fitted) / np.diff(NODES)
    assert (slopes > -1e-9).all()
    assert (np.diff(slopes) > -1e-9).all()
    error = ((fitted - measured) ** 2).sum()
    rules = [
        {"type": "ineq", "fun": lambda y: np.diff(y) / np.diff(NODES)},
        {"type": "ineq", "fun": lambda y: np.diff(np.diff(y) / np.diff(NODES))},
    ]
    line = np.full(len(NODES), measured.mean())
    other = minimize(lambda y: ((y - measured) ** 2).sum(), line, constraints=rules, method="SLSQP")
    assert error <= other.fun + 1e-5


def test_the_fit_keeps_what_is_convex_already():
    measured = [4.0, 4.0, 4.1, 4.5, 6.0, 10.0, 20.0]
    assert convex_fit(NODES, measured) == pytest.approx(measured)
    costs = round_costs(NODES, measured, 64)
    assert len(costs) == 65
    assert costs[0] == costs[1] == pytest.approx(4.0)
    assert costs[24] == pytest.approx(8.0)
    assert (np.diff(costs, 2)[1:] > -1e-9).all()
