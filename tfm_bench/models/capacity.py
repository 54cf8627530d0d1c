"""The room that sequences are given. Imports nothing heavy."""

from __future__ import annotations

from typing import NamedTuple


class Capacity(NamedTuple):
    """What one sequence may grow to. length: tokens of prompt and answer; width: rows of the widest tree."""

    length: int = 8192
    width: int = 129


CAPACITY = Capacity()
