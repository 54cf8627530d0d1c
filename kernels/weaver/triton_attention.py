"""Attention of one Weaver node batch over prefix, ancestors and the nodes themselves, in Triton (one-layer Weavers).

With one layer a node's key and value depend on its token and depth alone. They are kept in a cache [P + N, 2R] of one
row per prefix entry and per slot, keys before values; a program finds the rows of its ancestors by their slots.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.weaver.triton_frontier import PUBLISHED_DEPTHS
from kernels.weaver.triton_norm import DTYPES, PUBLISHED_RANK

PUBLISHED_HEADS = 16


def node_attention(
    *,
    qkv: Tensor,
    cache: Tensor,
    paths: Tensor,
    depths: Tensor,
    batch: Tensor,
    heads: int,
    rotary: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Attention results [W, R] of the nodes in `batch`, whose keys and values are written to their rows of `cache`.

    qkv [W, 3R] (queries, keys, values, each by head) and cache [P + N, 2R] of one dtype, P = D + 1; paths [N, D] int32,
    by slot the slots of its ancestors by depth; depths [N] int32, below D; batch [W] int32 slots. All contiguous.
    Negative slots are skipped and their results left unwritten; none of the others may be above another. rotary (v2):
    cos and signed sin [D + 1 or more, R / heads] fp32, by position = depth + 1; prefix keys must be rotated already.
    """
    rows, rank = qkv.shape[0], qkv.shape[1] // 3
    out = torch.empty(rows, rank, dtype=qkv.dtype, device=qkv.device)
    arguments = (qkv, cache, paths, depths, batch, *(rotary or (None, None)), out)
    _node_attention_kernel[(rows, heads)](*arguments, **_shape(rank, heads, paths.shape[1]), num_warps=4)
    return out


def _shape(rank: int, heads: int, depths: int) -> dict[str, object]:
    dim, prefix = rank // heads, depths + 1
    blocks = {"BLOCK_DIM": triton.next_power_of_2(dim), "CONTEXT": triton.next_power_of_2(prefix + depths)}
    return {"RANK": rank, "DIM": dim, "PREFIX": prefix, "DEPTHS": depths, "SCALE": dim**-0.5, **blocks}


@triton.jit
def _turned(source: tl.tensor, cos: tl.tensor, sin: tl.tensor, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr) -> tl.tensor:
    """One head at `source`, rotated by a row of cos and signed sin, rounded to its dtype; fp32 [BLOCK_DIM]."""
    column = tl.arange(0, BLOCK_DIM)
    inside = column < DIM
    swapped = tl.load(source + (column + DIM // 2) % DIM, inside, 0.0).to(tl.float32)
    x = tl.load(source + column, inside, 0.0).to(tl.float32) * tl.load(cos + column, inside, 0.0)
    return (x + swapped * tl.load(sin + column, inside, 0.0)).to(source.dtype.element_ty).to(tl.float32)


@triton.jit
def _node_attention_kernel(
    qkv: tl.tensor,
    cache: tl.tensor,
    paths: tl.tensor,
    depths: tl.tensor,
    batch: tl.tensor,
    cos: tl.tensor | None,
    sin: tl.tensor | None,
    out: tl.tensor,
    RANK: tl.constexpr,
    DIM: tl.constexpr,
    PREFIX: tl.constexpr,
    DEPTHS: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    CONTEXT: tl.constexpr,
) -> None:
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(batch + row)
    if slot < 0:
        return
    depth = tl.load(depths + slot)
    column = tl.arange(0, BLOCK_DIM)
    inside = column < DIM
    source = qkv + row * 3 * RANK + head * DIM
    if cos is not None:
        angles = (depth + 1) * DIM
        query = _turned(source, cos + angles, sin + angles, DIM, BLOCK_DIM)
        key = _turned(source + RANK, cos + angles, sin + angles, DIM, BLOCK_DIM)
    else:
        query = tl.load(source + column, inside, 0.0).to(tl.float32)
        key = tl.load(source + RANK + column, inside, 0.0).to(tl.float32)
    value = tl.load(source + 2 * RANK + column, inside, 0.0).to(tl.float32)
    keys = cache + head * DIM
    own = keys + (PREFIX + slot) * 2 * RANK + column
    tl.store(own, key.to(cache.dtype.element_ty), inside)
    tl.store(own + RANK, value.to(cache.dtype.element_ty), inside)

    # Context entries: the prefix, then the path by depth. The node itself is taken from registers, because nothing
    # orders the stores above before the loads of other threads.
    entry = tl.arange(0, CONTEXT)
    level = entry - PREFIX
    above, itself = level < depth, level == depth
    ancestor = tl.load(paths + slot * DEPTHS + level, above & (level >= 0), 0)
    rows = tl.where(level < 0, entry, PREFIX + ancestor)
    tile = keys + rows[:, None] * 2 * RANK + column[None, :]
    seen = above[:, None] & inside[None, :]
    context = tl.where(itself[:, None], key[None, :], tl.load(tile, seen, 0.0).to(tl.float32))
    logits = tl.where(above | itself, tl.sum(context * query[None, :], 1) * SCALE, float("-inf"))
    weights = tl.exp(logits - tl.max(logits, 0))
    weights = weights / tl.sum(weights, 0)
    context = tl.where(itself[:, None], value[None, :], tl.load(tile + RANK, seen, 0.0).to(tl.float32))
    attended = tl.sum(context * weights[:, None], 0)
    tl.store(out + row * RANK + head * DIM + column, attended.to(out.dtype.element_ty), inside)


def specialisations() -> list[Specialisation]:
    """The published Weavers' shapes, v1 and v2."""
    return [_specialise(dtype, rotary) for dtype in DTYPES for rotary in (False, True)]


def _specialise(dtype: str, rotary: bool) -> Specialisation:
    activations = dict.fromkeys(("qkv", "cache", "out"), f"*{dtype}:16")
    integers = dict.fromkeys(("paths", "depths", "batch"), "*i32:16")
    angles = dict.fromkeys(("cos", "sin"), "*fp32:16" if rotary else None)
    return Specialisation(
        name=f"weaver_node_attention_{dtype}_{'v2' if rotary else 'v1'}",
        kernel=_node_attention_kernel,
        signature={**activations, **integers, **{name: kind for name, kind in angles.items() if kind}},
        constexprs={**_shape(PUBLISHED_RANK, PUBLISHED_HEADS, PUBLISHED_DEPTHS), **({} if rotary else angles)},
    )
