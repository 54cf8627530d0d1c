"""Weaver's biased RMS norm joined to what precedes it (a residual sum, a node's input), in Triton."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation

NORM_EPS = tl.constexpr(1e-6)
PUBLISHED_HIDDEN, PUBLISHED_RANK = 5120, 2048
DTYPES = ("bf16", "fp32")  # of weights and activations


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x + delta, rounded, and its norm; x and delta [N, SIZE] contiguous. Without delta: x itself and its norm."""
    total = x if delta is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    rows, size = x.shape
    _add_norm_kernel[(rows,)](x, delta, weight, bias, total, normed, **_sizes(size), num_warps=_warps(size))
    return total, normed


def node_inputs(
    *,
    table: Tensor,
    positions: Tensor | None,
    tokens: Tensor,
    depths: Tensor,
    batch: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Residual stream [W, R] of the nodes in `batch` and its norm; rows of negative slots are left unwritten.

    table [V, R] token features; positions [K, R] by depth (None: v2); tokens [N] int64, depths [N] int32, by slot;
    batch [W] int32 slots. All contiguous.
    """
    rows, size = batch.shape[0], table.shape[1]
    inputs, normed = (torch.empty(rows, size, dtype=table.dtype, device=table.device) for _ in range(2))
    arguments = (table, positions, tokens, depths, batch, weight, bias, inputs, normed)
    _node_inputs_kernel[(rows,)](*arguments, **_sizes(size), num_warps=_warps(size))
    return inputs, normed


def _sizes(size: int) -> dict[str, object]:
    return {"SIZE": size, "BLOCK": triton.next_power_of_2(size)}


def _warps(size: int) -> int:
    return 8 if size > 4096 else 4


@triton.jit
def _store_norm(x: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, SIZE: tl.constexpr) -> None:
    """Store the norm of one row x [next power of two of SIZE] fp32, zero beyond SIZE, at `out`."""
    column = tl.arange(0, x.shape[0])
    inside = column < SIZE
    scale = tl.rsqrt(tl.sum(x * x, 0) / SIZE + NORM_EPS)
    gain = tl.load(weight + column, inside, 0.0).to(tl.float32)
    offset = tl.load(bias + column, inside, 0.0).to(tl.float32)
    tl.store(out + column, (x * scale * gain + offset).to(out.dtype.element_ty), inside)


@triton.jit
def _add_norm_kernel(
    x: tl.tensor,
    delta: tl.tensor | None,
    weight: tl.tensor,
    bias: tl.tensor,
    total: tl.tensor,  # written where there is a delta
    normed: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    start = tl.program_id(0) * SIZE
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    row = tl.load(x + start + column, inside, 0.0).to(tl.float32)
    if delta is not None:
        row += tl.load(delta + start + column, inside, 0.0).to(tl.float32)
        rounded = row.to(total.dtype.element_ty)
        tl.store(total + start + column, rounded, inside)
        row = rounded.to(tl.float32)
    _store_norm(row, weight, bias, normed + start, SIZE)


@triton.jit
def _node_inputs_kernel(
    table: tl.tensor,
    positions: tl.tensor | None,
    tokens: tl.tensor,
    depths: tl.tensor,
    batch: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    inputs: tl.tensor,
    normed: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    slot = tl.load(batch + row)
    if slot < 0:
        return
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    x = tl.load(table + tl.load(tokens + slot) * SIZE + column, inside, 0.0).to(tl.float32)
    if positions is not None:
        x += tl.load(positions + tl.load(depths + slot) * SIZE + column, inside, 0.0).to(tl.float32)
    rounded = x.to(inputs.dtype.element_ty)
    tl.store(inputs + row * SIZE + column, rounded, inside)
    _store_norm(rounded.to(tl.float32), weight, bias, normed + row * SIZE, SIZE)


def specialisations() -> list[Specialisation]:
    """Both kernels at the published widths, as Weavers v1 and v2 launch them."""
    return [*_add_norms(), *_node_inputs()]


def _specialise(name: str, kernel: object, types: dict[str, str], size: int, absent: str | None) -> Specialisation:
    given = {key: kind for key, kind in types.items() if key != absent}
    missing = {} if absent is None else {absent: None}
    return Specialisation(name, kernel, given, {**_sizes(size), **missing}, num_warps=_warps(size))


def _add_norms() -> Iterator[Specialisation]:
    names = ("x", "delta", "weight", "bias", "total", "normed")
    variants = ((PUBLISHED_HIDDEN, "delta"), (PUBLISHED_RANK, "delta"), (PUBLISHED_RANK, None))
    for dtype in DTYPES:
        for size, absent in variants:
            name = f"weaver_add_norm_{dtype}_{size}{'' if absent else '_delta'}"
            yield _specialise(name, _add_norm_kernel, dict.fromkeys(names, f"*{dtype}:16"), size, absent)


def _node_inputs() -> Iterator[Specialisation]:
    integers = {"tokens": "*i64:16", "depths": "*i32:16", "batch": "*i32:16"}
    names = ("table", "positions", *integers, "weight", "bias", "inputs", "normed")
    for dtype in DTYPES:
        for version, absent in (("v1", None), ("v2", "positions")):
            types = {name: integers.get(name, f"*{dtype}:16") for name in names}
            name = f"weaver_node_inputs_{dtype}_{version}"
            yield _specialise(name, _node_inputs_kernel, types, PUBLISHED_RANK, absent)
