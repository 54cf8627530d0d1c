"""Sample-and-match on a toy language model whose law is known in closed form."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from tfm_bench.errors import UserError
from tfm_bench.tree import TokenTree
from tfm_bench.verification import sample_match
from tfm_bench.verification.sample_match import Acceptance, KeyedNoise, accept, draw

Context = tuple[int, ...]
Proposer = Callable[[Context], TokenTree]


class ToyModel:
    """Next-token logits that depend on the last two tokens, as a random table [V, V, V]."""

    def __init__(self, vocab: int, seed: int = 0) -> None:
        self.vocab = vocab
        self.table = torch.randn(vocab, vocab, vocab, generator=torch.Generator().manual_seed(seed)) * 1.5

    def logits(self, context: Context) -> Tensor:
        return self.table[context[-2], context[-1]]

    def verify(self, tree: TokenTree, context: Context) -> Tensor:
        """[N, V]; `context` ends with the anchor. Padding rows are poisoned: acceptance must not read them."""
        rows = torch.full((tree.width, self.vocab), float("nan"))
        tokens = tree.tokens.tolist()
        for node in range(tree.size):
            rows[node] = self.logits(context + tuple(tokens[i] for i in tree.structure.path_to(node)[1:]))
        return rows

    def law(self, context: Context, length: int, temperature: float) -> dict[Context, float]:
        """Probability of every continuation of that length."""
        law = {}
        for continuation in itertools.product(range(self.vocab), repeat=length):
            probability = 1.0
            for i, token in enumerate(continuation):
                row = self.logits(context + continuation[:i]).double() / temperature
                probability *= row.softmax(-1)[token].item()
            law[continuation] = probability
        return law


def emitted(tree: TokenTree, outcome: Acceptance) -> list[int]:
    return [*(int(tree.tokens[node]) for node in outcome.path[1:]), outcome.bonus]


def decode(
    model: ToyModel, propose: Proposer, noise: KeyedNoise, *, length: int, temperature: float, prompt: Context = (0, 1)
) -> Context:
    """Rounds of propose, verify and accept until `length` tokens are there."""
    context = prompt
    while len(context) < len(prompt) + length:
        tree = propose(context)
        rows = model.verify(tree, context)
        outcome = accept(tree, rows, temperature=temperature, noise=noise, start=len(context) - 1)
        context += tuple(emitted(tree, outcome))
    return context[len(prompt) :][:length]


def anchor_only(context: Context) -> TokenTree:
    """Plain decoding: the tree is its root."""
    return TokenTree.from_lists([context[-1]], [-1], [0.0], width=1)


def two_levels(context: Context) -> TokenTree:
    """Anchor, children 0 and 2, a grandchild under each, and one row of padding."""
    return TokenTree.from_lists([context[-1], 0, 2, 1, 2], [-1, 0, 0, 1, 2], [0.0, -1.0, -1.0, -1.0, -1.0], width=6)


def random_proposer(vocab: int, max_nodes: int, seed: int) -> Proposer:
    """A new random tree each round, siblings distinct, padded to max_nodes + 1."""
    rng = random.Random(seed)

    def propose(context: Context) -> TokenTree:
        tokens, parents = [context[-1]], [-1]
        taken: set[tuple[int, int]] = set()
        for _ in range(rng.randint(0, max_nodes)):
            edge = (rng.randrange(len(tokens)), rng.randrange(vocab))
            if edge not in taken:
                taken.add(edge)
                parents.append(edge[0])
                tokens.append(edge[1])
        return TokenTree.from_lists(tokens, parents, [0.0] * len(tokens), width=max_nodes + 1)

    return propose


class ScriptedDraw:
    """Stands in for `draw`: takes the scripted token and multiplies up the probability that a draw would take it."""

    def __init__(self, script: dict[int, int]) -> None:
        self.script = script
        self.probability = 1.0
        self.positions: list[int] = []

    def __call__(self, logits: Tensor, temperature: float, noise: KeyedNoise, position: int) -> int:
        token = self.script[position]
        self.probability *= (logits.double() / temperature).softmax(-1)[token].item()
        self.positions.append(position)
        return token


class ForgetfulModel(ToyModel):
    """A broken verification: every node is given the anchor's logits."""

    def verify(self, tree: TokenTree, context: Context) -> Tensor:
        return super().verify(tree, context)[:1].expand(tree.width, -1)


def law_of_decoding(
    monkeypatch: pytest.MonkeyPatch, model: ToyModel, propose: Proposer, length: int, temperature: float
) -> dict[Context, float]:
    """Exact law of the emitted texts: the sum over all outcomes of all draws."""
    law: Counter[Context] = Counter()
    reach = length + 2  # the last round may emit two tokens too many
    for outcome in itertools.product(range(model.vocab), repeat=reach):
        scripted = ScriptedDraw(dict(enumerate(outcome, start=2)))
        monkeypatch.setattr(sample_match, "draw", scripted)
        text = decode(model, propose, KeyedNoise(0), length=length, temperature=temperature)
        # Outcomes that differ only where nothing was drawn are one outcome.
        law[text] += scripted.probability / model.vocab ** (reach - len(scripted.positions))
    return dict(law)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("propose", [anchor_only, two_levels], ids=["ar", "tree"])
def test_law_is_the_targets_by_enumeration(
    monkeypatch: pytest.MonkeyPatch, propose: Proposer, temperature: float
) -> None:
    law = law_of_decoding(monkeypatch, ToyModel(vocab=3), propose, 3, temperature)
    assert law == pytest.approx(ToyModel(vocab=3).law((0, 1), 3, temperature), abs=1e-12)


def test_enumeration_sees_logits_of_the_wrong_node(monkeypatch: pytest.MonkeyPatch) -> None:
    law = law_of_decoding(monkeypatch, ForgetfulModel(vocab=3), two_levels, 3, 1.0)
    assert law != pytest.approx(ToyModel(vocab=3).law((0, 1), 3, 1.0), abs=1e-2)


def chi_square_p(model: ToyModel, propose: Proposer, noises: list[KeyedNoise], temperature: float) -> float:
    """p-value of decoded three-token texts against the target's law."""
    counts = Counter(decode(model, propose, noise, length=3, temperature=temperature) for noise in noises)
    law = model.law((0, 1), 3, temperature)
    observed = [counts[text] for text in law]
    return float(stats.chisquare(observed, [p * len(noises) for p in law.values()]).pvalue)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_law_is_the_targets_by_chi_square(temperature: float) -> None:
    noises = [KeyedNoise(seed) for seed in range(3000)]
    assert chi_square_p(ToyModel(vocab=3), two_levels, noises, temperature) > 0.001


def test_chi_square_sees_noise_shared_between_positions() -> None:
    class SharedNoise(KeyedNoise):
        def gumbel(self, position: int, vocab_size: int) -> Tensor:
            return super().gumbel(0, vocab_size)

    noises: list[KeyedNoise] = [SharedNoise(seed) for seed in range(3000)]
    assert chi_square_p(ToyModel(vocab=3), two_levels, noises, 1.0) < 1e-9


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@given(seed=st.integers(0, 2**64 - 1), tree_seed=st.integers(0, 1000), nodes=st.integers(0, 20))
def test_tokens_do_not_depend_on_the_tree(temperature: float, seed: int, tree_seed: int, nodes: int) -> None:
    model, noise = ToyModel(vocab=4), KeyedNoise(seed)
    plain = decode(model, anchor_only, noise, length=12, temperature=temperature)
    propose = random_proposer(vocab=4, max_nodes=nodes, seed=tree_seed)
    assert decode(model, propose, noise, length=12, temperature=temperature) == plain


def test_tokens_depend_on_the_seed() -> None:
    model = ToyModel(vocab=4)
    texts = {decode(model, two_levels, KeyedNoise(seed), length=12, temperature=1.0) for seed in range(20)}
    assert len(texts) > 15


@given(seed=st.integers(0, 1000), nodes=st.integers(0, 20), temperature=st.sampled_from([0.0, 1.0]))
def test_path_is_a_root_path_that_holds_the_draws(seed: int, nodes: int, temperature: float) -> None:
    model, context = ToyModel(vocab=3), (2, 0)
    tree = random_proposer(vocab=3, max_nodes=nodes, seed=seed)(context)
    outcome = accept(tree, model.verify(tree, context), temperature=temperature, noise=KeyedNoise(seed), start=1)
    assert outcome.path == tree.structure.path_to(outcome.path[-1])
    assert max(outcome.path) < tree.size, "padding is never visited"
    assert outcome.bonus not in tree.children[outcome.path[-1]], "the walk stops only where no child matches"


def test_one_draw_per_emitted_token_at_consecutive_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedDraw({101: 2, 102: 2, 103: 0})
    monkeypatch.setattr(sample_match, "draw", scripted)
    outcome = accept(two_levels((0, 1)), torch.zeros(6, 3), temperature=1.0, noise=KeyedNoise(0), start=100)
    assert outcome == Acceptance(path=[0, 2, 4], bonus=0)
    assert scripted.positions == [101, 102, 103]


def test_padding_under_the_anchor_is_no_child() -> None:
    tree = TokenTree.from_lists([5, 3], [-1, 0], [0.0, -1.0], width=8)
    rows = torch.full((8, 6), float("nan"))
    rows[0] = torch.tensor([9.0, 0, 0, 0, 0, 0])  # token 0 is what padding rows carry
    assert accept(tree, rows, temperature=0.0, noise=KeyedNoise(0), start=0) == Acceptance(path=[0], bonus=0)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(5000)
    logits[[1200, 3000, 4999]] = 2.0
    assert draw(logits, 0.0, KeyedNoise(0), 0) == 1200
    assert draw(logits.bfloat16(), 0.0, KeyedNoise(0), 0) == 1200


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300, 5e-324])
def test_small_temperatures_tend_to_greedy(temperature: float) -> None:
    logits = torch.randn(4096) * 5
    assert draw(logits, temperature, KeyedNoise(3), 17) == int(logits.argmax())


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((8,), float("-inf"))
    logits[5] = -3.0
    assert {draw(logits, 2.0, KeyedNoise(seed), 1) for seed in range(50)} == {5}


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf"), float("-inf")])
def test_bad_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(UserError, match="temperature: found"):
        draw(torch.zeros(4), temperature, KeyedNoise(0), 0)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_bad_seed_is_refused(seed: int) -> None:
    with pytest.raises(UserError, match="seed: found"):
        KeyedNoise(seed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_poisoned_logits_are_refused(temperature: float) -> None:
    logits = torch.zeros(16)
    logits[7] = float("nan")
    with pytest.raises(FloatingPointError, match="position 42"):
        draw(logits, temperature, KeyedNoise(0), 42)


def test_draws_follow_the_softmax() -> None:
    logits, temperature = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5]), 0.8
    noise = KeyedNoise(11)
    counts = np.bincount([draw(logits, temperature, noise, position) for position in range(4000)], minlength=5)
    expected = (logits.double() / temperature).softmax(-1).numpy() * 4000
    assert stats.chisquare(counts, expected).pvalue > 0.001
    assert stats.chisquare(counts, np.roll(expected, 1)).pvalue < 1e-9


def test_noise_is_gumbel() -> None:
    draws = KeyedNoise(5).gumbel(3, 100_000)
    assert draws.dtype == torch.float32
    assert stats.kstest(draws.numpy(), "gumbel_r").pvalue > 0.001
    assert stats.kstest(draws.numpy() + 0.05, "gumbel_r").pvalue < 1e-6


def test_noise_is_finite_at_both_ends_of_the_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    class Extremes:
        def __init__(self, **_: object) -> None: ...

        def random_raw(self, size: int) -> np.ndarray:
            return np.resize(np.array([0, 2**64 - 1], dtype=np.uint64), size)

    monkeypatch.setattr(np.random, "Philox", Extremes)
    lowest, highest = KeyedNoise(0).gumbel(0, 2).tolist()
    assert math.isfinite(lowest)
    assert math.isfinite(highest)
    assert lowest < -3.5
    assert highest > 36.0


def test_noise_repeats_and_does_not_depend_on_call_order() -> None:
    first = KeyedNoise(7).gumbel(12, 64)
    other = KeyedNoise(7)
    other.gumbel(500, 4096)
    assert torch.equal(other.gumbel(12, 64), first)
    assert torch.equal(other.gumbel(12, 4096)[:64], first), "a token's noise does not depend on the vocabulary's size"


def philox_words(seed: int, position: int, count: int) -> list[int]:
    """Philox4x64-10 in whole numbers (Salmon et al., SC11): counter (block, 0, 0, position), key (seed, 0)."""
    words: list[int] = []
    for block in range(1, count // 4 + 1):
        c, k0, k1 = (block, 0, 0, position), seed, 0
        for _ in range(10):
            product0, product1 = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = ((product1 >> 64) ^ c[1] ^ k0, product1 % 2**64, (product0 >> 64) ^ c[3] ^ k1, product0 % 2**64)
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
        words.extend(c)
    return words


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 2), (2**64 - 1, 131_072)])
def test_noise_is_philox_of_seed_and_position(seed: int, position: int) -> None:
    """Recorded texts stay comparable only while these numbers are the same on every machine and in every version."""
    expected = [-math.log(-math.log(((word >> 12) + 0.5) / 2**52)) for word in philox_words(seed, position, 64)]
    assert KeyedNoise(seed).gumbel(position, 64).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    streams = [KeyedNoise(seed).gumbel(position, 20_000).numpy() for seed in (0, 1, 2) for position in (0, 1, 2, 1000)]
    correlation = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlation).max() < 5 / math.sqrt(20_000)


def test_seeds_and_positions_do_not_mix() -> None:
    draws = {(s, p): tuple(KeyedNoise(s).gumbel(p, 8).tolist()) for s in range(12) for p in range(12)}
    assert len(set(draws.values())) == len(draws)
