"""Another acceptance rule."""

from __future__ import annotations

from dataclasses import replace

from tfm_bench.engine import Stack
from tfm_bench.errors import UserError
from tfm_bench.verification.rules import RULES


def rule(stack: Stack, name: str) -> Stack:
    """The stack that accepts by rule `name`. Raises UserError for one that there is not."""
    if name not in RULES:
        raise UserError(f"rule: found {name!r}; accepted are {', '.join(RULES)}")
    return replace(stack, rule=RULES[name])
