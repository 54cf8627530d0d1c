"""Gated DeltaNet over a token tree: verification that leaves the committed state alone, and the commits that follow it.

VERIFY maps a method's name to `f(*, q, k, v, g, beta, initial_state, structure, scale=None) -> GdnTreeOutputs`;
COMMIT maps a commit's name to its function. Everything is called by keyword; shapes and maths in README.md.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels.gdn_tree.commit import fold, replay, select
from kernels.gdn_tree.conv import commit_window, tree_causal_conv
from kernels.gdn_tree.fused import GdnTreeOutputs, fused_tree_gated_delta_rule
from kernels.gdn_tree.naive import naive_tree_causal_conv, naive_tree_gated_delta_rule
from kernels.gdn_tree.recurrent import level_recurrent, node_recurrent, path_recurrent
from kernels.gdn_tree.structure import TreeStructure

VERIFY: dict[str, Callable[..., GdnTreeOutputs]] = {
    "fused": fused_tree_gated_delta_rule,
    "level_recurrent": level_recurrent,
    "node_recurrent": node_recurrent,
    "path_recurrent": path_recurrent,
}
COMMIT: dict[str, Callable[..., None]] = {"replay": replay, "fold": fold, "select": select}

__all__ = [
    "COMMIT",
    "VERIFY",
    "GdnTreeOutputs",
    "TreeStructure",
    "commit_window",
    "fold",
    "fused_tree_gated_delta_rule",
    "level_recurrent",
    "naive_tree_causal_conv",
    "naive_tree_gated_delta_rule",
    "node_recurrent",
    "path_recurrent",
    "replay",
    "select",
    "tree_causal_conv",
]
