"""Ratios and intervals against closed forms, against scipy, and by coverage."""

import numpy as np
import pytest
from scipy import stats

from tfm_bench.measure.statistics import Rate, rate_interval, ratio, ratio_interval


def make_rate(repeats: int, prompts: int, *, rng, mean: float = 10.0, prompt_sd: float = 0.2, noise_sd: float = 0.05):
    """Tokens over time with a lognormal effect of each prompt that all repeats share, and noise of each measurement."""
    tokens = np.full((repeats, prompts), 100.0)
    effect = np.exp(prompt_sd * rng.standard_normal(prompts) - prompt_sd**2 / 2)
    noise = np.exp(noise_sd * rng.standard_normal((repeats, prompts)) - noise_sd**2 / 2)
    return Rate(tokens, tokens / mean * effect * noise)


def test_rate_and_ratio_are_sums_over_sums():
    fast = Rate(np.array([[10.0, 30.0]]), np.array([[1.0, 1.0]]))
    slow = Rate(np.array([[10.0, 30.0]]), np.array([[2.0, 8.0]]))
    assert fast.value() == 20.0
    assert ratio(fast, slow) == pytest.approx(20 / 4)
    assert np.isnan(Rate(np.zeros((1, 2)), np.zeros((1, 2))).value())


def test_an_arm_against_itself_is_exactly_one():
    rate = make_rate(3, 12, rng=np.random.default_rng(0))
    interval = ratio_interval(rate, rate)
    assert (interval.low, interval.high) == (1.0, 1.0)


def test_pairing_cancels_what_arms_share():
    rate = make_rate(2, 16, rng=np.random.default_rng(1), prompt_sd=1.0)
    half = Rate(rate.counts, rate.per * 0.5)
    interval = ratio_interval(half, rate)
    assert interval.low == pytest.approx(2.0)
    assert interval.high == pytest.approx(2.0)
    assert rate_interval(rate).high > 1.2 * rate_interval(rate).low


def test_unpaired_arms_are_refused():
    rng = np.random.default_rng(2)
    with pytest.raises(ValueError, match="not paired"):
        ratio_interval(make_rate(1, 4, rng=rng), make_rate(1, 5, rng=rng))


def test_one_repeat_is_the_paired_bootstrap_of_scipy():
    rng = np.random.default_rng(3)
    a, b = make_rate(1, 40, rng=rng), make_rate(1, 40, rng=rng, mean=7.0)

    def speedup(tokens_a, ms_a, tokens_b, ms_b, axis=-1):
        return (tokens_a.sum(axis) / ms_a.sum(axis)) / (tokens_b.sum(axis) / ms_b.sum(axis))

    data = [x[0] for x in (a.counts, a.per, b.counts, b.per)]
    theirs = stats.bootstrap(data, speedup, paired=True, method="percentile", n_resamples=10_000, rng=rng)
    ours = ratio_interval(a, b)
    width = ours.high - ours.low
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.06 * width)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.06 * width)


def test_interval_of_a_mean_is_the_normal_one_of_many_prompts():
    rng = np.random.default_rng(4)
    values = rng.normal(5.0, 1.0, size=(1, 400))
    interval = rate_interval(Rate(values, np.ones_like(values)))
    half = 1.96 * values.std() / np.sqrt(values.size)
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_repeating_a_measurement_exactly_adds_no_evidence_about_prompts():
    once = make_rate(1, 30, rng=np.random.default_rng(5))
    thrice = Rate(np.repeat(once.counts, 3, axis=0), np.repeat(once.per, 3, axis=0))
    single, repeated = rate_interval(once), rate_interval(thrice)
    assert repeated.high - repeated.low == pytest.approx(single.high - single.low, rel=0.05)


def test_differences_between_repeats_widen_the_interval():
    rate = make_rate(4, 30, rng=np.random.default_rng(6))
    drifting = Rate(rate.counts, rate.per * np.array([[0.8], [0.9], [1.1], [1.2]]))
    steady, unsteady = rate_interval(rate), rate_interval(drifting)
    assert unsteady.high - unsteady.low > 1.5 * (steady.high - steady.low)


def test_seeded():
    rate = make_rate(2, 10, rng=np.random.default_rng(7))
    assert rate_interval(rate) == rate_interval(rate)
    assert rate_interval(rate) != rate_interval(rate, seed=1)


def test_coverage_over_simulated_experiments():
    """The true speedup is 10 / 7; 95 % intervals over 32 prompts and 2 repeats must hold it about that often."""
    rng, held, experiments = np.random.default_rng(8), 0, 400
    for _ in range(experiments):
        interval = ratio_interval(
            make_rate(2, 32, rng=rng), make_rate(2, 32, rng=rng, mean=7.0), draws=600, seed=int(rng.integers(1 << 30))
        )
        held += interval.low <= 10 / 7 <= interval.high
    assert 0.91 <= held / experiments <= 0.98
