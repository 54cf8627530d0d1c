"""Causal convolution of width 4 over a token tree on a GPU; "previous inputs" are found by walking the parents."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.gdn_tree.structure import CONV_WIDTH, TreeStructure
from kernels.gdn_tree.triton_recurrent import require_dense_rows
from kernels.gdn_tree.triton_structure import DeviceTree, as_device_tree

NODE_TILE = 8
CHANNEL_TILE = 128


def tree_causal_conv(
    *,
    inputs: Tensor,
    window: Tensor,
    weight: Tensor,
    structure: TreeStructure | DeviceTree,
    bias: Tensor | None = None,
) -> Tensor:
    """Depthwise convolution with SiLU along the path of each node, summed in fp32; returns [B, N, C], dtype of inputs.

    inputs [B, N, C]; window [B, C, 3], the committed inputs before the anchor, oldest first, only read; weight [C, 4],
    its last column for the node itself; bias [C]; each bf16 or fp32, last dimensions dense, other strides free.
    Padding rows (parent < 0, not the anchor) are never read and give 0. Raises ValueError where a last dimension is not
    dense.
    """
    require_dense_rows(inputs=inputs, window=window, weight=weight)
    batch, nodes, channels = inputs.shape
    parents = as_device_tree(structure).parents
    outputs = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    node_tile = min(NODE_TILE, triton.next_power_of_2(nodes))
    _tree_conv_kernel[(triton.cdiv(channels, CHANNEL_TILE), triton.cdiv(nodes, node_tile), batch)](
        inputs,
        window,
        weight,
        bias,
        parents,
        outputs,
        nodes,
        channels,
        *inputs.stride()[:2],
        *window.stride()[:2],
        weight.stride(0),
        parents.stride(0) if parents.shape[0] > 1 else 0,
        WIDTH=CONV_WIDTH,
        BLOCK_N=node_tile,
        BLOCK_C=CHANNEL_TILE,
        num_warps=4,
        num_stages=1,
    )
    return outputs


@triton.jit(do_not_specialize=["nodes"])
def _tree_conv_kernel(
    inputs, window, weight, bias, parents, outputs, nodes, channels,
    inputs_sequence, inputs_node, window_sequence, window_channel, weight_channel, parents_sequence,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Grid (channel tiles, node tiles, sequences). A row -1, -2 or -3 is one of the window, -1 the newest."""
    lanes = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    own = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sequence = tl.program_id(2).to(tl.int64)
    inputs += sequence * inputs_sequence
    window += sequence * window_sequence
    parents += sequence * parents_sequence
    parent = tl.load(parents + own, mask=own < nodes, other=-1)
    real = (own < nodes) & ((parent >= 0) | (own == 0))
    channel = lanes[None, :] < channels

    total = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    if bias is not None:
        total += tl.load(bias + lanes, mask=lanes < channels, other=0.0).to(tl.float32)[None, :]
    row = own
    for back in tl.static_range(WIDTH):
        taken = (real & (row >= 0))[:, None] & channel
        value = tl.load(inputs + row[:, None] * inputs_node + lanes[None, :], mask=taken, other=0.0).to(tl.float32)
        if back > 0:
            committed = window + lanes[None, :] * window_channel + (WIDTH - 1 + row)[:, None]
            shallow = (real & (row < 0))[:, None] & channel
            value += tl.load(committed, mask=shallow, other=0.0).to(tl.float32)
        column = tl.load(weight + lanes * weight_channel + (WIDTH - 1 - back), mask=lanes < channels, other=0.0)
        total += value * column.to(tl.float32)[None, :]
        above = tl.load(parents + row, mask=real & (row >= 0), other=-1)
        row = tl.where(row >= 0, above, row - 1)

    total = tl.where(real[:, None], total * tl.sigmoid(total), 0.0)
    outputs += sequence * nodes * channels + own[:, None] * channels + lanes[None, :]
    tl.store(outputs, total.to(outputs.dtype.element_ty), mask=(own < nodes)[:, None] & channel)


def specialisations() -> list[Specialisation]:
    """All tiles are full whatever the number of channels (10,240 at 27B, 8,192 at 4B): one variant per dtype."""
    return [_specialisation(kind) for kind in ("bf16", "fp32")]


def _specialisation(kind: str) -> Specialisation:
    arguments = [name for name in _tree_conv_kernel.arg_names if name.islower() and name != "bias"]
    return Specialisation(
        name=f"tree_causal_conv_{kind}",
        kernel=_tree_conv_kernel,
        signature=dict.fromkeys(arguments, "i32:16")
        | dict.fromkeys(("inputs", "window", "weight", "outputs"), f"*{kind}:16")
        | {"parents": "*i32:16", "nodes": "i32", "window_channel": "i32", "weight_channel": "i32"},
        constexprs={"bias": None, "WIDTH": CONV_WIDTH, "BLOCK_N": NODE_TILE, "BLOCK_C": CHANNEL_TILE},
        num_warps=4,
        num_stages=1,
    )
