"""When a draft tree is large enough: the theta rule of CaDDTree (arXiv 2606.01813) over a cost curve.

theta(n) = (1 + p_1 + ... + p_n) / round_ms(n), tokens per millisecond that a tree of n drafts promises: p_i is the
probability that the drafting model gives the path to node i, round_ms(n) what a round with n drafts takes. Growth stops
at the first n where theta does not increase. Where the p_i do not increase and the curve is convex, as `convex_fit`
makes it, theta has a single peak, and what is kept is the best of all prefixes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from tfm_bench.tree import TokenTree


class ThetaStop:
    """The rule while a tree grows. round_ms [budget + 1]: milliseconds of a round by its drafts."""

    def __init__(self, round_ms: Sequence[float]) -> None:
        self._round_ms = round_ms
        self._nodes, self._emitted, self._theta = 0, 1.0, 1.0 / round_ms[0]

    def pays(self, path_logprobs: Sequence[float]) -> bool:
        """Whether theta increases with these nodes; then they belong to the tree, and the next call adds to them."""
        nodes = self._nodes + len(path_logprobs)
        emitted = self._emitted
        for logprob in path_logprobs:
            emitted += math.exp(logprob)
        theta = emitted / self._round_ms[nodes]
        if theta <= self._theta:
            return False
        self._nodes, self._emitted, self._theta = nodes, emitted, theta
        return True


def cut(tree: TokenTree, round_ms: Sequence[float], step: int) -> TokenTree:
    """A tree that was grown whole, as far as growth in batches of `step` nodes would have come; without padding.

    Where a frontier held fewer than `step` nodes, batches of growth end elsewhere; the rule is the same.
    """
    stop, scores, kept = ThetaStop(round_ms), [0.0], 1
    parents, edges = tree.parents.tolist(), tree.edge_logprobs.double().tolist()
    for node in range(1, tree.size):
        scores.append(scores[parents[node]] + edges[node])
    while kept < tree.size and stop.pays(scores[kept : kept + step]):
        kept = min(kept + step, tree.size)
    return first_nodes(tree, kept)


def first_nodes(tree: TokenTree, size: int) -> TokenTree:
    """The first `size` nodes, which in topological order are a tree; without padding."""
    parts = {name: getattr(tree, name)[:size] for name in ("tokens", "parents", "edge_logprobs")}
    return replace(tree, **parts, size=size)


def convex_fit(nodes: Sequence[int], milliseconds: Sequence[float]) -> list[float]:
    """The non-decreasing convex curve through increasing `nodes` that is closest to `milliseconds` by least squares.

    Piecewise linear between the nodes: a level, a first slope and increments of the slope, none of them negative.
    """
    at = np.asarray(nodes, dtype=np.float64)
    rises = [np.maximum(at - knot, 0) for knot in at[:-1]]
    basis = np.stack([np.ones_like(at), *rises], axis=1)
    # Columns of equal length, or the solver's tolerance is one for milliseconds and another for their slopes.
    lengths = np.linalg.norm(basis, axis=0)
    weights, _ = nnls(basis / lengths, np.asarray(milliseconds, dtype=np.float64))
    return [float(value) for value in basis @ (weights / lengths)]


def round_costs(nodes: Sequence[int], milliseconds: Sequence[float], budget: int) -> list[float]:
    """[budget + 1] milliseconds of a round by its drafts: the convex fit, and straight lines between its nodes.

    Fewer drafts than the fewest measured are charged as those.
    """
    return [float(value) for value in np.interp(range(budget + 1), nodes, convex_fit(nodes, milliseconds))]
