"""Which rows of a data set the paper decodes: all of them, or a sample by hash (method notes §8.1).

A row's rank is the first eight bytes of sha256("seed|name|id|category"); the lowest ranks are kept, in the order of
the file. So a sample does not depend on where a row stands, only on what it is called.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfm_bench.errors import UserError

SELECTION_SEED = 20260617


@dataclass(frozen=True)
class Question:
    """A row as the selection sees it: `key` and `category` enter its rank, `text` is what the user says.

    id is unique within the data set and names its prompt.
    """

    id: str
    key: str
    category: str
    text: str


Select = Callable[[str, list[Question], int, int], list[Question]]


def rank(*parts: object) -> int:
    """Whole number below 2**64 from the parts alone: the head, big-endian, of sha256 over "part|part|..."."""
    return int.from_bytes(hashlib.sha256("|".join(map(str, parts)).encode()).digest()[:8], "big")


def whole(name: str, questions: list[Question], count: int, seed: int) -> list[Question]:
    """All questions. Raises UserError where there are not `count` of them: then it is another data set."""
    if len(questions) != count:
        raise UserError(f"dataset {name}: found {len(questions)} rows; {count} are accepted, the whole set")
    return questions


def every(name: str, questions: list[Question], count: int, seed: int) -> list[Question]:
    """All questions of a set whose size no document vouches for; count is only expected."""
    return questions


def sample(name: str, questions: list[Question], count: int, seed: int) -> list[Question]:
    """The `count` questions of lowest rank, in file order. Raises UserError where there are fewer."""
    _require(name, questions, count)
    lowest = sorted(questions, key=lambda question: rank(seed, name, question.key, question.category))[:count]
    chosen = {question.id for question in lowest}
    return [question for question in questions if question.id in chosen]


def sample_by_category(name: str, questions: list[Question], count: int, seed: int) -> list[Question]:
    """`count` questions of lowest rank, every category in its proportion. Raises UserError where there are fewer."""
    _require(name, questions, count)
    chosen: set[str] = set()
    for category, quota in quotas(Counter(question.category for question in questions), count).items():
        members = [question for question in questions if question.category == category]
        chosen |= {question.id for question in sample(name, members, quota, seed)}
    return [question for question in questions if question.id in chosen]


def quotas(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """`count` shared out in proportion to sizes: floors first, the rest by largest remainder, ties by name.

    `count` is at most the sum of the sizes. Whole numbers throughout: no share depends on rounding.
    """
    total = sum(sizes.values())
    floors = {name: size * count // total for name, size in sizes.items()}
    neediest = sorted(sizes, key=lambda name: (-(sizes[name] * count % total), name))
    extra = set(neediest[: count - sum(floors.values())])
    return {name: floors[name] + (name in extra) for name in sizes}


def _require(name: str, questions: list[Question], count: int) -> None:
    if len(questions) < count:
        raise UserError(f"dataset {name}: found {len(questions)} rows; a sample of {count} needs as many")
