"""The DFlash baseline: one token per depth, each the drafter's argmax."""

from __future__ import annotations

from torch import Tensor

from tfm_bench.models.device import on_host
from tfm_bench.tree import TokenTree


def build_chain(anchor: int, draft_logits: Tensor, budget: int) -> TokenTree:
    """Tree without branches: the argmax of each depth, equal logits by token id.

    anchor: last emitted token; draft_logits [D, V], row d for depth d + 1; budget: draft nodes wanted, capped at D,
    so the verify width is min(budget, D) + 1. Raises ValueError for a negative budget and for logits that are no
    distribution. Source: arXiv 2602.06036.
    """
    if budget < 0:
        raise ValueError(f"budget is {budget}; a draft tree has 0 nodes or more")
    logits = draft_logits[:budget].float()
    length = logits.shape[0]
    if length == 0:
        return TokenTree.chain([anchor], [0.0])
    tokens = logits.argmax(-1, keepdim=True)
    logprobs = logits.log_softmax(-1).gather(-1, tokens)
    ids, edges = on_host(tokens.flatten(), logprobs.flatten())
    if edges.isnan().any():
        raise ValueError("draft logits are no distribution: they hold NaN, +inf or a row of -inf alone")
    return TokenTree.chain([anchor, *ids.long().tolist()], [0.0, *edges.tolist()])
