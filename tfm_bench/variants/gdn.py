"""Gated-DeltaNet verification by another method."""

from __future__ import annotations

from dataclasses import replace

from tfm_bench.engine import Stack


def gdn(stack: Stack, method: str) -> Stack:
    """The stack whose target verifies with `method`. Raises UserError for one that its kernels lack."""
    return replace(stack, target=stack.target.with_gdn_verify(method))
