"""Definitions, node by node, that every faster path of this package is tested against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def naive_tree_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    parents: Tensor,
    initial_state: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Gated delta rule over a token tree, node by node: the definition that every other path is tested against.

    q, k [B, N, H, K]; v [B, N, HV, V]; g (log decay, <= 0) and beta [B, N, HV]; parents [N], parents[0] == -1,
    parents[i] < i; initial_state [B, HV, K, V]. Returns outputs [B, N, HV, V] and node states [B, N, HV, K, V].
    Runs in the dtype of initial_state: pass float64 for an oracle. Source: arXiv 2607.06763, section 3.4.
    """
    group = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    states: list[Tensor] = []
    outputs: list[Tensor] = []
    for i, parent in enumerate(parents.tolist()):
        state = initial_state if parent < 0 else states[parent]
        state = state * g[:, i, :, None, None].exp()
        u = beta[:, i, :, None] * (v[:, i] - torch.einsum("bhkv,bhk->bhv", state, k[:, i]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, i], u)
        states.append(state)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, i] * scale))
    return torch.stack(outputs, 1), torch.stack(states, 1)


def naive_tree_causal_conv(
    inputs: Tensor, window: Tensor, weight: Tensor, parents: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Depthwise causal convolution with SiLU along the path of each node, by walking its parents.

    inputs [B, N, C]; window [B, C, W - 1], the committed inputs before the anchor, oldest first; weight [C, W];
    bias [C]; parents [N]. Returns [B, N, C].
    """
    above = parents.tolist()
    outputs = []
    for node in range(len(above)):
        total = torch.zeros_like(inputs[:, 0]) if bias is None else bias.expand_as(inputs[:, 0])
        current = node
        for tap in reversed(range(weight.shape[1])):
            value = inputs[:, current] if current >= 0 else window[:, :, current]
            total = total + weight[:, tap] * value
            current = above[current] if current >= 0 else current - 1
        outputs.append(silu(total))
    return torch.stack(outputs, 1)
