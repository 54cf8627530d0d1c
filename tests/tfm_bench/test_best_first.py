"""Best-first growth with a fake scorer: against enumeration of all paths, and against its definition on plain lists."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfm_bench.drafting.best_first import Node, grow_tree


def path_of(tree, node: int) -> tuple[int, ...]:
    """Tokens below the anchor, down to `node`."""
    return tuple(int(tree.tokens[i]) for i in tree.structure.path_to(node)[1:])


def scores_of(tree) -> list[float]:
    return [sum(float(tree.edge_logprobs[i]) for i in tree.structure.path_to(node)) for node in range(tree.size)]


class FakeScorer:
    """Random conditionals: a fixed law of `children` tokens under every path, best first, that records its calls."""

    def __init__(self, seed: int, children: int) -> None:
        self.seed, self.children, self.batches, self.paths = seed, children, [], {}

    def law(self, path: tuple[int, ...]) -> list[tuple[int, float]]:
        generator = torch.Generator().manual_seed(hash((self.seed, path)) % 2**31)
        logprobs = (torch.randn(self.children + 2, generator=generator, dtype=torch.float64) * 2).log_softmax(0)
        return sorted(enumerate(logprobs.tolist()), key=lambda pair: -pair[1])[: self.children]

    def __call__(self, nodes: list[Node]):
        self.batches.append([node.slot for node in nodes])
        for node in nodes:
            self.paths[node.slot] = () if node.parent < 0 else (*self.paths[node.parent], node.token)
        laws = [self.law(self.paths[node.slot]) for node in nodes]
        return [[t for t, _ in law] for law in laws], [[p for _, p in law] for law in laws]


def all_paths(scorer: FakeScorer, max_depth: int) -> dict[tuple[int, ...], float]:
    found, level = {}, {(): 0.0}
    for _ in range(max_depth):
        level = {(*path, t): score + p for path, score in level.items() for t, p in scorer.law(path)}
        found |= level
    return found


def assert_well_formed(tree, budget: int, available: int) -> None:
    parents, scores = tree.parents.tolist(), scores_of(tree)
    assert tree.width == budget + 1
    assert tree.size == min(budget, available) + 1
    assert all(0 <= parents[i] < i for i in range(1, tree.size))
    assert all(scores[i] <= scores[parents[i]] for i in range(1, tree.size))
    assert len({path_of(tree, i) for i in range(tree.size)}) == tree.size


grids = given(
    seed=st.integers(0, 10_000),
    children=st.integers(1, 4),
    max_depth=st.integers(1, 4),
    budget=st.integers(0, 40),
    width=st.integers(1, 12),
)


@grids
def test_width_one_takes_the_best_paths_in_order(seed, children, max_depth, budget, width):
    scorer = FakeScorer(seed, children)
    tree = grow_tree(5, scorer, budget=budget, expansion_width=1, max_depth=max_depth)
    paths = all_paths(scorer, max_depth)
    expected = sorted(paths, key=lambda path: -paths[path])[:budget]
    assert [path_of(tree, node) for node in range(1, tree.size)] == expected
    assert_well_formed(tree, budget, len(paths))


def select_then_expand(scorer: FakeScorer, budget: int, width: int, max_depth: int) -> list[tuple[int, ...]]:
    """The definition on plain lists: sort the whole frontier, take a batch, then expand that batch."""
    placed, batch, frontier = [], [((), 0.0)], []
    for call in range(math.ceil(budget / width)):
        frontier += [((*path, t), score + p) for path, score in batch for t, p in scorer.law(path)]
        frontier.sort(key=lambda entry: -entry[1])
        take = width if call + 1 < math.ceil(budget / width) else budget - len(placed)
        taken, frontier = frontier[:take], frontier[take:]
        placed += [path for path, _ in taken]
        batch = [entry for entry in taken if len(entry[0]) < max_depth]
    return placed


@grids
def test_wider_batches_select_then_expand(seed, children, max_depth, budget, width):
    scorer = FakeScorer(seed, children)
    tree = grow_tree(5, scorer, budget=budget, expansion_width=width, max_depth=max_depth)
    assert [path_of(tree, node) for node in range(1, tree.size)] == select_then_expand(scorer, budget, width, max_depth)
    assert_well_formed(tree, tree.width - 1, tree.size - 1)


@grids
def test_calls_and_batches_are_bounded(seed, children, max_depth, budget, width):
    scorer = FakeScorer(seed, children)
    tree = grow_tree(5, scorer, budget=budget, expansion_width=width, max_depth=max_depth)
    assert len(scorer.batches) <= math.ceil(budget / width)
    assert all(len(batch) <= width for batch in scorer.batches)
    expanded = [slot for batch in scorer.batches for slot in batch]
    assert expanded == sorted(set(expanded))
    assert all(tree.depths[slot] < max_depth for slot in expanded)


@pytest.mark.parametrize(("budget", "width"), [(16, 1), (32, 2), (64, 4), (128, 8), (256, 16), (7, 3), (5, 9)])
def test_a_large_pool_fills_the_budget_in_exactly_so_many_calls(budget, width):
    scorer = FakeScorer(1, 8)
    tree = grow_tree(5, scorer, budget=budget, expansion_width=width, max_depth=15)
    assert tree.size == budget + 1
    assert len(scorer.batches) == math.ceil(budget / width)
    assert scorer.batches[0] == [0]


def test_equal_scores_go_to_the_older_entry():
    def two_even_children(nodes):
        return [[1, 2]] * len(nodes), [[-1.0, -1.0]] * len(nodes)

    tree = grow_tree(5, two_even_children, budget=6, expansion_width=1, max_depth=3)
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2]
