"""Choosing candidates with a defined order: value descending, then index ascending (torch.topk leaves ties open)."""

from __future__ import annotations

import torch
from torch import Tensor

INDEX_BITS = 31


def ordered_topk(values: Tensor, count: int) -> Tensor:
    """Indices [..., count] of the largest of values [..., n] fp32, best first, equal values by lower index."""
    # Floats as integers of the same order, with the index below them: no two keys are equal. Adding 0 merges -0 and 0.
    bits = (values + 0.0).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    last = values.shape[-1] - 1
    reversed_index = torch.arange(last, -1, -1, device=values.device)
    keys = (ordered << INDEX_BITS) | reversed_index
    best = keys.topk(count, dim=-1).values
    return last - (best & ((1 << INDEX_BITS) - 1))


def best_children(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """scores [N, C], logits over a pool -> pool indices [N, count] and log-probabilities [N, count], best first.

    Normalised over the pool; never above 0, so that a child's score cannot exceed its parent's by rounding.
    """
    indices = ordered_topk(scores, count)
    logprobs = scores.gather(-1, indices) - scores.logsumexp(-1, keepdim=True)
    return indices, logprobs.clamp(max=0.0)
