"""Gated delta rule over a token tree as one masked triangular solve per head, on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.gdn_tree.fused import GdnTreeOutputs
from kernels.gdn_tree.structure import TreeStructure
from kernels.gdn_tree.tiles import (
    PRECISIONS,
    ProductPlan,
    SolveInputs,
    decay_ratios,
    head_constants,
    inverse_stages,
    launch_cases,
    launch_signature,
    path_sums,
    product_plan,
    unit_lower_inverse,
)
from kernels.gdn_tree.triton_recurrent import require_dense_rows
from kernels.gdn_tree.triton_solve import tiled_solve
from kernels.gdn_tree.triton_structure import DeviceTree, as_device_tree

WARPS = 8
LOAD_STAGES = 4
# One program holds the whole tree up to here; a tile of 64 spills at every precision but tf32.
SINGLE_NODES = 32
# Blocks of 32 nodes are the bits of one int32, the sign left out.
MAX_NODES = 31 * 32


def fused_tree_gated_delta_rule(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    structure: TreeStructure | DeviceTree,
    scale: float | None = None,
    state_indices: Tensor | None = None,
    precision: str | None = None,
) -> GdnTreeOutputs:
    """All nodes at once, in one launch up to 32 nodes, in two above; reads the committed states, writes none.

    q, k [B, N, H, K], l2-normalised, and v [B, N, HV, V] in bf16 or fp32; g (log decay, <= 0), beta [B, N, HV] and
    initial_state [P, HV, K, V] in fp32; last dimensions dense, other strides free. Sequence b starts from entry
    state_indices[b] (int32; negative: from zeros) or, without them, from entry b. `structure` holds one tree for all
    sequences, or one for each. precision of all matrix products: "ieee", "tf32x3" or "tf32"; by default "ieee" for
    fp32 inputs and "tf32" for bf16 ones, which it represents exactly. Returns outputs (dtype of v) and pseudo-values
    (fp32), both [B, N, HV, V]. Padding rows (parent < 0, not the anchor) are never read, and give 0. Raises ValueError
    for shapes, strides or a precision that do not fit. Source: arXiv 2607.06763, section 3.4.
    """
    require_dense_rows(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    tree = as_device_tree(structure)
    precision = precision or ("ieee" if v.dtype is torch.float32 else "tf32")
    _require_fit(v, tree, precision)
    outputs = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    pseudo_values = torch.empty(v.shape, dtype=torch.float32, device=v.device)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    products = product_plan(k.shape[-1], v.shape[-1], k.dtype, precision)
    solve = _single_solve if v.shape[1] <= SINGLE_NODES else tiled_solve
    inputs = SolveInputs(q, k, v, g, beta, initial_state, state_indices, tree, scale)
    solve(inputs, products, outputs, pseudo_values)
    return GdnTreeOutputs(outputs, pseudo_values, None)


def _require_fit(v: Tensor, tree: DeviceTree, precision: str) -> None:
    batch, nodes = v.shape[:2]
    trees, tree_nodes = tree.parents.shape
    if tree_nodes != nodes or trees not in (1, batch):
        raise ValueError(f"structure: {trees} trees of {tree_nodes} nodes; v has {batch} sequences of {nodes} nodes.")
    if nodes > MAX_NODES:
        raise ValueError(f"v: {nodes} nodes; at most {MAX_NODES} are supported.")
    if precision not in PRECISIONS:
        raise ValueError(f"precision: {precision!r} is none of {', '.join(PRECISIONS)}.")


def _single_solve(inputs: SolveInputs, products: ProductPlan, outputs: Tensor, pseudo_values: Tensor) -> None:
    q, k, v, g, beta, initial_state, state_indices, tree, scale = inputs
    batch, nodes, value_heads, value_dim = v.shape
    size = max(16, triton.next_power_of_2(nodes))
    _single_kernel[(triton.cdiv(value_dim, products.block_v), batch * value_heads)](
        q, k, v, g, beta, initial_state, state_indices, tree.parents, tree.words, outputs, pseudo_values,
        scale, nodes, nodes if tree.parents.shape[0] > 1 else 0, tree.max_depth,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *g.stride()[:2], *beta.stride()[:2],
        *initial_state.stride()[:3],
        **_constants(q, v, products, size, tree.max_depth),
        num_warps=WARPS, num_stages=LOAD_STAGES, maxnreg=products.maxnreg,
    )  # fmt: skip


def _constants(q: Tensor, v: Tensor, products: ProductPlan, size: int, max_depth: int) -> dict[str, object]:
    stages = inverse_stages(max_depth, size)
    return head_constants(q, v, products) | dict(SIZE=size, STAGES=stages, GRAM_PRECISION=products.gram_precision)


@triton.jit(do_not_specialize=["nodes", "tree_nodes", "max_depth"])
def _single_kernel(
    q, k, v, g, beta, initial_state, state_indices, parents, words, outputs, pseudo_values,
    scale, nodes, tree_nodes, max_depth,
    q_sequence, q_node, q_head, k_sequence, k_node, k_head, v_sequence, v_node, v_head,
    g_sequence, g_node, beta_sequence, beta_node, state_entry, state_head, state_row,
    VALUE_HEADS: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, SIZE: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, GRAM_PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (value tile, sequence and value head): the whole tree is one tile of SIZE nodes, 32 at most."""
    sequence = (tl.program_id(1) // VALUE_HEADS).to(tl.int64)
    value_head = tl.program_id(1) % VALUE_HEADS
    key_head = value_head // GROUP
    q += sequence * q_sequence + key_head * q_head
    k += sequence * k_sequence + key_head * k_head
    v += sequence * v_sequence + value_head * v_head
    g += sequence * g_sequence + value_head
    beta += sequence * beta_sequence + value_head
    parents += sequence * tree_nodes
    words += sequence * tree_nodes
    entry = sequence if state_indices is None else tl.load(state_indices + sequence).to(tl.int64)
    state_rows = tl.where(entry < 0, 0, K)
    initial_state += entry * state_entry + value_head * state_head
    node = tl.arange(0, SIZE)
    lane = node[None, :]
    word = tl.load(words + node, mask=node < nodes, other=0)
    real = word != 0
    related = ((word[:, None] >> lane) & 1) != 0
    above = related & (node[:, None] != lane)
    head, tail = path_sums(g, g_node, parents, tl.where(real, node, -1), max_depth)
    strength = tl.load(beta + node * beta_node, mask=real, other=0.0)
    column = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    held = (column < V)[None, :]
    value = tl.load(v + node[:, None] * v_node + column[None, :], mask=real[:, None] & held, other=0.0).to(tl.float32)
    k_products = tl.zeros([SIZE, SIZE], tl.float32)
    q_products = tl.zeros([SIZE, SIZE], tl.float32)
    k_reads = tl.zeros([SIZE, BLOCK_V], tl.float32)
    q_reads = tl.zeros([SIZE, BLOCK_V], tl.float32)
    for start in range(0, K, BLOCK_K):
        feature = start + tl.arange(0, BLOCK_K)
        mask = real[:, None] & (feature < K)[None, :]
        key = tl.load(k + node[:, None] * k_node + feature[None, :], mask=mask, other=0.0).to(tl.float32)
        query = tl.load(q + node[:, None] * q_node + feature[None, :], mask=mask, other=0.0).to(tl.float32)
        state = tl.load(
            initial_state + feature[:, None] * state_row + column[None, :],
            mask=(feature < state_rows)[:, None] & held,
            other=0.0,
        )
        k_products = tl.dot(key, tl.trans(key), k_products, input_precision=GRAM_PRECISION)
        q_products = tl.dot(query, tl.trans(key), q_products, input_precision=GRAM_PRECISION)
        k_reads = tl.dot(key, state, k_reads, input_precision=PRECISION)
        q_reads = tl.dot(query, state, q_reads, input_precision=PRECISION)
    ratios = decay_ratios(head, tail, head, tail, related)
    decay = tl.exp(head)[:, None]
    update = tl.where(above, strength[:, None] * ratios * k_products, 0.0)
    inverse = unit_lower_inverse(update, above, SIZE, STAGES, PRECISION)
    solved = tl.dot(inverse, strength[:, None] * (value - decay * k_reads), input_precision=PRECISION)
    read = tl.dot(ratios * q_products, solved, decay * q_reads, input_precision=PRECISION) * scale
    target = sequence * nodes * VALUE_HEADS * V + (node[:, None] * VALUE_HEADS + value_head) * V + column[None, :]
    inside = (node < nodes)[:, None] & held
    tl.store(pseudo_values + target, solved, mask=inside)
    tl.store(outputs + target, tl.where(real[:, None], read, 0.0).to(outputs.dtype.element_ty), mask=inside)


def specialisations() -> list[Specialisation]:
    """Trees of up to 16 and up to 32 nodes, of any depth."""
    found = []
    for size in (16, 32):
        for name, q, v, products in launch_cases(size):
            constants = _constants(q, v, products, size, size - 1)
            signature = launch_signature(_single_kernel, q.dtype, constants)
            options = (WARPS, LOAD_STAGES, products.maxnreg)
            found.append(Specialisation(f"single_{size}_{name}", _single_kernel, signature, constants, *options))
    return found
