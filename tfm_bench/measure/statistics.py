"""Ratios of sums over the same prompts, and their intervals from a paired bootstrap.

All arrays are [R, P]: R repeats (processes), P prompts. Every repeat measures the same prompts, so the two levels are
crossed: a draw picks R repeats, then P prompts that it applies to each of them. Prompts drawn anew within each repeat
would count one prompt R times as independent evidence, and give intervals too narrow by the root of R. Two arms share
every draw (paired), and so do numerator and denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

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
    """Percentile interval."""

    low: float
    high: float


def rate_interval(rate: Rate, *, draws: int = DRAWS, level: float = LEVEL, seed: int = SEED) -> Interval:
    """Interval of rate.value()."""
    return _percentiles(_resampled(rate, _weights(rate.counts.shape, draws, seed)), level)


def ratio(rate: Rate, baseline: Rate) -> float:
    """rate.value() / baseline.value(): with tokens over time, the speedup."""
    return float(_divide(rate.value(), baseline.value()))


def ratio_interval(
    rate: Rate, baseline: Rate, *, draws: int = DRAWS, level: float = LEVEL, seed: int = SEED
) -> Interval:
    """Interval of ratio(rate, baseline); both arms share every draw. Raises ValueError for unpaired shapes."""
    if rate.counts.shape != baseline.counts.shape:
        raise ValueError(f"arms are not paired: {rate.counts.shape} against {baseline.counts.shape}")
    weights = _weights(rate.counts.shape, draws, seed)
    return _percentiles(_divide(_resampled(rate, weights), _resampled(baseline, weights)), level)


@lru_cache(maxsize=8)
def _weights(shape: tuple[int, ...], draws: int, seed: int) -> tuple[Array, Array]:
    """How often each repeat [draws, R] and each prompt [draws, P] occurs in each draw."""
    rng = np.random.default_rng(seed)
    repeats, prompts = (rng.multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64) for n in shape)
    return repeats, prompts


def _resampled(rate: Rate, weights: tuple[Array, Array]) -> Array:
    repeats, prompts = weights
    counts, per = (np.einsum("dr,rp,dp->d", repeats, x, prompts, optimize=True) for x in (rate.counts, rate.per))
    return _divide(counts, per)


def _percentiles(values: Array, level: float) -> Interval:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _divide(numerator: Array | float, denominator: Array | float) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(numerator, denominator)
