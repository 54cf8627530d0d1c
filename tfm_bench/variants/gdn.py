"""Gated-DeltaNet verification by another method."""

from __future__ import annotations

from dataclasses import replace

from kernels.gdn_tree import TORCH
from tfm_bench.engine import Stack

PLAIN = f"{TORCH.name}_"


def gdn(stack: Stack, value: str) -> Stack:
    """The stack whose target verifies with the method `value`; as torch_<method>, by torch's kernels throughout.

    Raises UserError for a method that its kernels lack.
    """
    method, kernels = value.removeprefix(PLAIN), TORCH if value.startswith(PLAIN) else None
    return replace(stack, target=stack.target.with_gdn_verify(method, kernels))
