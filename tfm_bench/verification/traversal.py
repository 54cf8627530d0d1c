"""Traversal verification (arXiv 2505.12398, Algorithm 3): leaves are tried before their parents.

Exact in law: what a round emits, continued by the target, has the target's own law; but not token by token the text
of plain decoding. The draft's law at a parent is defined as the softmax of its children's edge log-probabilities, so
the children are all of its support, and trying them in an order drawn without replacement is sampling from that law.

`FIXED_ORDER` and `NO_RESIDUAL` are two samplers that were used for it and are not exact: children in the order of
their rows, and a target that is not reduced after a rejection. They are here to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfm_bench.tree import TokenTree
from tfm_bench.verification.sample_match import Acceptance, KeyedNoise, accept

Array = NDArray[np.float64]
# Second-highest word of the Philox counter: the target's own draws use 0 and never get there.
STREAM = 1


class Choices(Protocol):
    """Where the randomness of a walk comes from."""

    def pick(self, weights: Sequence[float] | Array) -> int:
        """An index, each with a probability in proportion to its weight."""


class Sampler(NamedTuple):
    """What of Traversal verification is done. random_order: children in random order, not in that of their rows;
    residual: after a rejection the target is reduced by what the draft could have proposed.
    """

    random_order: bool
    residual: bool


EXACT = Sampler(random_order=True, residual=True)
FIXED_ORDER = Sampler(random_order=False, residual=True)
NO_RESIDUAL = Sampler(random_order=True, residual=False)


class KeyedChoices:
    """Uniform draws addressed by (seed, position of the anchor), of another stream than KeyedNoise."""

    def __init__(self, seed: int, position: int) -> None:
        self._draws = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, STREAM, position]))

    def pick(self, weights: Sequence[float] | Array) -> int:
        """Weights of 0 are never picked: the first sum beyond a draw is one that grew."""
        sums = np.cumsum(weights)
        return int(np.searchsorted(sums, self._draws.random() * sums[-1], side="right"))


class TargetRows:
    """The target's law at each node of a tree, in fp64. Only what is asked for is copied from the device."""

    def __init__(self, tree: TokenTree, logits: Tensor, temperature: float) -> None:
        self.tree, self._scores = tree, logits[: tree.size].double() / temperature
        self._log_sums = self._scores.logsumexp(-1)
        parents, tokens = tree.parents[1 : tree.size], tree.tokens[1 : tree.size]
        at = (parents.to(logits.device), tokens.to(logits.device))
        edges = (self._scores[at] - self._log_sums[at[0]]).exp()
        self.edge_probability: list[float] = [1.0, *edges.tolist()]
        if not bool(self._log_sums.isfinite().all()):
            raise FloatingPointError("target logits hold NaN or infinity")

    def row(self, node: int) -> Array:
        """[V] probabilities after a node."""
        return (self._scores[node] - self._log_sums[node]).exp().cpu().numpy()


@dataclass
class NodeState:
    """One node while its subtree is tried. accept_rate: of the node as a leaf, after what was rejected below it.

    The target's law at the node is kept as its values at the children, `target`, and the factor `tail` on all other
    values of the original law: a rejection changes nothing else.
    """

    node: int
    accept_rate: float
    children: list[int]
    draft_logprobs: list[float]
    target: dict[int, float]
    tail: float = 1.0
    tail_mass: float = field(init=False)

    def __post_init__(self) -> None:
        self.tail_mass = max(0.0, 1.0 - sum(self.target.values()))

    def draft(self) -> Array:
        """The draft's law over the children that were not rejected: what is left of it is renormalised."""
        logprobs = np.array(self.draft_logprobs)
        weights = np.exp(logprobs - logprobs.max())
        return weights / weights.sum()

    def reject(self, child: int, sampler: Sampler) -> None:
        """The child and its subtree were rejected."""
        rate, draft = self.accept_rate, dict(zip(self.children, self.draft().tolist(), strict=True))
        left = {c: max(rate * p - draft.get(c, 0.0), 0.0) for c, p in self.target.items()}
        mass = sum(left.values()) + rate * self.tail * self.tail_mass
        if mass > 0:  # else the draft is the target, and what follows is never reached but by rounding
            self.accept_rate = mass / (mass + (1 - rate))
            if sampler.residual:
                self.target = {c: value / mass for c, value in left.items()}
                self.tail *= rate / mass
        else:
            self.accept_rate = 0.0
        at = self.children.index(child)
        del self.children[at], self.draft_logprobs[at]

    def row(self, original: Array, tokens: Sequence[int]) -> Array:
        """[V] the target's law as it stands. original: [V] what it was."""
        row = original * self.tail
        for child, probability in self.target.items():
            row[tokens[child]] = probability
        return row


class Walk(NamedTuple):
    """path: accepted nodes from the anchor (index 0) down; law [V]: of the bonus token after them."""

    path: list[int]
    law: Array


def walk(tree: TokenTree, rows: TargetRows, sampler: Sampler, choices: Choices) -> Walk:
    """Try the nodes of a tree, each after its whole subtree, until one is accepted; the anchor always is.

    Depth first is the order of Algorithm 3: it goes from the anchor to the first leaf anew after every rejection, but
    the order of children is drawn once, so it comes back to where it was.
    """
    children, tokens = _children(tree), tree.tokens.tolist()
    edges = tree.edge_logprobs.double().tolist()

    def enter(node: int, accept_rate: float) -> NodeState:
        below = children[node]
        target = {child: rows.edge_probability[child] for child in below}
        return NodeState(node, accept_rate, list(below), [edges[child] for child in below], target)

    stack = [enter(0, 1.0)]
    while True:
        state = stack[-1]
        if state.children:
            draft = state.draft()
            at = choices.pick(draft) if sampler.random_order else int(np.argmax(draft > 0))
            child = state.children[at]
            stack.append(enter(child, min(1.0, state.accept_rate * state.target[child] / float(draft[at]))))
        elif len(stack) == 1 or _coin(state.accept_rate, choices):
            return Walk([s.node for s in stack], state.row(rows.row(state.node), tokens))
        else:
            stack.pop()
            stack[-1].reject(state.node, sampler)


def _children(tree: TokenTree) -> list[list[int]]:
    """Per node the children that the draft could have proposed, by row."""
    possible = torch.isfinite(tree.edge_logprobs).tolist()
    return [[child for child in below.values() if possible[child]] for below in tree.children]


def _coin(probability: float, choices: Choices) -> bool:
    return probability >= 1 or (probability > 0 and choices.pick((probability, 1 - probability)) == 0)


def traverse(
    tree: TokenTree, logits: Tensor, *, temperature: float, noise: KeyedNoise, start: int, sampler: Sampler = EXACT
) -> Acceptance:
    """Path and bonus by Traversal verification; arguments as in sample_match.accept.

    Draws are keyed by (seed, start) and independent of the target's own at the same seed. At temperature 0 the target
    is a point mass: every node off its argmax has acceptance rate 0, so that greedy matching is the same rule.
    """
    if temperature == 0:
        return accept(tree, logits, temperature=0.0, noise=noise, start=start)
    choices = KeyedChoices(noise.seed, start)
    path, law = walk(tree, TargetRows(tree, logits, temperature), sampler, choices)
    return Acceptance(path, choices.pick(law))
