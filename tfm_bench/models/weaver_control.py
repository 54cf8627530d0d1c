"""Weavers that lack one input, in training and in drafting alike: controls for where the gain of Weaver comes from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WeaverControl:
    """What a Weaver is shown. Zeros stand for what is hidden: shapes and code stay those of the full Weaver.

    sees_path: the tokens of anchor and ancestors. Without them its scores depend on depth alone: a factorised drafter.
    sees_target_hidden: the target's hidden state where the anchor was drawn; without it the drafter's rows are all.
    """

    name: str
    sees_path: bool = True
    sees_target_hidden: bool = True

    def embedding(self, weight: Tensor) -> Tensor:
        """Token embeddings [V, H], as this Weaver may see them."""
        return weight if self.sees_path else torch.zeros_like(weight)

    def target_hidden(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., H] of the target, as this Weaver may see them."""
        return hidden if self.sees_target_hidden else torch.zeros_like(hidden)


CONTROLS_FOLDER = "controls"  # of a stack: a Weaver per control, in the layout of `weaver`
FULL = WeaverControl("full")
CONTROLS = {
    control.name: control
    for control in (
        WeaverControl("blind_to_path", sees_path=False),
        WeaverControl("no_target_hidden", sees_target_hidden=False),
    )
}
