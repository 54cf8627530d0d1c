"""How close a call the target's own choice was: what tells bfloat16 rounding from a wrong method."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tfm_bench.engine import Stack
from tfm_bench.verification.sample_match import KeyedNoise


@torch.inference_mode()
def logit_gap(
    stack: Stack, prompt_ids: Sequence[int], tokens: Sequence[int], *, temperature: float, seed: int
) -> float:
    """First minus second choice of the target after `prompt_ids` and the emitted `tokens`, in logits.

    Above temperature 0 with the noise of that position, scaled as in the draw. One prefill over the whole text.
    """
    text = [*prompt_ids, *tokens]
    scores = stack.target.prefill(stack.target.new_state(len(text), 1), torch.tensor(text)).logits[-1].float().cpu()
    if temperature > 0:
        scores = scores + temperature * KeyedNoise(seed).gumbel(len(text), scores.shape[0])
    best, second = scores.topk(2).values.tolist()
    return float(best - second)
