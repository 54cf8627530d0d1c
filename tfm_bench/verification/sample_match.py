"""Sample-and-match: draw the target's token at each node and follow it for as long as the tree holds it.

A draw depends on (seed, position) and on the logits alone, never on the tree, so every method emits the very tokens
that plain decoding emits with the same seed, at any temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from tfm_bench.errors import UserError
from tfm_bench.models.device import to_device
from tfm_bench.tree import TokenTree
from tfm_bench.verification.philox import gumbel_rows

NO_TOKEN = -1  # the row of logits holds NaN


@dataclass(frozen=True)
class KeyedNoise:
    """Gumbel noise addressed by (seed, absolute position): counter-based Philox, so no draw depends on another."""

    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise UserError(f"seed: found {self.seed}; accepted is an integer from 0 to 2^64 - 1")

    def gumbel(self, position: int, vocab_size: int) -> Tensor:
        """[vocab_size] fp32 standard Gumbel draws on the CPU, finite, one per token id."""
        # The position fills the counter's highest word: streams of different positions cannot overlap.
        stream = np.random.Philox(key=self.seed, counter=[0, 0, 0, position])
        bits = stream.random_raw(vocab_size) >> np.uint64(12)
        # 52 bits and a half step: exact in fp64, strictly inside (0, 1), and fine near 1, where the winners lie.
        uniform = (bits + 0.5) * 2.0**-52
        return torch.from_numpy((-np.log(-np.log(uniform))).astype(np.float32))


@dataclass(frozen=True)
class Acceptance:
    """One round's outcome: path, the accepted nodes from the anchor (index 0) down; bonus, the token after them."""

    path: list[int]
    bonus: int


def draw(logits: Tensor, temperature: float, noise: KeyedNoise, position: int) -> int:
    """Token for absolute `position`, an exact sample of softmax(logits / temperature) by the Gumbel-max trick.

    logits [V]; temperature 0 is the argmax; equal values go to the lowest token id. Raises UserError for a temperature
    that is negative or not finite, FloatingPointError for logits that hold NaN.
    """
    _check(temperature)
    if logits.is_cuda:
        # The same noise and the same rule among equals as in a tree: else plain decoding could emit another token.
        token = draw_rows(logits[None], torch.zeros(1, dtype=torch.int64), temperature, noise, position)[0]
        return _checked(token, position)
    scores = logits.float()
    if temperature > 0:
        # logits + T * G has the argmax of logits / T + G and does not overflow as T goes to 0.
        scores = torch.add(scores, noise.gumbel(position, scores.shape[0]), alpha=temperature)
    best, winner = scores.max(0)
    return _checked(NO_TOKEN if math.isnan(best.item()) else int(winner), position)


def draw_rows(logits: Tensor, depths: Tensor, temperature: float, noise: KeyedNoise, first_position: int) -> list[int]:
    """`draw` for every row of logits [N, V] at position first_position + depths[i], NO_TOKEN where a row holds NaN.

    All of it happens where the logits are; one copy of N numbers comes back. depths [N] int64 on the CPU.
    """
    scores = logits.float()
    if temperature > 0:
        places, device = torch.arange(int(depths.max()) + 1), logits.device
        gumbel = _gumbel_rows(noise.seed, to_device(places + first_position, device), scores.shape[1])
        scores = torch.add(scores, gumbel.index_select(0, to_device(depths, device)), alpha=temperature)
    # A GPU's argmax promises no order among equals, and bf16 logits often are.
    best = scores.amax(-1, keepdim=True)
    ids = torch.arange(scores.shape[1], device=scores.device)
    tokens = torch.where(scores == best, ids, scores.shape[1]).amin(-1)
    found: list[int] = torch.where(best.isnan()[:, 0], NO_TOKEN, tokens).tolist()
    return found


def _gumbel_rows(seed: int, positions: Tensor, vocab_size: int) -> Tensor:
    """philox.gumbel_rows, on a GPU in one launch where Triton is there: in torch it is some two hundred."""
    if positions.is_cuda and find_spec("triton") is not None:
        from kernels.sampling.triton_gumbel import gumbel_rows as launched  # Triton is imported only where it runs

        return launched(seed, positions, vocab_size)
    return gumbel_rows(seed, positions, vocab_size)


def accept(tree: TokenTree, logits: Tensor, *, temperature: float, noise: KeyedNoise, start: int) -> Acceptance:
    """Walk from the anchor along the target's own draws; the first draw that no child carries is the bonus.

    logits [N, V], row i computed under node i's own ancestors; start: absolute position of the anchor. A node of
    depth d draws for position start + d + 1. Exact at any temperature, for any tree that does not depend on the noise
    of these positions. On the CPU only nodes on the path draw; on a GPU all do, as each draw would wait for the device.
    Source: the acceptance rule of arXiv 2604.12989.
    """
    if logits.is_cuda:
        return accept_at_once(tree, logits, temperature=temperature, noise=noise, start=start)
    return _walk(tree, lambda node, depth: draw(logits[node], temperature, noise, start + depth + 1))


def accept_at_once(tree: TokenTree, logits: Tensor, *, temperature: float, noise: KeyedNoise, start: int) -> Acceptance:
    """`accept` with the draws of all nodes in one pass over the logits, and one copy to the host."""
    _check(temperature)
    drawn = draw_rows(logits, tree.depths, temperature, noise, start + 1)
    return _walk(tree, lambda node, depth: _checked(drawn[node], start + depth + 1))


def _walk(tree: TokenTree, draw_at: Callable[[int, int], int]) -> Acceptance:
    """draw_at(node, depth): the token that the target draws there."""
    path = [0]
    while True:
        token = draw_at(path[-1], len(path) - 1)
        child = tree.children[path[-1]].get(token)
        if child is None:
            return Acceptance(path, token)
        path.append(child)


def _check(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"temperature: found {temperature}; accepted is 0 (greedy) or a positive number")


def _checked(token: int, position: int) -> int:
    if token == NO_TOKEN:
        raise FloatingPointError(f"target logits for position {position} hold NaN")
    return token
