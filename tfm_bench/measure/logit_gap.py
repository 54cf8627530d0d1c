"""How close a call a wrong token was: what tells bfloat16 rounding from a wrong method."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tfm_bench.engine import Stack
from tfm_bench.verification.sample_match import KeyedNoise


@torch.inference_mode()
def logit_gap(
    stack: Stack,
    prompt_ids: Sequence[int],
    tokens: Sequence[int],
    *,
    expected: int,
    found: int,
    temperature: float,
    seed: int,
) -> float:
    """The target's score of token `expected` less that of `found`, after `prompt_ids` and the emitted `tokens`.

    In logits; above temperature 0 with the noise of that position, scaled as in the draw. One prefill over the whole
    text.
    """
    text = [*prompt_ids, *tokens]
    scores = stack.target.prefill(stack.target.new_state(len(text), 1), torch.tensor(text)).logits[-1].float().cpu()
    if temperature > 0:
        scores = scores + temperature * KeyedNoise(seed).gumbel(len(text), scores.shape[0])
    return float(scores[expected] - scores[found])
