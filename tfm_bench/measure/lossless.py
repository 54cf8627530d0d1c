"""Is the text what plain decoding writes, and is it text at all? Architecture section 6, "Gates"."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

LOOP_NGRAM = 4
LOOP_REPEATS = 8
DISTINCT_2_FLOOR = 0.3


def first_divergence(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token that differs; the shorter length where one is a prefix; None when identical."""
    for index, (token, expected) in enumerate(zip(tokens, reference, strict=False)):
        if token != expected:
            return index
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def distinct_2(tokens: Sequence[int]) -> float:
    """Share of distinct bigrams among all bigrams; 1.0 for fewer than two tokens."""
    bigrams = list(pairwise(tokens))
    return len(set(bigrams)) / len(bigrams) if bigrams else 1.0


def is_degenerate(tokens: Sequence[int]) -> bool:
    """A loop: one 4-gram more than 8 times, or distinct-2 below 0.3. Loops flatter every drafter."""
    ngrams = Counter(tuple(tokens[start : start + LOOP_NGRAM]) for start in range(len(tokens) - LOOP_NGRAM + 1))
    return max(ngrams.values(), default=0) > LOOP_REPEATS or distinct_2(tokens) < DISTINCT_2_FLOOR


def tokens_sha256(tokens: Sequence[int]) -> str:
    """Hash of the token ids, so that two runs can be compared without their text."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()
