"""Acceptance rules by name, each with what it promises about the text."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from tfm_bench.tree import TokenTree
from tfm_bench.verification.sample_match import Acceptance, KeyedNoise, accept


class Accept(Protocol):
    """Chooses the accepted path and the bonus token of a verified tree; see sample_match.accept."""

    def __call__(
        self, tree: TokenTree, logits: Tensor, *, temperature: float, noise: KeyedNoise, start: int
    ) -> Acceptance: ...


class Rule(NamedTuple):
    """An acceptance rule. name: one of tfm_bench.config.RULES, as it stands in records."""

    name: str
    accept: Accept


SAMPLE_MATCH = Rule("sample_match", accept)
