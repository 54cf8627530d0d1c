"""Fair times of kernel arms on one problem: states rotate, arms take turns, with as many runs as time allows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from torch import Tensor

from tfm_bench.measure.clocks import Cache, Clock
from tfm_bench.measure.kernel_arms import COMMIT_PHASES, KernelArm
from tfm_bench.measure.kernel_problems import Problem
from tfm_bench.measure.kernel_records import Commit, Phase
from tfm_bench.measure.sampled import Launch

Times = dict[tuple[Phase, Commit | None], float]
Runner = TypeVar("Runner")


class RotatedStates:
    """Committed states of several layers, taken in turn, so that each is read as cold as a model's next layer is."""

    def __init__(self, pristine: Tensor, layers: int) -> None:
        self._pristine = pristine
        self._turns = itertools.cycle([pristine.clone() for _ in range(layers)])

    def take(self) -> Tensor:
        """The state that was not used for longest."""
        return next(self._turns)

    def restore(self, state: Tensor) -> None:
        """Undoes a commit: after hundreds of them a state would have decayed to denormal numbers."""
        state.copy_(self._pristine)


class TimedArm:
    """All phases of one arm on one problem, run once for warmth and ready to be timed again and again."""

    def __init__(self, arm: KernelArm, problem: Problem, states: RotatedStates, clock: Clock) -> None:
        self._states, self._clock = states, clock
        state = states.take()
        verify = arm.timed_verify(problem, state)
        self._verify = clock.prepare(verify, state)
        self.launch: Launch = "eager" if self._verify is verify else "graphs"
        result = self._verify(state)
        self._commits, self._totals = {}, {}
        for commit in arm.commits:
            work = partial(arm.run_commit, commit, problem)
            # A graph reads the memory that it was recorded with, where only a graph writes results again.
            self._commits[commit] = work if self.launch == "eager" else clock.prepare(work, result, state)
            self._totals[commit] = clock.prepare(partial(arm.run_total, commit, problem, verify), state)
            self._commits[commit](result, state)
        states.restore(state)

    def run(self, cache: Cache | None) -> Times:
        """Milliseconds of every phase; a commit alone meets another layer's state than the verification before it."""
        times: Times = {}
        if not self._clock.caches:
            # Else verification alone would pay for what the arm before it left in caches, and its total would not.
            self._verify(self._states.take())
        times["verify", None], result = self._clock.time(self._verify, self._states.take(), cache=cache)
        for commit, work in self._commits.items():
            state = self._states.take()
            times[COMMIT_PHASES[commit], commit], _ = self._clock.time(work, result, state, cache=cache)
            self._states.restore(state)
        del result  # else an arm that stores states would hold them twice
        for commit, whole in self._totals.items():
            state = self._states.take()
            times["total", commit], _ = self._clock.time(whole, state, cache=cache)
            self._states.restore(state)
        return times


def interleaved(
    runners: Sequence[Runner], run: Callable[[Runner], Times], *, least: int, most: int, seconds: float
) -> dict[Runner, list[Times]]:
    """Run by turns, the first one changing from turn to turn, and return the times of every run.

    All run equally often, so that all medians are over the same turns and neighbours: `least` times, and more, up to
    `most`, until `seconds` per runner are used up together.
    """
    samples: dict[Runner, list[Times]] = {runner: [] for runner in runners}
    spent_ms = 0.0
    for turn in range(most):
        if turn >= least and spent_ms >= seconds * 1e3 * len(runners):
            break
        shift = turn % max(1, len(runners))
        for runner in [*runners[shift:], *runners[:shift]]:
            samples[runner].append(run(runner))
            spent_ms += sum(samples[runner][-1].values())
    return samples
