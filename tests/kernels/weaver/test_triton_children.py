"""Child selection against best_children, with exact ties, candidates at -inf, and nodes that are not there."""

import math

import pytest
import torch

from kernels.weaver.candidates import best_children
from kernels.weaver.triton_children import Pool, publish_children
from kernels.weaver.triton_frontier import TreeState

VOCAB, DEPTHS = 50, 3
BATCH, DEPTH_OF = [4, -1, 0, 2], [0, 1, 2, 1, 1]


def make_state(children: int, device: torch.device) -> TreeState:
    """A tree of five placed nodes; their entries hold values that stay where nothing is published."""
    budget = len(DEPTH_OF) * children
    state = TreeState.allocate(budget=budget, width=1, max_depth=DEPTHS, children=children, device=device)
    state.depths[: len(DEPTH_OF)] = torch.tensor(DEPTH_OF, dtype=torch.int32)
    state.scores[: len(DEPTH_OF)] = -torch.arange(len(DEPTH_OF), dtype=torch.float64) / 3.0
    for entries, value in ((state.entry_scores, 5.0), (state.entry_tokens, 99), (state.entry_edges, 5.0)):
        entries.fill_(value)
    return state


def make_pool(size: int, draw, device: torch.device) -> Pool:
    ids = torch.stack([torch.randperm(VOCAB)[:size] for _ in range(DEPTHS)])
    return Pool(ids.to(device), draw(DEPTHS, size).sort(dim=-1, descending=True).values.to(device))


def publish(pool: Pool, queries: torch.Tensor, head: torch.Tensor, children: int, device: torch.device) -> TreeState:
    state = make_state(children, device)
    batch = torch.tensor(BATCH, dtype=torch.int32, device=device)
    arguments = {"queries": queries.to(device), "residual_head": head.to(device), "pool": pool, "state": state}
    publish_children(**arguments, batch=batch, children=children)
    return state


def assert_published(state: TreeState, pool: Pool, queries: torch.Tensor, head: torch.Tensor, children: int) -> None:
    """Each node's entries are best_children of its logits in fp64, rounded to fp32; all other entries are untouched."""
    entry = 0
    for slot, depth in enumerate(DEPTH_OF):
        entries = slice(entry, entry + children)
        scores, tokens, edges = (part[entries].cpu() for part in state[-3:])
        entry += children
        if slot not in BATCH:
            assert all(part.eq(value).all() for part, value in ((scores, 5), (tokens, 99), (edges, 5)))
            continue
        ids, marginals = pool.ids[depth].cpu(), pool.logits[depth].cpu()
        logits = marginals.double() + head[ids].double() @ queries[BATCH.index(slot)].double()
        indices, logprobs = best_children(logits.float()[None], children)
        drafted = logits[indices[0]] > -math.inf
        assert scores.isfinite().tolist() == drafted.tolist()
        assert tokens[drafted].tolist() == ids[indices[0]][drafted].tolist()
        torch.testing.assert_close(edges[drafted], logprobs[0][drafted], rtol=0, atol=1e-5)
        assert torch.equal(scores[drafted], -slot / 3.0 + edges[drafted].double())


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("size", "children", "rank"), [(16, 4, 32), (13, 8, 24), (40, 3, 600), (5, 1, 16)])
@pytest.mark.parametrize("draw", [torch.randn, integers], ids=["random", "ties"])
def test_children_are_the_best_of_the_pool(device, poisoned, draw, size, children, rank, dtype):
    """Integers make every logit exact, so that their order is that of the ties alone; the fp32 draw has none."""
    queries, head = draw(len(BATCH), rank).to(dtype), (draw(VOCAB, rank) / rank).to(dtype)
    if draw is integers:
        head = (head * rank).round()
    pool = make_pool(size, draw, device)
    state = publish(pool, queries, head, children, device)
    assert_published(state, pool, queries, head, children)


def test_equal_logits_go_by_the_pools_order(device):
    queries, head = torch.zeros(len(BATCH), 16), torch.randn(VOCAB, 16)
    pool = make_pool(12, lambda *shape: torch.zeros(shape), device)
    pool.logits[:, 1::2] = -0.0
    state = publish(pool, queries, head, 5, device)
    for slot in (0, 2, 4):
        assert state.entry_tokens[slot * 5 : slot * 5 + 5].tolist() == pool.ids[DEPTH_OF[slot], :5].tolist()


@pytest.mark.parametrize("finite", [0, 1, 3])
def test_candidates_at_minus_infinity_are_no_children(device, poisoned, finite):
    queries, head = torch.randn(len(BATCH), 16), torch.randn(VOCAB, 16)
    pool = make_pool(12, torch.randn, device)
    pool.logits[:, finite:] = -math.inf
    state = publish(pool, queries, head, 5, device)
    assert_published(state, pool, queries, head, 5)
    assert state.entry_scores[:5].isfinite().sum() == finite


def test_a_certain_child_never_gains_from_rounding(device):
    pool = make_pool(16, lambda *shape: torch.full(shape, -100.0), device)
    pool.logits[:, 0] = torch.rand(DEPTHS) * 1000
    state = publish(pool, torch.zeros(len(BATCH), 16), torch.zeros(VOCAB, 16), 2, device)
    assert all((state.entry_edges[slot * 2 : slot * 2 + 2] <= 0).all() for slot in (0, 2, 4))
