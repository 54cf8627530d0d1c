"""Oracle marginals: against full enumeration of a small target's prefixes, and a linear programme."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from tests.tfm_bench.tiny_stack import VOCAB, random_target
from tfm_bench.measure.continuations import sampled_prefixes
from tfm_bench.measure.oracle_marginal import acceptance, best_factorised, factorised_proposals, point_mass
from tfm_bench.models.target import Target

TEXT = [3, 9, 4, 17]


@pytest.fixture(scope="module")
def enumerated():
    """Every prefix of two tokens: the library's conditionals [V * V, V], and probabilities [V * V]."""
    paths = torch.cartesian_prod(torch.arange(VOCAB), torch.arange(VOCAB))
    texts = torch.cat([torch.tensor([TEXT]).expand(len(paths), -1), paths], dim=1)
    with torch.no_grad():
        p = random_target("hybrid")(texts).logits[:, len(TEXT) - 1 :].softmax(-1)
    rows = torch.arange(len(paths))
    weights = p[rows, 0, paths[:, 0]].double() * p[rows, 1, paths[:, 1]].double()
    return p[:, 2], weights / weights.sum()


def sampled(samples, depths, stop_ids=()):
    target = Target(random_target("hybrid"), tap_layer_ids=[0])
    generator = torch.Generator().manual_seed(1)
    options = {"samples": samples, "depths": depths, "temperature": 1.0, "stop_ids": stop_ids, "generator": generator}
    return list(sampled_prefixes(target, TEXT, **options))


def test_all_prefixes_with_their_weights_give_the_exact_marginal_and_ceiling(enumerated):
    p, weights = enumerated
    marginal = [sum(w * row[v] for w, row in zip(weights.tolist(), p.tolist(), strict=True)) for v in range(VOCAB)]
    distance = sum(
        w * sum(abs(x - m) for x, m in zip(row, marginal, strict=True)) / 2
        for w, row in zip(weights.tolist(), p.tolist(), strict=True)
    )
    proposals = factorised_proposals(p.double(), weights)
    assert proposals["ceiling"].tolist() == pytest.approx(marginal, abs=1e-6)
    assert acceptance(proposals["ceiling"], p.double(), weights) == pytest.approx(1 - distance, abs=1e-6)
    assert acceptance(proposals["ceiling_argmax"], p.double(), weights) == pytest.approx(max(marginal), abs=1e-6)
    assert 0.05 < distance < 0.95


def test_estimates_converge_to_the_exact_values(enumerated):
    p, weights = enumerated
    samples = 4096
    prefixes = sampled(samples, 3)[2]
    exact, estimated = factorised_proposals(p, weights), factorised_proposals(prefixes.p, prefixes.weights())
    for name, proposal in exact.items():
        each = torch.minimum(proposal, p).sum(-1).double()
        deviation = float((weights * (each - weights @ each).square()).sum().sqrt())
        found = acceptance(estimated[name], prefixes.p, prefixes.weights())
        assert abs(found - acceptance(proposal, p, weights)) < 4 * deviation / samples**0.5, name


def test_sampled_conditionals_are_those_of_the_library(enumerated):
    p, weights = enumerated
    prefixes = sampled(512, 3)[2]
    rows = prefixes.paths[:, 0] * VOCAB + prefixes.paths[:, 1]
    assert len(rows.unique()) == len(rows)
    assert torch.allclose(prefixes.p, p[rows], atol=2e-6)
    shares, expected = prefixes.weights(), weights[rows]
    assert ((shares - expected).abs() < 5 * (expected / 512).sqrt() + 1 / 512).all()


def test_at_the_first_depth_the_marginal_is_the_conditional():
    (prefixes,) = sampled(16, 1)
    assert prefixes.p.shape == (1, VOCAB)
    weights = prefixes.weights()
    assert weights.tolist() == [1.0]
    proposals = factorised_proposals(prefixes.p, weights)
    assert acceptance(proposals["ceiling"], prefixes.p, weights) == pytest.approx(1.0, abs=1e-6)
    assert acceptance(proposals["best_factorised"], prefixes.p, weights) == pytest.approx(1.0, abs=1e-6)
    assert acceptance(proposals["ceiling_argmax"], prefixes.p, weights) == pytest.approx(float(prefixes.p.max()))


def test_samples_end_at_a_stop_token():
    stops = [2, 5, 7, 11]
    depths = sampled(256, 4, stops)
    going = [len(prefixes.rows) for prefixes in depths]
    assert going[0] == 256
    assert all(after < before for before, after in itertools.pairwise(going))
    assert not any(torch.isin(prefixes.paths, torch.tensor(stops)).any() for prefixes in depths)
    assert len(sampled(64, 4, range(VOCAB))) == 1


def test_halves_weigh_their_own_samples():
    prefixes = sampled(64, 2)[1]
    halves = [prefixes.weights(slice(start, None, 2)) for start in (0, 1)]
    assert torch.allclose(sum(halves) / 2, prefixes.weights())
    assert not torch.equal(*halves)


def by_linear_programme(p, weights):
    """max sum w_s z_sv over q on the simplex and z_sv <= q_v, z_sv <= p_sv."""
    prefixes, vocab = p.shape
    cost = np.concatenate([np.zeros(vocab), -np.repeat(weights, vocab)])
    below_q = np.hstack([np.tile(-np.eye(vocab), (prefixes, 1)), np.eye(prefixes * vocab)])
    simplex = np.concatenate([np.ones(vocab), np.zeros(prefixes * vocab)])[None]
    bounds = [(0, 1)] * vocab + [(0, x) for x in p.flatten()]
    found = linprog(cost, below_q, np.zeros(prefixes * vocab), simplex, [1.0], bounds)
    return -found.fun


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("equal_weights", [True, False])
def test_best_factorised_is_the_optimum(seed, equal_weights):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(6, 0.3), size=7)
    weights = np.full(7, 1 / 7) if equal_weights else rng.dirichlet(np.ones(7))
    tensors = torch.from_numpy(p), torch.from_numpy(weights)
    q = best_factorised(*tensors)
    assert (q >= 0).all()
    assert float(q.sum()) == pytest.approx(1.0, abs=1e-9)
    best = acceptance(q, *tensors)
    assert best == pytest.approx(by_linear_programme(p, weights), abs=1e-7)
    for name, proposal in factorised_proposals(*tensors).items():
        assert acceptance(proposal, *tensors) <= best + 1e-9, name


def test_the_marginal_is_not_the_best_that_there_is():
    """Prefixes that disagree: the likeliest token alone is accepted with 0.6, the marginal with 0.6² + 0.4²."""
    p, weights = torch.eye(2, dtype=torch.float64), torch.tensor([0.6, 0.4], dtype=torch.float64)
    found = {name: acceptance(q, p, weights) for name, q in factorised_proposals(p, weights).items()}
    assert found == pytest.approx({"ceiling": 0.52, "ceiling_argmax": 0.6, "best_factorised": 0.6})


def test_point_mass_takes_each_row_by_itself():
    assert point_mass(torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]])).tolist() == [[0, 1, 0], [1, 0, 0]]
