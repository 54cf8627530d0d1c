"""flash-linear-attention's chunk kernel, which knows no trees: on a chain, what one pass over N tokens costs it."""

from __future__ import annotations

import importlib
import importlib.util

from torch import Tensor

from kernels.gdn_tree.fused import GdnTreeOutputs
from kernels.gdn_tree.structure import TreeStructure

MODULE = "fla.ops.gated_delta_rule"


def missing() -> str | None:
    """Why the library cannot run here; None where it is installed."""
    return None if importlib.util.find_spec("fla") else "flash-linear-attention is not installed"


def chunk(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    structure: TreeStructure,
    scale: float | None = None,
) -> GdnTreeOutputs:
    """Outputs of a chain; pseudo-values stay within the library: that field is empty.

    Arguments as in fused_tree_gated_delta_rule. Raises NotImplementedError for a tree with branches.
    """
    if structure.parents.tolist() != list(range(-1, k.shape[1] - 1)):
        raise NotImplementedError("the chunk kernel of flash-linear-attention takes chains only")
    rule = importlib.import_module(MODULE).chunk_gated_delta_rule
    outputs, _ = rule(q=q, k=k, v=v, g=g, beta=beta, scale=scale, initial_state=initial_state)
    return GdnTreeOutputs(outputs, outputs.new_empty(0), None)
