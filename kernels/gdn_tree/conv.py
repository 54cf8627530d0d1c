"""Causal convolution of width 4 over a token tree: "previous inputs" are those of the ancestors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from kernels.gdn_tree.structure import CONV_WIDTH, TreeStructure


def tree_causal_conv(
    *, inputs: Tensor, window: Tensor, weight: Tensor, structure: TreeStructure, bias: Tensor | None = None
) -> Tensor:
    """Depthwise convolution with SiLU along the path of each node; returns [B, N, C].

    inputs [B, N, C]; window [B, C, 3], the committed inputs before the anchor, oldest first, read only;
    weight [C, 4], its last column for the node itself; bias [C].
    """
    rows = torch.cat([window.transpose(1, 2), inputs], 1)
    columns = weight.t()
    if inputs.shape[1] == 1:
        total = (rows * columns).sum(1, keepdim=True)
    else:
        *above, own = columns.contiguous().unbind(0)
        total = inputs * own
        for tap, column in zip(structure.conv_taps.unbind(1), above, strict=False):
            total.addcmul_(rows.index_select(1, tap), column)
    return silu(total if bias is None else total + bias, inplace=True)


def commit_window(*, inputs: Tensor, path: Tensor, window: Tensor) -> None:
    """window [B, C, 3] takes the last three inputs of the accepted path [A] (anchor first), in place.

    A path shorter than the window shifts it by the path's length. Of inputs [B, N, C] only the rows on `path` are read.
    """
    taken = inputs.index_select(1, path[1 - CONV_WIDTH :]).transpose(1, 2)
    kept = window[:, :, taken.shape[2] :]
    window.copy_(torch.cat([kept, taken], 2))
