"""Gated delta rule over a token tree as one masked triangular solve per head, on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.gdn_tree.fused import GdnTreeOutputs
from kernels.gdn_tree.structure import TreeStructure
from kernels.gdn_tree.tiles import ProductPlan, decay_ratios, inverse_stages, path_sums, product_plan, unit_lower_inverse
from kernels.gdn_tree.triton_recurrent import require_dense_rows
from kernels.gdn_tree.triton_solve import tiled_solve
from kernels.gdn_tree.triton_structure import DeviceTree, as_device_tree

SINGLE_NODES = 32

PRECISIONS = ("ieee", "tf32x3", "tf32")


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
    precision: str = "ieee",
) -> GdnTreeOutputs:
    """doc"""
    require_dense_rows(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    tree = as_device_tree(structure)
    key_dim, value_dim = k.shape[-1], v.shape[-1]
    outputs = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    pseudo_values = torch.empty(v.shape, dtype=torch.float32, device=v.device)
    solve = _single_solve if v.shape[1] <= SINGLE_NODES else tiled_solve
    solve(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        initial_state=initial_state,
        state_indices=state_indices,
        tree=tree,
        scale=key_dim**-0.5 if scale is None else scale,
        products=product_plan(key_dim, value_dim, k.dtype, precision),
        outputs=outputs,
        pseudo_values=pseudo_values,
    )
    return GdnTreeOutputs(outputs, pseudo_values, None)


def _single_solve(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    state_indices: Tensor | None,
    tree: DeviceTree,
    scale: float,
    products: ProductPlan,
    outputs: Tensor,
    pseudo_values: Tensor,
) -> None:
    batch, nodes, heads, key_dim = k.shape
    value_heads, value_dim = v.shape[2:]
    size = max(16, triton.next_power_of_2(nodes))
    trees, _, word_count = tree.words.shape
    _single_kernel[(triton.cdiv(value_dim, products.block_v), batch * value_heads)](
        q, k, v, g, beta, initial_state, state_indices, tree.parents, tree.words, outputs, pseudo_values,
        scale, nodes, word_count, nodes if trees > 1 else 0, tree.max_depth,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *g.stride()[:2], *beta.stride()[:2],
        *initial_state.stride()[:3],
        VALUE_HEADS=value_heads, GROUP=value_heads // heads, K=key_dim, V=value_dim,
        BLOCK_K=products.block_k, BLOCK_V=products.block_v, SIZE=size, STAGES=inverse_stages(tree.max_depth, size),
        PRECISION=products.precision, GRAM_PRECISION=products.gram_precision,
        num_warps=4 if size == 16 else 8, num_stages=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["nodes", "word_count", "tree_nodes", "max_depth"])
def _single_kernel(
    q, k, v, g, beta, initial_state, state_indices, parents, words, outputs, pseudo_values,
    scale, nodes, word_count, tree_nodes, max_depth,
    q_sequence, q_node, q_head, k_sequence, k_node, k_head, v_sequence, v_node, v_head,
    g_sequence, g_node, beta_sequence, beta_node, state_entry, state_head, state_row,
    VALUE_HEADS: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, SIZE: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, GRAM_PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (value tile, sequence and value head): the whole tree is one tile of SIZE nodes, 64 at most."""
    sequence = (tl.program_id(1) // VALUE_HEADS).to(tl.int64)
    value_head = tl.program_id(1) % VALUE_HEADS
    key_head = value_head // GROUP
    q += sequence * q_sequence + key_head * q_head
    k += sequence * k_sequence + key_head * k_head
    v += sequence * v_sequence + value_head * v_head
    g += sequence * g_sequence + value_head
    beta += sequence * beta_sequence + value_head
    parents += sequence * tree_nodes
    words += sequence * tree_nodes * word_count
    entry = sequence if state_indices is None else tl.load(state_indices + sequence).to(tl.int64)
    state_rows = tl.where(entry < 0, 0, K)
    initial_state += entry * state_entry + value_head * state_head
    node = tl.arange(0, SIZE)
    lane = node[None, :]
    word = tl.load(words + node * word_count, mask=node < nodes, other=0)
    real = word != 0
    word = word[:, None]
    if SIZE > 32:
        upper = tl.load(words + node * word_count + 1, mask=node < nodes, other=0)
        word = tl.where(lane < 32, word, upper[:, None])
    related = ((word >> (lane & 31)) & 1) != 0
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
