"""DDTree: the tree that maximises expected acceptance if depths were independent (arXiv 2604.12989)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tfm_bench.drafting.stopping import ThetaStop
from tfm_bench.models.device import on_host
from tfm_bench.tree import TokenTree


def build_ddtree(anchor: int, draft_logits: Tensor, budget: int, round_ms: Sequence[float] | None = None) -> TokenTree:
    """The `budget` most probable token paths under the product of the drafter's marginals, as one tree.

    anchor: last emitted token; draft_logits [D, V], row d for depth d + 1; budget: draft nodes, anchor excluded.
    Returns a tree of verify width budget + 1 in order of non-increasing path probability, padded where fewer than
    `budget` paths exist. Marginals are the softmax at temperature 1 over the whole vocabulary, cut to the best
    min(budget, V) tokens per depth. round_ms [budget + 1]: growth ends where a node no longer pays (see stopping), and
    the tree has no padding. Raises ValueError for a negative budget and for logits that are no distribution.
    Source: arXiv 2604.12989, tree construction.
    """
    if budget < 0:
        raise ValueError(f"budget is {budget}; a draft tree has 0 nodes or more")
    if budget == 0 or draft_logits.shape[0] == 0:
        return TokenTree.from_lists([anchor], [-1], [0.0], width=budget + 1)
    ids, logprobs = rank_tokens(draft_logits, min(budget, draft_logits.shape[1]))
    if any(math.isnan(row[0]) for row in logprobs):
        raise ValueError("draft logits are no distribution: they hold NaN, +inf or a row of -inf alone")
    stop = None if round_ms is None else ThetaStop(round_ms)
    return _assemble(anchor, ids, logprobs, budget, stop)


def rank_tokens(draft_logits: Tensor, k: int) -> tuple[list[list[int]], list[list[float]]]:
    """Token ids [D, k] of the k largest logits of each row of [D, V], and their log-probabilities.

    Largest first, equal logits by token id. Below the first row only the first k - 1 ranks are settled among equals: a
    tree of k nodes cannot reach rank k - 1 there, since each node needs its lower-ranked siblings and its parent in the
    tree. Waits for a GPU once, and again where fp32 logits are equal; bf16 ones nearly always are somewhere.
    """
    logits = draft_logits.float()
    logprobs = logits.log_softmax(-1)
    if draft_logits.dtype is torch.float32:
        values, ids = torch.topk(logits, k)
        # topk promises no order among equals, neither inside the cut nor across it.
        across_the_cut = (logits[0] >= values[0, -1]).sum() > k
        equals = (values[:, 1:] == values[:, :-1]).any() | across_the_cut
        tokens, edges, some_equal = on_host(ids, logprobs.gather(-1, ids), equals)
        if not some_equal:
            return tokens.long().tolist(), edges.tolist()
    ids = _distinct_keys(logits).topk(k).indices
    tokens, edges = on_host(ids, logprobs.gather(-1, ids))
    return tokens.long().tolist(), edges.tolist()


def _distinct_keys(logits: Tensor) -> Tensor:
    """[D, V] int64 in the order of fp32 logits, lower ids above equal logits: IEEE bits above, token id below."""
    bits = (logits + 0.0).view(torch.int32).long()  # adding 0.0 makes -0.0 equal to 0.0 in bits too
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered * 2**32 - torch.arange(logits.shape[1], device=logits.device)


def best_first(logprobs: list[list[float]], budget: int) -> Iterator[tuple[int, int, int]]:
    """Yields up to `budget` nodes (index of the parent node, row, rank), best path first; node 0 is the anchor.

    logprobs: per depth, at most 0 and non-increasing by rank. A path's score is the fp64 sum of its edges from the
    anchor down; equal scores go to the lexicographically smallest tuple of ranks.
    """
    depths, width = len(logprobs), len(logprobs[0])
    # Entries sort by (-score, ranks); no two share their ranks, so the last two fields never decide.
    heap: list[tuple[float, tuple[int, ...], int, float]] = [(-logprobs[0][0], (0,), 0, 0.0)]
    for node in range(1, budget + 1):
        if not heap:
            return
        cost, ranks, parent, parent_cost = heap[0]
        row, rank = len(ranks) - 1, ranks[-1]
        yield parent, row, rank
        if rank + 1 < width:
            sibling_cost = parent_cost - logprobs[row][rank + 1]
            heapq.heapreplace(heap, (sibling_cost, (*ranks[:-1], rank + 1), parent, parent_cost))
        else:
            heapq.heappop(heap)
        if row + 1 < depths:
            heapq.heappush(heap, (cost - logprobs[row + 1][0], (*ranks, 0), node, cost))


def _assemble(
    anchor: int, ids: list[list[int]], logprobs: list[list[float]], budget: int, stop: ThetaStop | None
) -> TokenTree:
    tokens, parents, edges, scores = [anchor], [-1], [0.0], [0.0]
    for parent, row, rank in best_first(logprobs, budget):
        scores.append(scores[parent] + logprobs[row][rank])
        if stop is not None and not stop.pays(scores[-1:]):
            break
        tokens.append(ids[row][rank])
        parents.append(parent)
        edges.append(logprobs[row][rank])
    return TokenTree.from_lists(tokens, parents, edges, width=len(tokens) if stop else budget + 1)
