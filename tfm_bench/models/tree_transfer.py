"""A tree with all that follows from it, moved to the device in one copy."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.gdn_tree.structure import CONV_WIDTH, TreeStructure
from tfm_bench.models.device import to_device


def tree_on(tokens: Tensor, structure: TreeStructure, device: torch.device) -> tuple[Tensor, TreeStructure]:
    """tokens [N] and structure on the device. What is derived from Python lists is derived before the move."""
    if structure.parents.device == device:
        return tokens, structure
    tokens, moved = unpacked(to_device(packed(tokens, structure), device))
    moved.__dict__["parent_list"] = structure.parent_list  # there it would be a wait
    return tokens, moved


def packed(tokens: Tensor, structure: TreeStructure) -> Tensor:
    """[3 + CONV_WIDTH + N, N] int64: tokens, parents, depths, taps of the convolution, ancestors."""
    rows = [torch.stack([tokens, structure.parents, structure.depths]), structure.conv_taps.T]
    return torch.cat([*rows, structure.ancestors.long()])


def unpacked(rows: Tensor) -> tuple[Tensor, TreeStructure]:
    """What `packed` holds, on its device; views of it where that can be."""
    tokens, parents, depths = rows[:3]
    structure = TreeStructure(parents, depths, rows[3 + CONV_WIDTH :].bool())
    structure.__dict__["conv_taps"] = rows[3 : 3 + CONV_WIDTH].T.contiguous()
    return tokens, structure
