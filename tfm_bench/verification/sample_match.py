"""Sample-and-match: draw the target's token at each node and follow it for as long as the tree holds it.

A draw depends on (seed, position) and on the logits alone, never on the tree, so every method emits the very tokens
that plain decoding emits with the same seed, at any temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tfm_bench.errors import UserError
from tfm_bench.tree import TokenTree


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
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"temperature: found {temperature}; accepted is 0 (greedy) or a positive number")
    scores = logits.float()
    if temperature > 0:
        # logits + T * G has the argmax of logits / T + G and does not overflow as T goes to 0.
        gumbel = noise.gumbel(position, scores.shape[0]).to(scores.device)
        scores = torch.add(scores, gumbel, alpha=temperature)
    best, token = scores.max(0)
    if math.isnan(best.item()):
        raise FloatingPointError(f"target logits for position {position} hold NaN")
    return int(token)


def accept(tree: TokenTree, logits: Tensor, *, temperature: float, noise: KeyedNoise, start: int) -> Acceptance:
    """Walk from the anchor along the target's own draws; the first draw that no child carries is the bonus.

    logits [N, V], row i computed under node i's own ancestors; start: absolute position of the anchor. A node of
    depth d draws for position start + d + 1, and only nodes on the path draw. Exact at any temperature, for any tree
    that does not depend on the noise of these positions. Source: the acceptance rule of arXiv 2604.12989.
    """
    path = [0]
    while True:
        token = draw(logits[path[-1]], temperature, noise, start + len(path))
        child = tree.children[path[-1]].get(token)
        if child is None:
            return Acceptance(path, token)
        path.append(child)
