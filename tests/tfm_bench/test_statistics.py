"""Ratios and intervals against closed forms, against scipy, and by coverage."""

import numpy as np
import pytest
from scipy import stats

from tfm_bench.measure.statistics import Rate, rate_interval, ratio, ratio_interval, widened_tail


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
    level = 1 - 2 * widened_tail(0.95, 40)
    settings = {"paired": True, "method": "percentile", "n_resamples": 10_000, "confidence_level": level}
    theirs = stats.bootstrap(data, speedup, **settings, rng=rng)
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


def test_speedup_is_acceptance_ratio_times_round_time_ratio():
    rng = np.random.default_rng(9)
    tokens, rounds, seconds = (np.exp(rng.standard_normal((2, 2, 14))) for _ in range(3))
    (a, b) = range(2)
    acceptance = ratio(Rate(tokens[a], rounds[a]), Rate(tokens[b], rounds[b]))
    round_time = ratio(Rate(rounds[a], seconds[a]), Rate(rounds[b], seconds[b]))
    speedup = ratio(Rate(tokens[a], seconds[a]), Rate(tokens[b], seconds[b]))
    assert speedup == pytest.approx(acceptance * round_time, rel=1e-14)


def test_one_prompt_gives_no_interval():
    one = Rate(np.ones((3, 1)), np.ones((3, 1)))
    assert np.isnan([rate_interval(one).low, rate_interval(one).high]).all()


def test_tails_are_those_of_student():
    for prompts in (2, 14, 42):
        assert stats.norm.ppf(widened_tail(0.9, prompts)) == pytest.approx(stats.t.ppf(0.05, prompts - 1))
    assert widened_tail(0.95, 10**6) == pytest.approx(0.025, rel=1e-4)


def test_variance_of_the_draws_has_the_closed_form():
    """s²/P for a mean over prompts; two repeats that differ by d everywhere add d²/4, the variance of their mean."""
    values = np.random.default_rng(10).normal(5.0, 1.0, size=(1, 200))
    wide = rate_interval(Rate(values, np.ones_like(values)), level=0.6827)
    assert (wide.high - wide.low) / 2 == pytest.approx(values.std(ddof=1) / np.sqrt(200), rel=0.03)
    shifted = np.concatenate([values - 1, values + 1])
    both = rate_interval(Rate(shifted, np.ones_like(shifted)))
    assert (both.high - both.low) / 2 == pytest.approx(1.0, abs=3 * values.std() / np.sqrt(200))


def experiment(rng, repeats: int, prompts: int, *, prompt_sd: float, repeat_sd: float) -> tuple[Rate, Rate, float]:
    """A drafting arm, plain decoding and the true speedup.

    Lognormal: lengths, acceptance of each prompt, the speed of each repeat (shared by both arms, 8 %), its favour to an
    arm (repeat_sd) and the noise of each measurement (5 %); the sizes are those of the default run on two cores.
    """

    def milliseconds():
        favour = repeat_sd * rng.standard_normal((repeats, 1))
        return tokens * 5.0 * np.exp(machine + favour + 0.05 * rng.standard_normal((repeats, prompts)))

    tokens = np.broadcast_to(np.exp(4 + 0.5 * rng.standard_normal(prompts)), (repeats, prompts))
    machine = 0.08 * rng.standard_normal((repeats, 1))
    acceptance = 3.0 * np.exp(prompt_sd * rng.standard_normal(prompts))
    arm, plain = Rate(tokens, 2 * milliseconds() / acceptance), Rate(tokens, milliseconds())
    return arm, plain, 3.0 / 2.0 / np.exp(prompt_sd**2 / 2)


def coverage(shape: tuple[int, int], **sizes: float) -> float:
    """Share of 1,000 experiments whose 95 % interval holds the true speedup."""
    rng, held = np.random.default_rng(11), 0
    for _ in range(1000):
        arm, plain, truth = experiment(rng, *shape, **sizes)
        interval = ratio_interval(arm, plain, draws=2000)
        held += interval.low <= truth <= interval.high
    return held / 1000


@pytest.mark.parametrize("shape", [(2, 14), (3, 42)])
@pytest.mark.parametrize(
    ("prompt_sd", "repeat_sd", "least", "most"),
    [(0.3, 0.02, 0.93, 0.97), (0.1, 0.0, 0.94, 0.985), (0.1, 0.03, 0.91, 0.96), (0.5, 0.03, 0.91, 0.96)],
    ids=["typical", "noise", "repeats", "skewed"],
)
def test_95_percent_intervals_hold_the_true_speedup_about_that_often(shape, prompt_sd, repeat_sd, least, most):
    """93 to 97 % where sizes are typical; at the edges what the module's docstring states."""
    assert least <= coverage(shape, prompt_sd=prompt_sd, repeat_sd=repeat_sd) <= most


def test_one_repeat_does_not_see_what_differs_between_repeats():
    assert coverage((1, 14), prompt_sd=0.1, repeat_sd=0.03) < 0.85
