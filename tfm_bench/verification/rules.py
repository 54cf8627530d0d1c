"""Acceptance rules by name, each with what it promises about the text."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from tfm_bench.tree import TokenTree
from tfm_bench.verification.sample_match import Acceptance, KeyedNoise, accept
from tfm_bench.verification.traversal import EXACT, FIXED_ORDER, NO_RESIDUAL, Sampler, traverse


class Accept(Protocol):
    """Chooses the accepted path and the bonus token of a verified tree; see sample_match.accept."""

    def __call__(
        self, tree: TokenTree, logits: Tensor, *, temperature: float, noise: KeyedNoise, start: int
    ) -> Acceptance: ...


class Rule(NamedTuple):
    """An acceptance rule. name: one of tfm_bench.config.Rule, as it stands in records."""

    name: str
    accept: Accept


SAMPLE_MATCH = Rule("sample_match", accept)
TRAVERSAL_SAMPLERS: dict[str, Sampler] = {
    "traversal": EXACT,
    "traversal_fixed_order": FIXED_ORDER,
    "traversal_no_residual": NO_RESIDUAL,
}
RULES = {
    SAMPLE_MATCH.name: SAMPLE_MATCH,
    **{name: Rule(name, partial(traverse, sampler=sampler)) for name, sampler in TRAVERSAL_SAMPLERS.items()},
}
