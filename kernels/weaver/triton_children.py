"""Children of a node batch: scores over each depth's candidate pool, the best of them into the frontier, in Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.weaver.triton_frontier import PUBLISHED_CHILDREN, TreeState
from kernels.weaver.triton_norm import DTYPES, PUBLISHED_RANK

PUBLISHED_POOL = 512
# 16 candidates a program make 128 programs for four nodes and a pool of 512: about one per multiprocessor.
CANDIDATES, BLOCK_RANK = 16, 512


class Pool(NamedTuple):
    """The drafter's candidates by depth, best marginal first: ids [D, C] int64, logits [D, C] fp32; contiguous."""

    ids: Tensor
    logits: Tensor


def publish_children(
    *, queries: Tensor, residual_head: Tensor, pool: Pool, state: TreeState, batch: Tensor, children: int
) -> None:
    """Write the `children` best children of each node in `batch` to its entries of the frontier, best first.

    queries [W, R] and residual_head [V, R], contiguous; batch [W] int32 slots, negative ones are skipped. A child's
    logit is the pool's plus residual row times query, in fp32; equal logits go by better marginal, then by lower id,
    as the pool lists them. Edges are log-probabilities over the pool; a logit of -inf is no child.
    """
    nodes, rank, size = batch.shape[0], queries.shape[1], pool.ids.shape[1]
    scores = torch.empty(nodes, size, device=queries.device)
    grid = (nodes, triton.cdiv(size, CANDIDATES))
    scored = (queries, residual_head, *pool, state.depths, batch, scores)
    _score_pool_kernel[grid](*scored, POOL=size, **_tile(rank), num_warps=4)
    entries = (state.entry_scores, state.entry_tokens, state.entry_edges)
    published = (scores, pool.ids, state.depths, batch, state.scores, *entries)
    block = triton.next_power_of_2(size)
    _publish_children_kernel[(nodes,)](*published, POOL=size, BLOCK=block, CHILDREN=children, num_warps=4)


def _tile(rank: int) -> dict[str, object]:
    return {"RANK": rank, "ROWS": CANDIDATES, "BLOCK": min(BLOCK_RANK, triton.next_power_of_2(rank))}


@triton.jit
def _score_pool_kernel(
    queries: tl.tensor,
    head: tl.tensor,
    pool_ids: tl.tensor,
    pool_logits: tl.tensor,
    depths: tl.tensor,
    batch: tl.tensor,
    scores: tl.tensor,  # [W, POOL] fp32
    POOL: tl.constexpr,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    node = tl.program_id(0)
    slot = tl.load(batch + node)
    if slot < 0:
        return
    candidate = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = candidate < POOL
    listed = tl.load(depths + slot) * POOL + candidate
    rows = head + tl.load(pool_ids + listed, inside, 0)[:, None] * RANK
    products = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, RANK, BLOCK):
        column = start + tl.arange(0, BLOCK)
        query = tl.load(queries + node * RANK + column, column < RANK, 0.0).to(tl.float32)
        tile = tl.load(rows + column[None, :], inside[:, None] & (column < RANK)[None, :], 0.0)
        products += tile.to(tl.float32) * query[None, :]
    logits = tl.load(pool_logits + listed, inside, 0.0) + tl.sum(products, 1)
    tl.store(scores + node * POOL + candidate, logits, inside)


@triton.jit
def _publish_children_kernel(
    scores: tl.tensor,
    pool_ids: tl.tensor,
    depths: tl.tensor,
    batch: tl.tensor,
    node_scores: tl.tensor,
    entry_scores: tl.tensor,
    entry_tokens: tl.tensor,
    entry_edges: tl.tensor,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
    CHILDREN: tl.constexpr,
) -> None:
    node = tl.program_id(0)
    slot = tl.load(batch + node)
    if slot < 0:
        return
    candidate = tl.arange(0, BLOCK)
    logits = tl.load(scores + node * POOL + candidate, candidate < POOL, float("-inf"))
    ids = pool_ids + tl.load(depths + slot) * POOL
    parent_score = tl.load(node_scores + slot)
    best = tl.max(logits, 0)
    # A pool at -inf throughout has no children; its sum must not become NaN on the way.
    shift = tl.where(best > float("-inf"), best, 0.0)
    normaliser = shift + tl.log(tl.sum(tl.exp(logits - shift), 0))
    for rank in range(CHILDREN):
        top, index = tl.max(logits, 0, return_indices=True)
        logits = tl.where(candidate == index, float("-inf"), logits)
        drafted = top > float("-inf")
        # Never above 0, so that a child's score cannot exceed its parent's by rounding.
        edge = tl.minimum(tl.where(drafted, top - normaliser, 0.0), 0.0)
        score = tl.where(drafted, parent_score + edge.to(tl.float64), float("-inf"))
        entry = slot * CHILDREN + rank
        tl.store(entry_scores + entry, score)
        tl.store(entry_tokens + entry, tl.load(ids + index, drafted, 0))
        tl.store(entry_edges + entry, edge)


def specialisations() -> list[Specialisation]:
    """Both kernels for the published rank, pool and number of children."""
    listed = {"pool_ids": "*i64:16", "depths": "*i32:16", "batch": "*i32:16", "scores": "*fp32:16"}
    scored = {**listed, "pool_logits": "*fp32:16"}
    entries = {"node_scores": "*fp64:16", "entry_scores": "*fp64:16"}
    entries |= {"entry_tokens": "*i64:16", "entry_edges": "*fp32:16"}
    scoring = [
        Specialisation(
            name=f"weaver_score_pool_{dtype}",
            kernel=_score_pool_kernel,
            signature={**scored, "queries": f"*{dtype}:16", "head": f"*{dtype}:16"},
            constexprs={"POOL": PUBLISHED_POOL, **_tile(PUBLISHED_RANK)},
        )
        for dtype in DTYPES
    ]
    sizes: dict[str, object] = {"POOL": PUBLISHED_POOL, "BLOCK": PUBLISHED_POOL, "CHILDREN": PUBLISHED_CHILDREN}
    return [
        *scoring,
        Specialisation("weaver_publish_children", _publish_children_kernel, {**listed, **entries}, sizes),
    ]
