"""Frontier selection against the heap of best_first.grow_tree, and against a sort of all entries."""

import math

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from kernels.weaver.triton_frontier import TreeState, plant, select_frontier
from tfm_bench.drafting.best_first import grow_tree

# Few values: most scores tie, and -inf is no child.
EDGES = st.sampled_from([-0.25, -0.5, -1.0, -0.1, 0.0, -math.inf])
TRIED = hypothesis.settings(max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])


class FixedScorer:
    """Child r of slot s has a token of its own and an edge from a list; usable by grow_tree and on the device."""

    def __init__(self, edges: list[float], children: int) -> None:
        self.edges, self.children = [float(torch.tensor(edge)) for edge in edges], children

    def of_slot(self, slot: int) -> tuple[list[int], list[float]]:
        entries = range(slot * self.children, (slot + 1) * self.children)
        return [100 + entry for entry in entries], [self.edges[entry % len(self.edges)] for entry in entries]

    def __call__(self, nodes):
        return zip(*(self.of_slot(node.slot) for node in nodes), strict=True)

    def publish(self, state: TreeState, slot: int) -> None:
        tokens, edges = self.of_slot(slot)
        entries = slice(slot * self.children, (slot + 1) * self.children)
        state.entry_tokens[entries] = torch.tensor(tokens)
        state.entry_edges[entries] = torch.tensor(edges)
        state.entry_scores[entries] = state.scores[slot] + torch.tensor(edges, dtype=torch.float64)


def grow_on_device(scorer, *, budget: int, width: int, max_depth: int, device: torch.device) -> TreeState:
    """As TritonWeaverTree, with a scorer on the host in place of Weaver."""
    sizes = {"budget": budget, "width": width, "max_depth": max_depth, "children": scorer.children}
    state = TreeState.allocate(**sizes, device=device)
    plant(state, torch.tensor([7], device=device))
    calls = math.ceil(budget / width)
    for call in range(1, calls + 1):
        for slot in state.batch.tolist():
            if slot >= 0:
                scorer.publish(state, slot)
        select_frontier(state, children=scorer.children, last=call == calls)
    return state


@TRIED
@hypothesis.given(
    edges=st.lists(EDGES, min_size=1, max_size=40),
    children=st.integers(1, 5),
    budget=st.integers(0, 14),
    width=st.integers(1, 9),
    max_depth=st.integers(1, 4),
)
@hypothesis.example(edges=[-0.5], children=2, budget=14, width=9, max_depth=2)  # wider than the first frontier
@hypothesis.example(edges=[-0.5], children=2, budget=6, width=3, max_depth=4)  # the last batch makes up for the first
@hypothesis.example(edges=[-0.5, -math.inf], children=2, budget=9, width=2, max_depth=4)  # one child each
@hypothesis.example(edges=[-math.inf], children=3, budget=5, width=2, max_depth=4)  # nothing but the anchor
def test_trees_are_those_of_the_heap(device, poisoned, edges, children, budget, width, max_depth):
    scorer = FixedScorer(edges, children)
    expected = grow_tree(7, scorer, budget=budget, expansion_width=width, max_depth=max_depth)
    state = grow_on_device(scorer, budget=budget, width=width, max_depth=max_depth, device=device)
    assert state.size.item() == expected.size
    assert state.tokens.tolist() == expected.tokens.tolist()
    assert state.parents.tolist() == expected.parents.tolist()
    assert state.edges.tolist() == expected.edge_logprobs.tolist()


@pytest.mark.parametrize("last", [False, True])
def test_one_selection_takes_the_best_and_removes_them(device, last):
    budget, width, children, placed = 20, 4, 3, 6
    state = TreeState.allocate(budget=budget, width=width, max_depth=5, children=children, device=device)
    plant(state, torch.tensor([7], device=device))
    state.size.fill_(placed)
    state.depths[:placed] = torch.arange(placed, dtype=torch.int32).clamp(max=4)
    state.paths[:placed] = torch.arange(5, dtype=torch.int32)
    state.entry_scores[: placed * children] = -torch.randint(6, (placed * children,)) / 4.0
    state.entry_tokens.copy_(torch.arange(len(state.entry_tokens)) + 1000)
    before = state.entry_scores.tolist()
    order = sorted(range(placed * children), key=lambda entry: (-before[entry], entry))
    taken = order[: budget + 1 - placed if last else width]
    select_frontier(state, children=children, last=last)
    end = placed + len(taken)
    assert state.size.item() == end
    assert (state.tokens[placed:end] - 1000).tolist() == taken
    assert state.parents[placed:end].tolist() == [entry // children for entry in taken]
    if not last:
        depths = [min(entry // children, 4) + 1 for entry in taken]
        assert state.depths[placed:end].tolist() == depths
        assert state.scores[placed:end].tolist() == [before[entry] for entry in taken]
        slots = list(range(placed, end))
        assert state.batch.tolist() == [slot if depth < 5 else -1 for slot, depth in zip(slots, depths, strict=True)]
        for slot, depth in zip(slots, depths, strict=True):
            assert state.paths[slot, : depth + 1].tolist() == [*range(depth), slot][:5]
        for entry in taken:
            before[entry] = -math.inf
        assert state.entry_scores.tolist() == before


def test_scores_add_up_in_double_precision(device):
    """In fp32 both scores round to -64, and the tie would go to the older entry."""
    state = TreeState.allocate(budget=2, width=1, max_depth=2, children=2, device=device)
    plant(state, torch.tensor([7], device=device))
    state.entry_tokens[:2] = torch.tensor([1, 2])
    state.entry_scores[:2] = torch.tensor([-64.000001, -64.0], dtype=torch.float64)
    select_frontier(state, children=2, last=False)
    assert state.tokens[1].item() == 2
