"""Traversal verification: its law by enumeration of the very code that samples, and that inexact samplers fail it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.tfm_bench.test_sample_match import ToyModel, two_levels
from tfm_bench.tree import TokenTree
from tfm_bench.verification.enumeration import outcomes
from tfm_bench.verification.rules import RULES
from tfm_bench.verification.sample_match import KeyedNoise, accept
from tfm_bench.verification.traversal import (
    EXACT,
    FIXED_ORDER,
    NO_RESIDUAL,
    KeyedChoices,
    Sampler,
    TargetRows,
    Walk,
    traverse,
    walk,
)

CONTEXT = (0, 1)


def random_tree(vocab: int, nodes: int, seed: int) -> TokenTree:
    """Siblings with distinct tokens, edges of any log-probability, now and then one that is impossible; padded."""
    rng = random.Random(seed)
    tokens, parents, edges = [CONTEXT[-1]], [-1], [0.0]
    taken = set()
    for _ in range(nodes):
        edge = (rng.randrange(len(tokens)), rng.randrange(vocab))
        if edge not in taken:
            taken.add(edge)
            parents.append(edge[0])
            tokens.append(edge[1])
            edges.append(float("-inf") if rng.random() < 0.05 else -4 * rng.random())
    return TokenTree.from_lists(tokens, parents, edges, width=nodes + 2)


def emitted_law(model: ToyModel, tree: TokenTree, temperature: float, sampler: Sampler, length: int) -> dict:
    """Law of the first `length` tokens of a round that the target continues, every random choice enumerated."""
    rows = TargetRows(tree, model.verify(tree, CONTEXT), temperature)
    law: Counter = Counter()
    for probability, (path, bonus_law) in outcomes(lambda choices: walk(tree, rows, sampler, choices)):
        drafts = tuple(int(tree.tokens[node]) for node in path[1:])
        for bonus in range(model.vocab):
            tokens = (*drafts, bonus)
            left = length - len(tokens)
            for continuation, share in model.law(CONTEXT + tokens, left, temperature).items():
                law[tokens + continuation] += probability * bonus_law[bonus] * share
    return law


def distance(model: ToyModel, tree: TokenTree, temperature: float, sampler: Sampler) -> float:
    """Largest difference between the law of what is emitted and the target's own law."""
    length = int(tree.depths[: tree.size].max()) + 1
    law = emitted_law(model, tree, temperature, sampler, length)
    expected = model.law(CONTEXT, length, temperature)
    assert set(law) <= set(expected)
    return max(abs(law[tokens] - probability) for tokens, probability in expected.items())


@settings(max_examples=60)
@given(
    vocab=st.integers(2, 4),
    nodes=st.integers(0, 6),
    seed=st.integers(0, 2**16),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_the_law_is_the_target_s(vocab, nodes, seed, temperature):
    tree = random_tree(vocab, nodes, seed)
    if int(tree.depths[: tree.size].max()) > 3:
        return
    assert distance(ToyModel(vocab, seed), tree, temperature, EXACT) < 1e-10


@pytest.mark.parametrize("sampler", [FIXED_ORDER, NO_RESIDUAL], ids=["fixed_order", "no_residual"])
@pytest.mark.parametrize("seed", range(3))
def test_inexact_samplers_fail_it(sampler, seed):
    assert distance(ToyModel(4, seed), two_levels(CONTEXT), 1.0, EXACT) < 1e-10
    assert distance(ToyModel(4, seed), two_levels(CONTEXT), 1.0, sampler) > 1e-3


@pytest.mark.parametrize("sampler", [FIXED_ORDER, NO_RESIDUAL], ids=["fixed_order", "no_residual"])
def test_a_draft_of_one_token_hides_what_is_inexact(sampler):
    """One child has no order, and a draft that is sure of a token is rejected into the rest of the target."""
    chain = TokenTree.from_lists([1, 2], [-1, 0], [0.0, -1.0], width=2)
    found = distance(ToyModel(4), chain, 1.0, sampler)
    assert found < 1e-10 if sampler.residual else found > 1e-3


def textbook(tree: TokenTree, rows: TargetRows, order: list[tuple[int, ...]]) -> Iterator[tuple[float, Walk]]:
    """Algorithm 3 as it is written, children in a given order: whole rows, from the anchor anew after a rejection.

    Yields (probability, outcome) over the coins.
    """
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    target = [rows.row(node) for node in range(tree.size)]
    draft = [np.zeros_like(row) for row in target]
    for node in range(1, tree.size):
        draft[parents[node]][tokens[node]] = np.exp(float(tree.edge_logprobs[node]))
    rate, active, reached = [1.0] * tree.size, set(range(tree.size)), 1.0
    while True:
        path = [0]
        while children := [child for child in order[path[-1]] if child in active]:
            node, token = path[-1], tokens[children[0]]
            draft[node] = draft[node] / draft[node].sum()
            if all(child in active for child in order[children[0]]):
                rate[children[0]] = min(1.0, rate[node] * target[node][token] / draft[node][token])
            path.append(children[0])
        leaf, above = path[-1], path[-2] if len(path) > 1 else None
        accepted = 1.0 if above is None else rate[leaf]
        yield reached * accepted, Walk(path, target[leaf])
        if above is None:
            return
        reached *= 1 - accepted
        residual = np.maximum(rate[above] * target[above] - draft[above], 0)
        mass = residual.sum()
        if mass:
            target[above] = residual / mass
            rate[above] = mass / (mass + 1 - rate[above])
        draft[above][tokens[leaf]] = 0
        active.discard(leaf)


def plackett_luce(tree: TokenTree, order: tuple[int, ...]) -> float:
    """Probability that children are drawn in this order without replacement."""
    weights = [np.exp(float(tree.edge_logprobs[child])) for child in order]
    return float(np.prod([weight / sum(weights[i:]) for i, weight in enumerate(weights)]))


@settings(max_examples=25)
@given(nodes=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_depth_first_is_algorithm_3(nodes, seed):
    """The same paths, with the same probabilities, and the same tokens after them."""
    model, drawn = ToyModel(4, seed), random_tree(4, nodes, seed)
    tree = TokenTree(drawn.tokens, drawn.parents, drawn.edge_logprobs.nan_to_num(neginf=-4.0), drawn.size)
    rows = TargetRows(tree, model.verify(tree, CONTEXT), 1.0)
    found, expected = Counter(), Counter()
    for probability, outcome in outcomes(lambda choices: walk(tree, rows, EXACT, choices)):
        for token, share in enumerate(outcome.law):
            found[tuple(outcome.path), token] += probability * share
    orders = [list(itertools.permutations(below.values())) for below in tree.children]
    for order in itertools.product(*orders):
        weight = np.prod([plackett_luce(tree, of_node) for of_node in order])
        for probability, outcome in textbook(tree, rows, list(order)):
            for token, share in enumerate(outcome.law):
                expected[tuple(outcome.path), token] += weight * probability * share
    assert max(abs(found[key] - expected[key]) for key in found | expected) < 1e-10


@settings(max_examples=25)
@given(nodes=st.integers(1, 7), seed=st.integers(0, 2**16))
def test_it_accepts_as_many_drafts_as_sample_match(nodes, seed):
    """Both accept a node with the probability that the target writes what leads to it: no exact rule can do more."""
    model, drawn = ToyModel(4, seed), random_tree(4, nodes, seed)
    tree = TokenTree(drawn.tokens, drawn.parents, drawn.edge_logprobs.nan_to_num(neginf=-4.0), drawn.size)
    rows = TargetRows(tree, model.verify(tree, CONTEXT), 1.0)
    accepted, written = Counter(), {0: 1.0}
    for probability, outcome in outcomes(lambda choices: walk(tree, rows, EXACT, choices)):
        for node in outcome.path:
            accepted[node] += probability
    for node in range(1, tree.size):
        written[node] = written[int(tree.parents[node])] * rows.edge_probability[node]
    assert accepted == pytest.approx(written, abs=1e-10)


@pytest.mark.parametrize("name", [name for name in RULES if name != "sample_match"])
def test_draws_follow_the_enumeration(name):
    model, tree, sampler = ToyModel(3, 2), two_levels(CONTEXT), RULES[name].accept.keywords["sampler"]
    logits = model.verify(tree, CONTEXT)
    rows = TargetRows(tree, logits, 0.8)
    expected: Counter = Counter()
    for probability, outcome in outcomes(lambda choices: walk(tree, rows, sampler, choices)):
        for token, share in enumerate(outcome.law):
            expected[*outcome.path, token] += probability * share
    draws, seen = 2000, Counter()
    for seed in range(draws):
        outcome = RULES[name].accept(tree, logits, temperature=0.8, noise=KeyedNoise(seed), start=7)
        seen[*outcome.path, outcome.bonus] += 1
    keys = [key for key, probability in expected.items() if probability > 0]
    assert set(seen) <= set(keys)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-12)
    frequent = [key for key in keys if expected[key] * draws >= 5]
    counts, wanted = [seen[key] for key in frequent], [float(expected[key] * draws) for key in frequent]
    if draws - sum(wanted) > 1e-6:
        counts, wanted = [*counts, draws - sum(counts)], [*wanted, draws - sum(wanted)]
    assert stats.chisquare(counts, wanted).pvalue > 1e-4


def test_draws_are_keyed_by_seed_and_position_and_apart_from_the_target_s():
    def drawn(seed, position):
        choices = KeyedChoices(seed, position)
        return [choices.pick([1.0] * 1000) for _ in range(8)]

    assert drawn(3, 10) == drawn(3, 10)
    assert len({tuple(drawn(seed, position)) for seed in range(4) for position in range(4)}) == 16
    pairs = [(KeyedNoise(0).gumbel(p, 1)[0].item(), KeyedChoices(0, p).pick([1.0] * 10_000)) for p in range(2000)]
    assert abs(stats.spearmanr(*zip(*pairs, strict=True)).statistic) < 0.08


def test_what_weighs_nothing_is_never_picked():
    assert {KeyedChoices(0, position).pick([0.0, 1e-300, 0.0]) for position in range(50)} == {1}


@pytest.mark.parametrize("seed", range(4))
def test_temperature_zero_is_greedy_matching(seed):
    """As the rule, and as the limit of the walk: a target that is a point mass accepts its argmax alone."""
    model, tree = ToyModel(4, seed), random_tree(4, 8, seed)
    logits = model.verify(tree, CONTEXT)
    greedy = accept(tree, logits, temperature=0.0, noise=KeyedNoise(0), start=3)
    assert traverse(tree, logits, temperature=0.0, noise=KeyedNoise(0), start=3) == greedy
    rows = TargetRows(tree, logits, 1e-4)
    for probability, outcome in outcomes(lambda choices: walk(tree, rows, EXACT, choices)):
        if probability > 1e-12:
            possible = [node for node in greedy.path if node == 0 or torch.isfinite(tree.edge_logprobs[node])]
            assert outcome.path == possible
            assert outcome.law.argmax() == (greedy.bonus if possible == greedy.path else tree.tokens[greedy.path[1]])


def test_an_impossible_draft_is_never_proposed():
    tree = TokenTree.from_lists([1, 0, 2], [-1, 0, 0], [0.0, float("-inf"), -1.0], width=3)
    rows = TargetRows(tree, ToyModel(3).verify(tree, CONTEXT), 1.0)
    assert {tuple(o.path) for _, o in outcomes(lambda c: walk(tree, rows, EXACT, c))} == {(0,), (0, 2)}


def test_outcomes_are_complete_and_distinct():
    """Of a procedure whose choices depend on earlier ones."""

    def procedure(choices):
        first = choices.pick([0.25, 0.0, 0.75])
        return (first,) if first == 0 else (first, choices.pick([1.0, 1.0]))

    assert list(outcomes(procedure)) == [(0.25, (0,)), (0.375, (2, 0)), (0.375, (2, 1))]


def test_nan_is_an_error():
    tree = two_levels(CONTEXT)
    with pytest.raises(FloatingPointError, match="NaN"):
        traverse(tree, torch.full((6, 3), float("nan")), temperature=1.0, noise=KeyedNoise(0), start=0)
