"""The tree solve in two launches, for any number of nodes: all tiles in parallel, then substitution with read-out.

A panel is 64 x 32: above, a tile of the linear system, below, the same tile of the read-out, for 32 rows (nodes) and 32
columns (ancestors). One product of a panel with pseudo-values advances substitution and outputs together: the read-out
adds no step to the sequence that bounds the latency, and needs no launch that reads state and pseudo-values again.

Off the diagonal a panel holds [-A; R], with A = beta E * KK^T, R = scale E * QK^T, and E_ij = e^{G_i - G_j} where j is
i or an ancestor of i, else 0. On the diagonal it holds [X; R X], X = (I + A)^-1, which turns a right-hand side into
pseudo-values and outputs at once. Panels without an ancestor pair are neither written nor read. Maths: README.md.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.gdn_tree.tiles import (
    ProductPlan,
    SolveInputs,
    decay_ratios,
    exponent,
    head_constants,
    inverse_stages,
    launch_cases,
    launch_signature,
    path_sums,
    tile_products,
    unit_lower_inverse,
)
from kernels.gdn_tree.triton_structure import WORD_BITS

TILE = tl.constexpr(WORD_BITS)
PANEL = tl.constexpr(2 * WORD_BITS * WORD_BITS)
# Steps and warps that spill on none of sm_80, sm_90 and sm_100.
PANELS_WARPS = 4
PANELS_FEATURES = {"ieee": 16, "tf32x3": 16, "tf32": 64}
SOLVE_WARPS = {"ieee": 16, "tf32x3": 8, "tf32": 8}
LOAD_STAGES = 3


@triton.jit(do_not_specialize=["nodes", "blocks", "tree_nodes", "max_depth"])
def _panels_kernel(
    q, k, g, beta, parents, words, panels, decays,
    scale, nodes, blocks, tree_nodes, max_depth,
    q_sequence, q_node, q_head, k_sequence, k_node, k_head, g_sequence, g_node, beta_sequence, beta_node,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr, GRAM_PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (tile, sequence and key head). Diagonal tiles come first, one per value head: inverting takes longest.

    Behind them come the tiles below the diagonal, whose products serve all GROUP value heads of the key head.
    """
    tile = tl.program_id(0)
    sequence = (tl.program_id(1) // HEADS).to(tl.int64)
    key_head = tl.program_id(1) % HEADS
    first_head = key_head * GROUP
    q += sequence * q_sequence + key_head * q_head
    k += sequence * k_sequence + key_head * k_head
    g += sequence * g_sequence + first_head
    beta += sequence * beta_sequence + first_head
    parents += sequence * tree_nodes
    words += sequence * tree_nodes * blocks
    tiles = blocks * (blocks + 1) // 2
    first_pair = sequence * HEADS * GROUP + first_head
    panels += first_pair * tiles * PANEL
    lane = tl.arange(0, TILE)
    place = lane[:, None] * TILE + lane[None, :]
    if tile < blocks * GROUP:
        block = tile // GROUP
        member = tile % GROUP
        node = lane + block * TILE
        word = tl.load(words + node * blocks + block, mask=node < nodes, other=0)
        real = word != 0
        related = ((word[:, None] >> lane[None, :]) & 1) != 0
        above = related & (lane[:, None] != lane[None, :])
        head, tail = path_sums(g + member, g_node, parents, tl.where(real, node, -1), max_depth)
        strength = tl.load(beta + node * beta_node + member, mask=real, other=0.0)
        k_products, q_products = tile_products(
            q, k, q_node, k_node, node, node, real, real, K, BLOCK_K, TILE, GRAM_PRECISION
        )
        ratios = decay_ratios(head, tail, head, tail, related)
        update = tl.where(above, strength[:, None] * ratios * k_products, 0.0)
        inverse = unit_lower_inverse(update, above, TILE, STAGES, PRECISION)
        readout = tl.dot(scale * ratios * q_products, inverse, input_precision=PRECISION)
        panel = panels + (member * tiles + block) * PANEL + place
        tl.store(panel, inverse)
        tl.store(panel + PANEL // 2, readout)
        tl.store(decays + (first_pair + member) * nodes + node, tl.exp(head), mask=node < nodes)
    else:
        pair = tile - blocks * GROUP
        # pair = block (block - 1) / 2 + other: the half keeps an inexact root on the right side of the integer.
        block = ((1.0 + tl.sqrt(8.0 * pair + 1.5)) * 0.5).to(tl.int32)
        other = pair - block * (block - 1) // 2
        node = lane + block * TILE
        word = tl.load(words + node * blocks + other, mask=node < nodes, other=0)
        if tl.max((word != 0).to(tl.int32), 0) != 0:
            related = ((word[:, None] >> lane[None, :]) & 1) != 0
            ancestor = lane + other * TILE
            row_real = word != 0
            column_real = tl.max(related.to(tl.int32), 0) != 0
            member = tl.arange(0, GROUP_BLOCK)[None, :]
            g_row = g + tl.minimum(member, GROUP - 1)
            head_i, tail_i = path_sums(g_row, g_node, parents, tl.where(row_real, node, -1)[:, None], max_depth)
            head_j, tail_j = path_sums(g_row, g_node, parents, tl.where(column_real, ancestor, -1)[:, None], max_depth)
            k_products, q_products = tile_products(
                q, k, q_node, k_node, node, ancestor, row_real, column_real, K, BLOCK_K, TILE, GRAM_PRECISION
            )
            for value_head in range(GROUP):
                mine = member == value_head
                ratios = decay_ratios(
                    tl.sum(tl.where(mine, head_i, 0.0), 1), tl.sum(tl.where(mine, tail_i, 0.0), 1),
                    tl.sum(tl.where(mine, head_j, 0.0), 1), tl.sum(tl.where(mine, tail_j, 0.0), 1),
                    related,
                )  # fmt: skip
                strength = tl.load(beta + node * beta_node + value_head, mask=row_real, other=0.0)
                panel = panels + (value_head * tiles + blocks + pair) * PANEL + place
                tl.store(panel, -strength[:, None] * ratios * k_products)
                tl.store(panel + PANEL // 2, scale * ratios * q_products)


@triton.jit(do_not_specialize=["nodes", "blocks", "tree_nodes"])
def _solve_kernel(
    q, k, v, beta, initial_state, state_indices, words, panels, decays, outputs, pseudo_values,
    scale, nodes, blocks, tree_nodes,
    q_sequence, q_node, q_head, k_sequence, k_node, k_head, v_sequence, v_node, v_head,
    beta_sequence, beta_node, state_entry, state_head, state_row,
    VALUE_HEADS: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, WORDS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (value tile, sequence and value head): 32 nodes after 32, their keys stacked on their queries."""
    sequence = (tl.program_id(1) // VALUE_HEADS).to(tl.int64)
    value_head = tl.program_id(1) % VALUE_HEADS
    key_head = value_head // GROUP
    q += sequence * q_sequence + key_head * q_head
    k += sequence * k_sequence + key_head * k_head
    v += sequence * v_sequence + value_head * v_head
    beta += sequence * beta_sequence + value_head
    words += sequence * tree_nodes * blocks
    panels += tl.program_id(1).to(tl.int64) * (blocks * (blocks + 1) // 2) * PANEL
    decays += tl.program_id(1).to(tl.int64) * nodes
    outputs += (sequence * nodes * VALUE_HEADS + value_head) * V
    pseudo_values += (sequence * nodes * VALUE_HEADS + value_head) * V
    entry = sequence if state_indices is None else tl.load(state_indices + sequence).to(tl.int64)
    state_rows = tl.where(entry < 0, 0, K)
    initial_state += entry * state_entry + value_head * state_head
    column = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    held = (column < V)[None, :]
    word = tl.arange(0, WORDS)
    line = tl.arange(0, 2 * TILE)
    reads_out = line >= TILE
    lane = tl.arange(0, TILE)
    for block in range(blocks):
        node = line % TILE + block * TILE
        rows = lane + block * TILE
        above = (rows < nodes)[:, None] & (word < block)[None, :]
        ancestry = tl.load(words + rows[:, None] * blocks + word[None, :], mask=above, other=0)
        own = tl.load(words + node * blocks + block, mask=node < nodes, other=0)
        real = own != 0
        weights = tl.load(panels + block * PANEL + line[:, None] * TILE + lane[None, :])
        strength = tl.load(beta + node * beta_node, mask=real, other=0.0)
        decay = tl.load(decays + node, mask=real, other=0.0)
        first = (real & ~reads_out)[:, None]
        second = (real & reads_out)[:, None]
        value = tl.load(v + node[:, None] * v_node + column[None, :], mask=first & held, other=0.0)
        total = tl.zeros([2 * TILE, BLOCK_V], tl.float32)
        for start in range(0, K, BLOCK_K):
            feature = start + tl.arange(0, BLOCK_K)
            within = (feature < K)[None, :]
            key = tl.load(k + node[:, None] * k_node + feature[None, :], mask=first & within, other=0.0)
            query = tl.load(q + node[:, None] * q_node + feature[None, :], mask=second & within, other=0.0)
            known = (feature < state_rows)[:, None] & held
            state = tl.load(initial_state + feature[:, None] * state_row + column[None, :], mask=known, other=0.0)
            total = tl.dot(key.to(tl.float32) + query.to(tl.float32), state, total, input_precision=PRECISION)
        total *= tl.where(reads_out, scale, -strength)[:, None] * decay[:, None]
        total += strength[:, None] * value.to(tl.float32)
        # Pseudo-values of earlier blocks were stored by other threads of this program.
        tl.debug_barrier()
        occupied = tl.max((ancestry != 0).to(tl.int32), 0)
        remaining = tl.sum(occupied << word, 0)
        for _ in range(tl.sum(occupied, 0)):
            lowest = remaining & -remaining
            remaining ^= lowest
            other = exponent(lowest)
            panel = panels + (blocks + block * (block - 1) // 2 + other) * PANEL
            factor = tl.load(panel + line[:, None] * TILE + lane[None, :])
            solved_row = (lane + other * TILE)[:, None] * (VALUE_HEADS * V)
            solved = tl.load(pseudo_values + solved_row + column[None, :], mask=held, other=0.0)
            total = tl.dot(factor, solved, total, input_precision=PRECISION)
        outer = tl.where(reads_out[:, None], total, 0.0)
        right_side = tl.sum(tl.reshape(total - outer, [2, TILE, BLOCK_V]), 0)
        result = tl.dot(weights, right_side, outer, input_precision=PRECISION)
        target = node[:, None] * (VALUE_HEADS * V) + column[None, :]
        inside = (node < nodes)[:, None] & held
        tl.store(pseudo_values + target, result, mask=inside & ~reads_out[:, None])
        tl.store(outputs + target, result.to(outputs.dtype.element_ty), mask=inside & reads_out[:, None])


def tiled_solve(inputs: SolveInputs, products: ProductPlan, outputs: Tensor, pseudo_values: Tensor) -> None:
    """Writes outputs and pseudo_values [B, N, HV, V], both contiguous."""
    q, k, v, g, beta, initial_state, state_indices, tree, scale = inputs
    batch, nodes, value_heads, value_dim = v.shape
    heads, blocks = q.shape[2], tree.words.shape[2]
    tree_nodes = nodes if tree.words.shape[0] > 1 else 0
    tiles = blocks * (blocks + 1) // 2
    panels = torch.empty(batch * value_heads, tiles, PANEL.value, dtype=torch.float32, device=v.device)
    decays = torch.empty(batch * value_heads, nodes, dtype=torch.float32, device=v.device)
    _panels_kernel[(blocks * (value_heads // heads) + tiles - blocks, batch * heads)](
        q, k, g, beta, tree.parents, tree.words, panels, decays, scale, nodes, blocks, tree_nodes, tree.max_depth,
        *q.stride()[:3], *k.stride()[:3], *g.stride()[:2], *beta.stride()[:2],
        **_panels_constants(q, v, products, tree.max_depth),
        num_warps=PANELS_WARPS, num_stages=LOAD_STAGES, maxnreg=products.maxnreg,
    )  # fmt: skip
    _solve_kernel[(triton.cdiv(value_dim, products.block_v), batch * value_heads)](
        q, k, v, beta, initial_state, state_indices, tree.words, panels, decays, outputs, pseudo_values,
        scale, nodes, blocks, tree_nodes,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *beta.stride()[:2], *initial_state.stride()[:3],
        **_solve_constants(q, v, products),
        num_warps=SOLVE_WARPS[products.precision], num_stages=LOAD_STAGES, maxnreg=products.maxnreg,
    )  # fmt: skip


def _panels_constants(q: Tensor, v: Tensor, products: ProductPlan, max_depth: int) -> dict[str, object]:
    heads, key_dim = q.shape[2:]
    group = v.shape[2] // heads
    block_k = min(PANELS_FEATURES[products.precision], max(16, triton.next_power_of_2(key_dim)))
    return {
        **dict(HEADS=heads, GROUP=group, GROUP_BLOCK=triton.next_power_of_2(group), K=key_dim, BLOCK_K=block_k),
        **dict(STAGES=inverse_stages(max_depth, TILE.value), PRECISION=products.precision),
        "GRAM_PRECISION": products.gram_precision,
    }


def _solve_constants(q: Tensor, v: Tensor, products: ProductPlan) -> dict[str, object]:
    words = triton.next_power_of_2(triton.cdiv(v.shape[1], TILE.value))
    return head_constants(q, v, products) | {"WORDS": words}


def specialisations() -> list[Specialisation]:
    """Trees of 512 nodes, of any depth."""
    found = []
    for name, q, v, products in launch_cases(512):
        panels = ("panels", _panels_kernel, _panels_constants(q, v, products, max_depth=511), PANELS_WARPS)
        solve = ("solve", _solve_kernel, _solve_constants(q, v, products), SOLVE_WARPS[products.precision])
        for label, kernel, constants, warps in (panels, solve):
            signature, options = launch_signature(kernel, q.dtype, constants), (warps, LOAD_STAGES, products.maxnreg)
            found.append(Specialisation(f"{label}_{name}", kernel, signature, constants, *options))
    return found
