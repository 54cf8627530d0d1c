"""Best-first growth of a draft tree in batches: the algorithm alone, with any scorer (arXiv 2607.06763, section 3)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfm_bench.drafting.stopping import ThetaStop
from tfm_bench.tree import TokenTree


class Node(NamedTuple):
    """A placed node; `slot` is its row in the tree."""

    slot: int
    token: int
    parent: int
    depth: int


Children = tuple[Sequence[Sequence[int]], Sequence[Sequence[float]]]
Expand = Callable[[list[Node]], Children]


def grow_tree(
    anchor: int,
    expand: Expand,
    *,
    budget: int,
    expansion_width: int,
    max_depth: int,
    round_ms: Sequence[float] | None = None,
) -> TokenTree:
    """Tree of `budget` nodes under the anchor, grown in at most ceil(budget / expansion_width) calls of `expand`.

    expand(nodes) returns, per node, the tokens of its children and their log-probabilities, best first; an edge of
    -inf is no child. A node's score is the sum of its edges. Each call is followed by taking the `expansion_width`
    best entries of the frontier, equal scores by older entry; what the last call leaves to fill is taken at once and
    never expanded. Fewer nodes than `budget` come out only where the frontier runs dry; the tree is then padded.

    round_ms [budget + 1]: growth ends where the nodes of a call no longer pay (see stopping); they are dropped, though
    the call has been made, and the tree has no padding.
    """
    nodes, scores, edges = [Node(0, anchor, -1, 0)], [0.0], [0.0]
    frontier: list[tuple[float, int, Node, float]] = []
    batch, entries = nodes[:1], 0
    stop = None if round_ms is None else ThetaStop(round_ms)
    calls = math.ceil(budget / expansion_width)
    for call in range(1, calls + 1):
        for node, tokens, logprobs in zip(batch, *(expand(batch) if batch else ((), ())), strict=True):
            for token, edge in zip(tokens, logprobs, strict=True):
                if math.isfinite(edge):
                    child = Node(-1, token, node.slot, node.depth + 1)
                    heapq.heappush(frontier, (-(scores[node.slot] + edge), entries, child, edge))
                    entries += 1
        wanted = expansion_width if call < calls else budget + 1 - len(nodes)
        batch, before = [], len(nodes)
        for _ in range(min(wanted, len(frontier))):
            negative_score, _, child, edge = heapq.heappop(frontier)
            nodes.append(child._replace(slot=len(nodes)))
            scores.append(-negative_score)
            edges.append(edge)
            if child.depth < max_depth:
                batch.append(nodes[-1])
        if stop is not None and not stop.pays(scores[before:]):
            nodes, edges = nodes[:before], edges[:before]
            break
    width = budget + 1 if stop is None else len(nodes)
    return TokenTree.from_lists([n.token for n in nodes], [n.parent for n in nodes], edges, width)
