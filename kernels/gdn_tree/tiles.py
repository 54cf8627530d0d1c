"""What the Triton kernels of the tree solve share: their arguments, products, path sums and inverses of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gdn_tree.triton_structure import DeviceTree

PRECISIONS = ("ieee", "tf32x3", "tf32")


class SolveInputs(NamedTuple):
    """Arguments of fused_tree_gated_delta_rule, where they are explained, with its defaults filled in."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    initial_state: Tensor
    state_indices: Tensor | None
    tree: DeviceTree
    scale: float


class ProductPlan(NamedTuple):
    """How matrix products run: tiles of `block_k` features by `block_v` value columns, and precisions of tl.dot.

    maxnreg: registers per thread. Left to itself, ptxas spills a few bytes to fit one more block on a processor, which
    no launch here has; where products run without tensor cores it finds less than the limit by itself.
    """

    block_k: int
    block_v: int
    precision: str
    gram_precision: str
    maxnreg: int | None


def product_plan(key_dim: int, value_dim: int, dtype: torch.dtype, precision: str) -> ProductPlan:
    """For q and k of `dtype`. A bf16 number is a tf32 number: tf32 products of q and k in bf16 are exact already."""
    block_k = min(32 if precision == "tf32" else 16, max(16, triton.next_power_of_2(key_dim)))
    block_v = min(64, max(16, triton.next_power_of_2(value_dim)))
    exact = dtype == torch.bfloat16 and precision == "tf32x3"
    maxnreg = None if precision == "ieee" else 255
    return ProductPlan(block_k, block_v, precision, "tf32" if exact else precision, maxnreg)


def head_constants(q: Tensor, v: Tensor, products: ProductPlan) -> dict[str, object]:
    """Constants of the kernels that solve for one value head, from the shapes of q and v."""
    return {
        "VALUE_HEADS": v.shape[2],
        "GROUP": v.shape[2] // q.shape[2],
        "K": q.shape[3],
        "V": v.shape[3],
        "BLOCK_K": products.block_k,
        "BLOCK_V": products.block_v,
        "PRECISION": products.precision,
    }


def inverse_stages(max_depth: int, size: int) -> int:
    """ceil(log2(nodes on the longest path within a tile)): the bits that hold every rank of `unit_lower_inverse`."""
    return (min(max_depth + 1, size) - 1).bit_length()


def launch_cases(nodes: int) -> Iterator[tuple[str, Tensor, Tensor, ProductPlan]]:
    """(name, q, v, products) to compile ahead: heads as in Qwen3.6-27B and in Qwen3.5-4B, K = V = 128, no data."""
    cases = [("27b", 48, dtype, precision) for dtype in (torch.bfloat16, torch.float32) for precision in PRECISIONS]
    cases += [("4b", 32, torch.bfloat16, "tf32"), ("4b", 32, torch.float32, "tf32")]
    for name, heads, dtype, precision in cases:
        q, v = (torch.empty(1, nodes, count, 128, dtype=dtype, device="meta") for count in (16, heads))
        yield f"{name}_{str(dtype)[6:]}_{precision}", q, v, product_plan(128, 128, dtype, precision)


def launch_signature(kernel: Any, dtype: torch.dtype, constants: dict[str, object]) -> dict[str, str]:
    """Types of the run-time arguments of a solve kernel for q, k, v of `dtype`; what is not named here is a stride."""
    inputs = "*bf16:16" if dtype == torch.bfloat16 else "*fp32:16"
    kinds = {
        **dict.fromkeys(("q", "k", "v", "outputs"), inputs),
        **dict.fromkeys(("g", "beta", "initial_state", "panels", "decays", "pseudo_values"), "*fp32:16"),
        **dict.fromkeys(("parents", "words", "state_indices"), "*i32:16"),
        **dict.fromkeys(("nodes", "blocks", "tree_nodes", "max_depth"), "i32"),
        "scale": "fp32",
    }
    return {name: kinds.get(name, "i32:16") for name in kernel.arg_names if name not in constants}


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

    Rank rows by their ancestors within the tile; STAGES bits hold every rank. Stage s joins pairs of groups, whose
    ranks first differ in bit s: [[L, 0], [C, M]]^-1 = [[L^-1, 0], [-M^-1 C L^-1, M^-1]]. Summing powers of the update
    by squaring takes as many products at any depth; but where keys are alike, powers grow like binomials and cancel (32
    nodes in a chain, cosine 0.9 between keys: relative error 0.4 in fp32). Here all factors are blocks of inverses.
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
):  # fmt: skip
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


@triton.jit
def exponent(power):
    """log2 of a power of two, read from its representation as a float."""
    return (power.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
