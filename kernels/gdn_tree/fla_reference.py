"""flash-linear-attention's chunk kernel, which knows no trees: on a chain, what one pass over N tokens costs it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

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
    arguments = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state}
    return prepare(**arguments, structure=structure, scale=scale)()


def prepare(*, structure: TreeStructure, **arguments: Any) -> Callable[[], GdnTreeOutputs]:
    """The same once the tree was seen to be a chain: to be called, and timed, any number of times."""
    if structure.parents.tolist() != list(range(-1, structure.parents.shape[0] - 1)):
        raise NotImplementedError("the chunk kernel of flash-linear-attention takes chains only")
    rule = importlib.import_module(MODULE).chunk_gated_delta_rule

    def run() -> GdnTreeOutputs:
        outputs, _ = rule(**arguments)
        return GdnTreeOutputs(outputs, outputs.new_empty(0), None)

    return run
