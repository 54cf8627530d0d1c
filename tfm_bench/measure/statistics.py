"""Ratios of sums over the same prompts, and their intervals from a paired bootstrap.

All arrays are [R, P]: R repeats (processes), P prompts. Every repeat measures the same prompts, so the two levels are
crossed: a draw picks repeats, then prompts that it applies to each of them. Prompts drawn anew within each repeat
would count one prompt R times as independent evidence, and give intervals too narrow by the root of R. Two arms share
every draw (paired), and so do numerator and denominator.

A draw takes n - 1 of n, not n of n: the variance of a resampled mean is then s²/n, without the factor (n - 1)/n that
halves what two repeats show of their differences (Rao and Wu, 1988). The percentiles are those of a normal distribution
at the quantiles of Student's t with P - 1 degrees of freedom, as Hesterberg (2015) advises for small samples.

Coverage of 95 % intervals in 1,000 simulated experiments of 2 x 14 and 3 x 42 measurements (test_statistics.py): 93 to
97 % where prompts differ by 30 % in acceptance and repeats by 2 % in favour of one arm. At the edges of what the
default run shows: 98 % where noise of single measurements prevails (crossed draws count it more than once), 91 to 95 %
where acceptance of prompts differs by half (skewed) or repeats by 3 %. Plain percentiles hold 88 to 92 % with 14
prompts. One repeat shows no difference between repeats: its intervals hold 77 to 80 % at 3 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

VERSION = 2
Array = NDArray[np.float64]

DRAWS = 10_000
LEVEL = 0.95
SEED = 0


@dataclass(frozen=True)
class Rate:
    """Per repeat and prompt [R, P]: what was counted, and what it is counted against (time, rounds)."""

    counts: Array
    per: Array

    def value(self) -> float:
        """Sum of counts over sum of what they are counted against; nan for 0/0."""
        return float(_divide(self.counts.sum(), self.per.sum()))


@dataclass(frozen=True)
class Interval:
    """Percentile interval; nan at both ends where a single prompt leaves nothing to compare."""

    low: float
    high: float


def rate_interval(rate: Rate, *, draws: int = DRAWS, level: float = LEVEL, seed: int = SEED) -> Interval:
    """Interval of rate.value()."""
    return _percentiles(_resampled(rate, _weights(rate.counts.shape, draws, seed)), level, rate.counts.shape[1])


def ratio(rate: Rate, baseline: Rate) -> float:
    """rate.value() / baseline.value().

    With tokens over seconds it is the speedup: the product of the ratios of tokens over rounds (acceptance) and of
    rounds over seconds (round time).
    """
    return float(_divide(rate.value(), baseline.value()))


def ratio_interval(
    rate: Rate, baseline: Rate, *, draws: int = DRAWS, level: float = LEVEL, seed: int = SEED
) -> Interval:
    """Interval of ratio(rate, baseline); both arms share every draw. Raises ValueError for unpaired shapes."""
    if rate.counts.shape != baseline.counts.shape:
        raise ValueError(f"arms are not paired: {rate.counts.shape} against {baseline.counts.shape}")
    weights = _weights(rate.counts.shape, draws, seed)
    return _percentiles(_divide(_resampled(rate, weights), _resampled(baseline, weights)), level, rate.counts.shape[1])


def gain_share(rate: Rate, baseline: Rate, full: Rate) -> float:
    """What part of the gain of `full` over `baseline` is left in `rate`: 0 is none of it, 1 all."""
    return float(_divide(rate.value() - baseline.value(), full.value() - baseline.value()))


def gain_share_interval(
    rate: Rate, baseline: Rate, full: Rate, *, draws: int = DRAWS, level: float = LEVEL, seed: int = SEED
) -> Interval:
    """Interval of gain_share(rate, baseline, full); all three share every draw.

    nan at both ends where the interval of full over baseline holds 1: of no gain there are no parts. Raises ValueError
    for unpaired shapes.
    """
    whole = ratio_interval(full, baseline, draws=draws, level=level, seed=seed)
    if rate.counts.shape != full.counts.shape:
        raise ValueError(f"arms are not paired: {rate.counts.shape} against {full.counts.shape}")
    if not (whole.low > 1 or whole.high < 1):
        return Interval(np.nan, np.nan)
    weights = _weights(rate.counts.shape, draws, seed)
    own, least, most = (_resampled(one, weights) for one in (rate, baseline, full))
    return _percentiles(_divide(own - least, most - least), level, rate.counts.shape[1])


def widened_tail(level: float, prompts: int) -> float:
    """Share of draws beyond each end of an interval: under (1 - level) / 2, and the more so the fewer the prompts."""
    return float(ndtr(stdtrit(prompts - 1, (1 - level) / 2)))


@lru_cache(maxsize=8)
def _weights(shape: tuple[int, ...], draws: int, seed: int) -> tuple[Array, Array]:
    """What each repeat [draws, R] and each prompt [draws, P] weighs in each draw; 1 where there is only one."""
    rng = np.random.default_rng(seed)
    repeats, prompts = (_level_weights(rng, n, draws) for n in shape)
    return repeats, prompts


def _level_weights(rng: np.random.Generator, n: int, draws: int) -> Array:
    if n == 1:
        return np.ones((draws, 1))
    return rng.multinomial(n - 1, np.full(n, 1 / n), size=draws).astype(np.float64) * (n / (n - 1))


def _resampled(rate: Rate, weights: tuple[Array, Array]) -> Array:
    repeats, prompts = weights
    counts, per = (np.einsum("dr,rp,dp->d", repeats, x, prompts, optimize=True) for x in (rate.counts, rate.per))
    return _divide(counts, per)


def _percentiles(values: Array, level: float, prompts: int) -> Interval:
    tail = widened_tail(level, prompts)
    low, high = np.quantile(values, [tail, 1 - tail]) if prompts > 1 else (np.nan, np.nan)
    return Interval(float(low), float(high))


def _divide(numerator: Array | float, denominator: Array | float) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(numerator, denominator)
