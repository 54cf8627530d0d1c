"""Gumbel noise addressed by (seed, position), numpy's Philox4x64-10, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation

BLOCK = 256  # counters of four words each


def gumbel_rows(seed: int, positions: Tensor, vocab_size: int) -> Tensor:
    """[P, vocab_size] fp32 from positions [P] int64: the words of np.random.Philox(key=seed, counter=[0, 0, 0, p]).

    A word w gives -log(-log((w >> 12) + 1/2) / 2^52), in fp64 and then rounded.
    """
    out = torch.empty(positions.shape[0], vocab_size, dtype=torch.float32, device=positions.device)
    # As a tensor: Triton would compile small or even seeds anew.
    key = torch.full((1,), seed - 2**64 if seed >= 2**63 else seed, dtype=torch.int64, device=positions.device)
    blocks = triton.cdiv(vocab_size, 4 * BLOCK)
    _gumbel_kernel[(blocks, positions.shape[0])](positions, key, out, vocab_size, BLOCK=BLOCK, num_warps=4)
    return out


@triton.jit
def _gumbel(words):
    uniform = ((words >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit(do_not_specialize=["vocab"])
def _gumbel_kernel(positions, key, out, vocab, BLOCK: tl.constexpr):
    """Grid (blocks of counters, positions)."""
    row = tl.program_id(1).to(tl.int64)
    counter = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    zero = counter.to(tl.uint64) * 0
    first, second, third = counter.to(tl.uint64) + 1, zero, zero  # numpy raises the counter before it draws
    fourth = zero + tl.load(positions + row).to(tl.uint64, bitcast=True)
    key0 = zero + tl.load(key).to(tl.uint64, bitcast=True)
    key1 = zero
    multiplier0 = zero + 0xD2E7470EE14C6C93
    multiplier1 = zero + 0xCA5A826395121157
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(first, multiplier0), first * multiplier0
        high1, low1 = tl.umulhi(third, multiplier1), third * multiplier1
        first, second, third, fourth = high1 ^ second ^ key0, low1, high0 ^ fourth ^ key1, low0
        key0 += 0x9E3779B97F4A7C15
        key1 += 0xBB67AE8584CAA73B
    place = counter * 4
    out += row * vocab + place
    tl.store(out, _gumbel(first), mask=place < vocab)
    tl.store(out + 1, _gumbel(second), mask=place + 1 < vocab)
    tl.store(out + 2, _gumbel(third), mask=place + 2 < vocab)
    tl.store(out + 3, _gumbel(fourth), mask=place + 3 < vocab)


def specialisations() -> list[Specialisation]:
    """The one there is."""
    return [
        Specialisation(
            name="gumbel",
            kernel=_gumbel_kernel,
            signature={"positions": "*i64:16", "key": "*i64:16", "out": "*fp32:16", "vocab": "i32"},
            constexprs={"BLOCK": BLOCK},
            num_warps=4,
        )
    ]
