"""One line every few seconds on the terminal, and none for work that is over sooner."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
INTERVAL_SECONDS = 5.0


def with_progress(
    items: Sequence[Item], label: str, *, unit: str = "prompts", weight: Callable[[Item], float] = lambda item: 1.0
) -> Iterator[Item]:
    """Yield the items; while it takes longer than INTERVAL_SECONDS, say on stderr how far it is and what is left.

    weight: the work of an item, in any unit; what is left is foretold from it.
    """
    start = shown = time.monotonic()
    total, spent = sum(map(weight, items)), 0.0
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        spent += weight(item)
        if now - shown >= INTERVAL_SECONDS:
            shown = now
            left = (now - start) / spent * (total - spent)
            print(f"{label}: {done}/{len(items)} {unit}, {now - start:.0f} s, about {left:.0f} s left", file=sys.stderr)
