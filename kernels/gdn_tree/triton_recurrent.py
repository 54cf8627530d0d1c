"""Gated delta rule over a token tree by recurrence on a GPU, as serving engines verify: one stored state per node.

One warp takes a few value columns of one head through all nodes in order. The state of the node just done stays in
registers; only a node that starts from another one loads its parent's state, one node ahead, as are k, q and v.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.gdn_tree.fused import GdnTreeOutputs
from kernels.gdn_tree.structure import TreeStructure
from kernels.gdn_tree.triton_structure import DeviceTree, as_device_tree

# One warp a program and 8 value columns, one 32-byte sector of each row of a state: 768 warps at 48 heads of 128, six a
# processor of an H100. 16 columns take 254 registers for half the warps; two warps would exchange sums at every node.
VALUE_TILE = 8


def node_recurrent(
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
) -> GdnTreeOutputs:
    """Node after node, each from its parent's stored state: the per-branch baseline, for comparison with the solve.

    q, k [B, N, H, K], l2-normalised, and v [B, N, HV, V] in bf16 or fp32; g (log decay, <= 0), beta [B, N, HV] and
    initial_state [P, HV, K, V] in fp32; last dimensions dense, other strides free. Sequence b starts from entry
    state_indices[b] (int32; negative: from zeros) or, without them, from entry b; the entry is only read. Returns
    outputs (dtype of v) and pseudo-values (fp32) [B, N, HV, V] and states [B, N, HV, K, V] in fp32. Padding rows
    (parent < 0, not the anchor) are never read, their outputs are 0 and their states are left unwritten.
    Raises ValueError where a last dimension is not dense. Source: arXiv 2607.06763, section 3.4.
    """
    require_dense_rows(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    batch, nodes, heads, key_dim = k.shape
    value_heads, value_dim = v.shape[2:]
    parents = as_device_tree(structure).parents
    outputs = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    pseudo_values = torch.empty(v.shape, dtype=torch.float32, device=v.device)
    states = torch.empty(batch, nodes, value_heads, key_dim, value_dim, dtype=torch.float32, device=v.device)
    _node_recurrent_kernel[(triton.cdiv(value_dim, VALUE_TILE), value_heads, batch)](
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        state_indices,
        parents,
        outputs,
        pseudo_values,
        states,
        key_dim**-0.5 if scale is None else scale,
        nodes,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *g.stride()[:2],
        *beta.stride()[:2],
        *initial_state.stride()[:3],
        parents.stride(0) if parents.shape[0] > 1 else 0,
        HEADS=heads,
        VALUE_HEADS=value_heads,
        K=key_dim,
        V=value_dim,
        BLOCK_K=max(16, triton.next_power_of_2(key_dim)),
        BLOCK_V=VALUE_TILE,
        num_warps=1,
        num_stages=1,
    )
    return GdnTreeOutputs(outputs, pseudo_values, states)


def require_dense_rows(**tensors: Tensor | None) -> None:
    """Kernels take every stride but the last, which they assume to be 1; raises ValueError where it is not."""
    for name, x in tensors.items():
        if x is not None and x.shape[-1] > 1 and x.stride(-1) != 1:
            raise ValueError(
                f"{name}: shape {list(x.shape)} has strides {list(x.stride())}; its last dimension must be contiguous."
            )


@triton.jit
def _load_node(q, k, v, g, beta, node, real, strides, rows, columns, K, V):
    """One node's query, key, value, log decay and beta, zeros where it is not `real`: then nothing is touched."""
    q_node, k_node, v_node, g_node, beta_node = strides
    # `!= 0` changes nothing on a GPU; the interpreter spreads a scalar bool as int32, which is no mask.
    key_mask = ((rows < K) & real) != 0
    query = tl.load(q + node * q_node + rows, mask=key_mask, other=0.0).to(tl.float32)
    key = tl.load(k + node * k_node + rows, mask=key_mask, other=0.0).to(tl.float32)
    value = tl.load(v + node * v_node + columns, mask=((columns < V) & real) != 0, other=0.0).to(tl.float32)
    log_decay = tl.load(g + node * g_node, mask=real, other=0.0)
    return query, key, value, log_decay, tl.load(beta + node * beta_node, mask=real, other=0.0)


@triton.jit(do_not_specialize=["nodes"])
def _node_recurrent_kernel(
    q, k, v, g, beta, initial_state, state_indices, parents, outputs, pseudo_values, states, scale, nodes,
    q_sequence, q_node, q_head, k_sequence, k_node, k_head, v_sequence, v_node, v_head,
    g_sequence, g_node, beta_sequence, beta_node, state_entry, state_head, state_row, parents_sequence,
    HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Grid (value tiles, value heads, sequences). S is the tile [BLOCK_K, BLOCK_V] of the current node's parent."""
    rows = tl.arange(0, BLOCK_K)
    columns = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    value_head = tl.program_id(1)
    head = value_head // (VALUE_HEADS // HEADS)
    sequence = tl.program_id(2).to(tl.int64)
    q += sequence * q_sequence + head * q_head
    k += sequence * k_sequence + head * k_head
    v += sequence * v_sequence + value_head * v_head
    g += sequence * g_sequence + value_head
    beta += sequence * beta_sequence + value_head
    parents += sequence * parents_sequence
    outputs += (sequence * nodes * VALUE_HEADS + value_head) * V
    pseudo_values += (sequence * nodes * VALUE_HEADS + value_head) * V
    tile = rows[:, None] * V + columns[None, :]
    states += (sequence * nodes * VALUE_HEADS + value_head) * K * V
    inside = (rows[:, None] < K) & (columns[None, :] < V)
    strides = (q_node, k_node, v_node, g_node, beta_node)

    entry = sequence
    if state_indices is not None:
        entry = tl.load(state_indices + sequence).to(tl.int64)
    start = initial_state + entry * state_entry + value_head * state_head
    start += rows[:, None] * state_row + columns[None, :]
    S = tl.load(start, mask=(inside & (entry >= 0)) != 0, other=0.0)

    query, key, value, log_decay, strength = _load_node(q, k, v, g, beta, 0, nodes > 0, strides, rows, columns, K, V)
    real = nodes > 0
    for node in range(nodes):
        follower = node + 1
        parent = tl.load(parents + follower, mask=follower < nodes, other=-1)
        next_real = parent >= 0
        next_query, next_key, next_value, next_log_decay, next_strength = _load_node(
            q, k, v, g, beta, follower, next_real, strides, rows, columns, K, V
        )
        branches = next_real & (parent != node)
        # A lane may load what another lane stored at an earlier node: without this, nothing orders the two.
        tl.debug_barrier()
        ahead = tl.load(states + parent * (VALUE_HEADS * K * V) + tile, mask=(inside & branches) != 0, other=0.0)

        # Both reads take the state before its decay, so that neither waits for u: S_i^T q = e^g S^T q + (k.q) u.
        query *= scale
        decay = tl.exp(log_decay)
        update = strength * (value - decay * tl.sum(S * key[:, None], 0))
        output = decay * tl.sum(S * query[:, None], 0) + tl.sum(key * query, 0) * update
        S = S * decay + key[:, None] * update[None, :]

        written = node * (VALUE_HEADS * V) + columns
        tl.store(outputs + written, output.to(outputs.dtype.element_ty), mask=columns < V)
        tl.store(pseudo_values + written, update, mask=columns < V)
        tl.store(states + node * (VALUE_HEADS * K * V) + tile, S, mask=(inside & real) != 0)
        S = tl.where(branches, ahead, S)
        query, key, value, log_decay, strength = next_query, next_key, next_value, next_log_decay, next_strength
        real = next_real


def specialisations() -> list[Specialisation]:
    """27B shapes (16 key heads, 48 value heads) and 4B shapes (16, 32), heads of 128."""
    return [_specialisation(value_heads, kind) for value_heads in (48, 32) for kind in ("bf16", "fp32")]


def _specialisation(value_heads: int, kind: str) -> Specialisation:
    arguments = [name for name in _node_recurrent_kernel.arg_names if name.islower() and name != "state_indices"]
    dims = {"HEADS": 16, "VALUE_HEADS": value_heads, "K": 128, "V": 128}
    return Specialisation(
        name=f"node_recurrent_16x{value_heads}x128_{kind}",
        kernel=_node_recurrent_kernel,
        signature=dict.fromkeys(arguments, "i32:16")
        | dict.fromkeys(("q", "k", "v", "outputs"), f"*{kind}:16")
        | dict.fromkeys(("g", "beta", "initial_state", "pseudo_values", "states"), "*fp32:16")
        | {"parents": "*i32:16", "nodes": "i32", "scale": "fp32"},
        constexprs={"state_indices": None, **dims, "BLOCK_K": 128, "BLOCK_V": VALUE_TILE},
        num_warps=1,
        num_stages=1,
    )
