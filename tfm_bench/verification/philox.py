"""numpy's Philox4x64-10 in torch, bit for bit, so that noise can be drawn where the logits are.

Source of the generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
WORDS = 4  # of 64 bits that one counter gives
LOW = 0xFFFFFFFF
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def raw_words(seed: int, positions: Tensor, count: int) -> Tensor:
    """[P, count] int64, the bits of np.random.Philox(key=seed, counter=[0, 0, 0, position]).random_raw(count).

    positions [P] int64, on the device that is to draw; bits are those of unsigned words.
    """
    # numpy raises the counter before it draws, so the first block is that of counter 1.
    blocks = torch.arange(1, -(-count // WORDS) + 1, device=positions.device)
    zero = torch.zeros((), dtype=torch.int64, device=positions.device)
    words = [blocks[None, :], zero, zero, positions[:, None]]
    keys = [seed, 0]
    for _ in range(ROUNDS):
        high0, low0 = _product(words[0], MULTIPLIERS[0])
        high1, low1 = _product(words[2], MULTIPLIERS[1])
        words = [high1 ^ words[1] ^ _signed(keys[0]), low1, high0 ^ words[3] ^ _signed(keys[1]), low0]
        keys = [(key + step) % 2**64 for key, step in zip(keys, WEYL, strict=True)]
    return torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(1)[:, :count]


def gumbel_rows(seed: int, positions: Tensor, vocab_size: int) -> Tensor:
    """[P, vocab_size] fp32, row p as KeyedNoise.gumbel draws it for positions[p].

    The words are the same everywhere; the logarithms are fp64 of the device, so that on another one a draw in some
    hundred million may be rounded to the neighbouring fp32 number.
    """
    bits = (raw_words(seed, positions, vocab_size) >> 12) & (2**52 - 1)
    uniform = (bits.double() + 0.5) * 2.0**-52
    return uniform.log_().neg_().log_().neg_().float()


def _product(words: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low 64 bits of unsigned products, from 32-bit halves: torch has signed 64-bit words alone."""
    high, low = _shifted(words), words & LOW
    factor_high, factor_low = multiplier >> 32, multiplier & LOW
    middle = high * factor_low + _shifted(low * factor_low)
    carried = low * factor_high + (middle & LOW)
    return high * factor_high + _shifted(middle) + _shifted(carried), words * _signed(multiplier)


def _shifted(words: Tensor) -> Tensor:
    """Unsigned shift to the right by half a word."""
    return (words >> 32) & LOW


def _signed(word: int) -> int:
    """The signed number with the bits of an unsigned one."""
    return word - 2**64 if word >= 2**63 else word
