"""DDTree against exhaustive enumeration of paths and of trees."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tfm_bench.drafting.chain import build_chain
from tfm_bench.drafting.ddtree import build_ddtree
from tfm_bench.tree import TokenTree

Path = tuple[int, ...]


@st.composite
def logit_tables(draw: st.DrawFn, max_depth: int = 4, max_vocab: int = 5) -> Tensor:
    """[D, V]; half of the tables hold small integers, so that whole paths tie."""
    depths, vocab = draw(st.integers(1, max_depth)), draw(st.integers(1, max_vocab))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    if draw(st.booleans()):
        return torch.randint(-1, 2, (depths, vocab), generator=generator).float()
    return torch.randn(depths, vocab, generator=generator) * 2


def scored_paths(logits: Tensor) -> dict[Path, tuple[float, Path]]:
    """Every token path -> (score, rank tuple), scores summed from the anchor down in fp64."""
    logprobs = logits.log_softmax(-1).tolist()
    ranked = [sorted(range(len(row)), key=lambda token: (-row[token], token)) for row in logits.tolist()]
    paths = {}
    for depth in range(1, len(logprobs) + 1):
        for ranks in itertools.product(range(len(logprobs[0])), repeat=depth):
            tokens = tuple(ranked[row][rank] for row, rank in enumerate(ranks))
            score = 0.0
            for row, token in enumerate(tokens):
                score += logprobs[row][token]
            paths[tokens] = (score, ranks)
    return paths


def token_paths(tree: TokenTree) -> list[Path]:
    tokens = tree.tokens.tolist()
    return [tuple(tokens[i] for i in tree.structure.path_to(node)[1:]) for node in range(1, tree.size)]


def all_trees(paths: set[Path], nodes: int) -> set[frozenset[Path]]:
    """Every prefix-closed set of that many paths, grown one path at a time."""
    trees: set[frozenset[Path]] = {frozenset()}
    for _ in range(nodes):
        trees = {tree | {path} for tree in trees for path in paths - tree if len(path) == 1 or path[:-1] in tree}
    return trees


@given(logits=logit_tables(), budget=st.integers(0, 40))
def test_order_is_by_score_then_by_ranks(logits: Tensor, budget: int) -> None:
    scored = scored_paths(logits)
    best = sorted(scored, key=lambda path: (-scored[path][0], scored[path][1]))
    assert token_paths(build_ddtree(0, logits, budget)) == best[:budget]


@given(logits=logit_tables(max_depth=3, max_vocab=3), budget=st.integers(1, 5))
def test_no_tree_of_that_size_accepts_more(logits: Tensor, budget: int) -> None:
    probability = {path: math.exp(score) for path, (score, _) in scored_paths(logits).items()}
    ours = sum(probability[path] for path in token_paths(build_ddtree(0, logits, budget)))
    rivals = all_trees(set(probability), min(budget, len(probability)))
    assert ours == pytest.approx(max(sum(probability[path] for path in tree) for tree in rivals), abs=1e-12)


@given(logits=logit_tables(max_depth=6, max_vocab=12), budget=st.integers(0, 80))
def test_tree_is_well_formed(logits: Tensor, budget: int) -> None:
    depths, vocab = logits.shape
    tree = build_ddtree(7, logits, budget)
    paths = token_paths(tree)
    pool = sum(vocab**depth for depth in range(1, depths + 1))
    assert tree.tokens[0] == 7
    assert tree.width == budget + 1
    assert tree.size == 1 + min(budget, pool)
    assert len(set(paths)) == len(paths), "siblings must carry distinct tokens"
    assert all(len(path) == 1 or path[:-1] in paths[:node] for node, path in enumerate(paths)), "parents come first"


@given(logits=logit_tables(max_depth=6, max_vocab=12), budget=st.integers(1, 80))
def test_path_scores_never_rise(logits: Tensor, budget: int) -> None:
    tree = build_ddtree(0, logits, budget)
    edges = tree.edge_logprobs.double()
    scores = (tree.structure.ancestors.double()[: tree.size, : tree.size] @ edges[: tree.size]).tolist()
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(scores))


@given(logits=logit_tables(max_vocab=12), budget=st.integers(1, 40))
def test_edges_are_normalised_over_the_whole_vocabulary(logits: Tensor, budget: int) -> None:
    tree = build_ddtree(0, logits, budget)
    probabilities = logits.double().softmax(-1)
    for node in range(1, tree.size):
        expected = probabilities[tree.depths[node] - 1, tree.tokens[node]].item()
        assert math.exp(tree.edge_logprobs[node]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("budget", [1, 4, 6, 50, 64])
def test_equal_logits_go_by_token_id_also_across_the_cut(budget: int) -> None:
    tree = build_ddtree(0, torch.zeros(2, 50), budget)
    expected = [(token,) for token in range(50)] + [(0, token) for token in range(14)]
    assert token_paths(tree) == expected[:budget]


def test_equal_logits_below_a_clear_winner_go_by_token_id() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, 500] = 3.0
    assert token_paths(build_ddtree(0, logits, 4)) == [(500,), (0,), (1,), (2,)]


def test_both_zeros_are_equal_logits() -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, -0.0, 0.0, -2.0]])
    assert token_paths(build_ddtree(0, logits, 6)) == [(1,), (2,), (3,), (4,), (0,), (5,)]


def test_half_precision_ties_are_ordered_too() -> None:
    logits = (torch.randn(15, 4096) * 4).bfloat16()
    tree = build_ddtree(0, logits, 64)
    stable = logits.float().sort(dim=-1, descending=True, stable=True).indices
    for children, depth in zip(tree.children, tree.depths.tolist(), strict=True):
        assert list(children) == stable[min(depth, 14), : len(children)].tolist()


def test_peaked_marginals_give_the_chain() -> None:
    logits = torch.zeros(15, 100)
    logits[torch.arange(15), torch.arange(15) * 3] = 40.0
    tree, chain = build_ddtree(5, logits, 15), build_chain(5, logits, 15)
    assert torch.equal(tree.tokens, chain.tokens)
    assert torch.equal(tree.parents, chain.parents)
    assert torch.equal(tree.edge_logprobs, chain.edge_logprobs)


def test_raising_one_logit_changes_the_tree() -> None:
    logits = torch.randn(4, 30)
    raised = logits.clone()
    raised[2, 17] += 9.0
    before, after = (token_paths(build_ddtree(0, table, 32)) for table in (logits, raised))
    assert sum(path[2:3] == (17,) for path in after) > sum(path[2:3] == (17,) for path in before)


def test_impossible_tokens_come_last() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0]])
    tree = build_ddtree(0, logits, 3)
    assert tree.tokens.tolist() == [0, 2, 0, 1]
    assert tree.edge_logprobs[3] == float("-inf")


@pytest.mark.parametrize("depths", [0, 3])
def test_budget_of_none_is_the_anchor(depths: int) -> None:
    tree = build_ddtree(3, torch.zeros(depths, 4), budget=0)
    assert (tree.tokens.tolist(), tree.size, tree.width) == ([3], 1, 1)


def test_no_depth_is_all_padding() -> None:
    tree = build_ddtree(3, torch.zeros(0, 4), budget=5)
    assert (tree.size, tree.width) == (1, 6)


def test_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="budget is -2"):
        build_ddtree(0, torch.zeros(3, 4), budget=-2)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_poisoned_logits_are_refused(poison: float) -> None:
    logits = torch.zeros(3, 8)
    logits[1, 5] = poison
    with pytest.raises(ValueError, match="NaN"):
        build_ddtree(0, logits, budget=4)
