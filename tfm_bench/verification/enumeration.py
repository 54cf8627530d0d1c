"""Every outcome of a random procedure with its probability, by running the procedure itself once for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from tfm_bench.verification.traversal import Array, Choices

Outcome = TypeVar("Outcome")


class _Script:
    """Choices that follow a script, and beyond its end take the first possible index."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.probability = 1.0
        self.taken: list[tuple[int, list[int]]] = []  # index, and the later ones that are possible too

    def pick(self, weights: Sequence[float] | Array) -> int:
        place = len(self.taken)
        possible = np.flatnonzero(weights).tolist()
        index = self._script[place] if place < len(self._script) else possible[0]
        self.taken.append((index, [other for other in possible if other > index]))
        self.probability *= float(weights[index] / np.sum(weights))
        return index

    def next_script(self) -> list[int] | None:
        """The script of the next run; None after the last."""
        for place in range(len(self.taken) - 1, -1, -1):
            if self.taken[place][1]:
                return [*(index for index, _ in self.taken[:place]), self.taken[place][1][0]]
        return None


def outcomes(procedure: Callable[[Choices], Outcome]) -> Iterator[tuple[float, Outcome]]:
    """(probability, outcome) for every sequence of choices that `procedure` can be given; they sum to 1.

    The procedure must depend on its choices alone. Sequences come in order, the last choice moving first.
    """
    script: list[int] | None = []
    while script is not None:
        choices = _Script(script)
        outcome = procedure(choices)
        yield choices.probability, outcome
        script = choices.next_script()
