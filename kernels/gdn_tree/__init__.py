"""Gated DeltaNet over a token tree: verification that leaves the committed state alone, and the commits that follow it.

Everything is called by keyword; shapes and maths in README.md. `fastest` names the kernels that an engine should use,
`implementations` all of them.
"""

from __future__ import annotations

from kernels.gdn_tree.conv import commit_window, tree_causal_conv
from kernels.gdn_tree.fused import GdnTreeOutputs, fused_tree_gated_delta_rule
from kernels.gdn_tree.implementations import TORCH, Implementation, fastest, implementations
from kernels.gdn_tree.naive import naive_tree_causal_conv, naive_tree_gated_delta_rule
from kernels.gdn_tree.structure import TreeStructure

__all__ = [
    "TORCH",
    "GdnTreeOutputs",
    "Implementation",
    "TreeStructure",
    "commit_window",
    "fastest",
    "fused_tree_gated_delta_rule",
    "implementations",
    "naive_tree_causal_conv",
    "naive_tree_gated_delta_rule",
    "tree_causal_conv",
]
