"""Prompts of a given length: what a longer context costs, on the text of the same data set."""

from __future__ import annotations

from collections.abc import Sequence


def lengthened(others: Sequence[Sequence[int]], prompt: Sequence[int], length: int) -> list[int]:
    """The last `length` ids of other prompts, one after the other and again from the first, and then `prompt`.

    A longer prompt loses its beginning. Raises ValueError for a prompt that is too short and others without ids.
    """
    missing = length - len(prompt)
    front = [token for other in others for token in other]
    if missing > 0 and not front:
        raise ValueError(f"a prompt of {len(prompt)} tokens has no others to reach {length} with")
    times = -(-missing // len(front)) if missing > 0 else 0
    return [*(front * times), *prompt][-length:]
