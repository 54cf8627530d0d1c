"""Small pieces that the target and the drafter share, written for few dispatches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.linalg import vector_norm


class InferenceNorm:
    """RMS norm over the last dimension, computed in fp32 and cast: x / sqrt(mean(x^2) + eps) * weight.

    weight broadcasts against x [..., size]; pass 1 + w for Qwen3.5's zero-centred form. Four dispatches: mean and root
    are folded into a vector norm, so that hypot(|x|, sqrt(size * eps)) = sqrt(size * (mean(x^2) + eps)).
    """

    def __init__(self, weight: Tensor, eps: float, dtype: torch.dtype) -> None:
        size = weight.shape[-1]
        self.weight = weight.detach().float() * math.sqrt(size)
        self.floor = torch.tensor(math.sqrt(size * eps), device=weight.device)
        self.dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> the same shape."""
        norm = vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).hypot_(self.floor)
        out = (x / norm).mul_(self.weight)
        return out if self.dtype is torch.float32 else out.to(self.dtype)


def head_weights(weights: Sequence[Tensor], heads: Sequence[int]) -> Tensor:
    """One row of norm weight per head, [sum(heads), head_dim]: norms that differ by head in one call."""
    return torch.cat([weight.detach().expand(n, -1) for weight, n in zip(weights, heads, strict=True)])


def rotary_rows(positions: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and signed sin [..., dim] fp32 of neox rotary embedding at positions [...].

    The sign of rotate_half is folded into sin, so that a rotation is x * cos + halves_swapped(x) * sin.
    """
    exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
    angles = positions[..., None].float() * (1.0 / theta**exponent)
    sin = angles.sin()
    return torch.cat([angles.cos()] * 2, dim=-1), torch.cat([-sin, sin], dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., dim] by rows of `rotary_rows` that broadcast against it."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def apply_rotary_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`apply_rotary` in place, on the first cos.shape[-1] dimensions of x; the others pass."""
    turned = x[..., : cos.shape[-1]]
    swapped = turned.roll(turned.shape[-1] // 2, -1)
    turned.mul_(cos).addcmul_(swapped, sin)
    return x


def grouped_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of query [N, heads, D], already scaled, over keys and values [KV heads, E, D] -> [N, heads * D].

    mask [N, 1, M], additive, covers the first M of the E rows; the others are visible to every query. Written as two
    batched products: on the CPU at a few hundred rows that takes a third of the time of the library's fused form.
    """
    nodes, heads, dim = query.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    query = query.view(nodes, kv_heads, group, dim).transpose(0, 1).reshape(kv_heads, nodes * group, dim)
    scores = torch.bmm(query, keys.transpose(1, 2))
    if mask is not None:
        scores.view(kv_heads, nodes, group, -1)[..., : mask.shape[-1]].add_(mask)
    out = torch.bmm(scores.softmax(dim=-1), values)
    return out.view(kv_heads, nodes, group, dim).transpose(0, 1).reshape(nodes, heads * dim)
