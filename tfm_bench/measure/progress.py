"""One line every few seconds on the terminal, and none for work that is over sooner."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
INTERVAL_SECONDS = 5.0


def with_progress(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yield the items; while it takes longer than INTERVAL_SECONDS, say on stderr how far it is and what is left."""
    start = shown = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - shown >= INTERVAL_SECONDS:
            shown = now
            left = (now - start) / done * (len(items) - done)
            print(
                f"{label}: {done}/{len(items)} prompts, {now - start:.0f} s, about {left:.0f} s left", file=sys.stderr
            )
