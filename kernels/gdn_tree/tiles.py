"""Building blocks of the Triton kernels that solve over a tree: path sums, decays, products and inverses of tiles."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class ProductPlan(NamedTuple):
    """How matrix products run: tiles of `block_k` features by `block_v` value columns, precisions of tl.dot."""

    block_k: int
    block_v: int
    precision: str
    gram_precision: str


def product_plan(key_dim: int, value_dim: int, dtype: torch.dtype, precision: str) -> ProductPlan:
    """dtype: of q and k. bf16 numbers are tf32 numbers: a tf32 product of them loses nothing, so tf32x3 has no use there."""
    block_k = min(32 if precision == "tf32" else 16, max(16, triton.next_power_of_2(key_dim)))
    block_v = min(64, max(16, triton.next_power_of_2(value_dim)))
    exact = dtype == torch.bfloat16 and precision == "tf32x3"
    return ProductPlan(block_k, block_v, precision, "tf32" if exact else precision)


def inverse_stages(max_depth: int, size: int) -> int:
    """ceil(log2(nodes on the longest path within a tile)): the bits that hold every rank of `unit_lower_inverse`."""
    return (min(max_depth + 1, size) - 1).bit_length()


@triton.jit
def path_sums(g, g_node, parents, node, steps):
    """Sums of g from the anchor to each node (-1: none), as two fp32 terms that hold the fp64 sum; g may be pointers.

    Climbing takes one dependent load a level, whatever the number of nodes, and no fp64 arithmetic on tiles.
    """
    total = tl.load(g + node * g_node, mask=node >= 0, other=0.0).to(tl.float64)
    for _ in range(steps):
        node = tl.load(parents + node, mask=node >= 0, other=-1)
        total += tl.load(g + node * g_node, mask=node >= 0, other=0.0).to(tl.float64)
    head = total.to(tl.float32)
    return head, (total - head.to(tl.float64)).to(tl.float32)


@triton.jit
def decay_ratios(head_i, tail_i, head_j, tail_j, related):
    """e^{G_i - G_j} where j is i or an ancestor of i, 0 elsewhere: the exponents of other pairs never reach exp.

    What the difference of the heads loses is no more than its own rounding, however large the sums are.
    """
    exponent = (head_i[:, None] - head_j[None, :]) + (tail_i[:, None] - tail_j[None, :])
    return tl.exp(tl.where(related, exponent, float("-inf")))


@triton.jit
def unit_lower_inverse(update, above, SIZE: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr):
    """(I + update)^-1, where update[i, j] is 0 unless `above` (j is an ancestor of i); [SIZE, SIZE].

    Rows are ranked by their ancestors within the tile; STAGES bits hold every rank. Stage s joins two groups of rows, those
    whose ranks first differ in bit s: [[L, 0], [C, M]]^-1 = [[L^-1, 0], [-M^-1 C L^-1, M^-1]]. Squaring the nilpotent
    update takes as many products at any depth, but powers of the update grow like binomials where keys are alike and
    then cancel (a chain of 32 nodes whose keys agree to 0.9: relative error 0.4 in fp32); these are blocks of inverses.
    """
    row = tl.arange(0, SIZE)
    rank = tl.sum(above.to(tl.int32), 1)
    differing = rank[:, None] ^ rank[None, :]
    inverse = tl.where(row[:, None] == row[None, :], 1.0, 0.0) - tl.where(differing == 1, update, 0.0)
    for stage in range(1, STAGES):
        joined = tl.where((differing >> stage) == 1, update, 0.0)
        inverse -= tl.dot(inverse, tl.dot(joined, inverse, input_precision=PRECISION), input_precision=PRECISION)
    return inverse


@triton.jit
def tile_products(
    q, k, q_node, k_node, row, column, row_real, column_real,
    K: tl.constexpr, BLOCK_K: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
):
    """k_i . k_j and q_i . k_j for the nodes i in `row` and j in `column`, both [SIZE, SIZE]; zeros unless real."""
    k_products = tl.zeros([SIZE, SIZE], tl.float32)
    q_products = tl.zeros([SIZE, SIZE], tl.float32)
    for start in range(0, K, BLOCK_K):
        feature = start + tl.arange(0, BLOCK_K)
        rows = row_real[:, None] & (feature < K)[None, :]
        columns = column_real[None, :] & (feature < K)[:, None]
        key = tl.load(k + row[:, None] * k_node + feature[None, :], mask=rows, other=0.0).to(tl.float32)
        query = tl.load(q + row[:, None] * q_node + feature[None, :], mask=rows, other=0.0).to(tl.float32)
        other = tl.load(k + column[None, :] * k_node + feature[:, None], mask=columns, other=0.0).to(tl.float32)
        k_products = tl.dot(key, other, k_products, input_precision=PRECISION)
        q_products = tl.dot(query, other, q_products, input_precision=PRECISION)
    return k_products, q_products
