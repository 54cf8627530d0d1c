"""The DFlash drafter: one forward pass turns [anchor, MASK, ...] into hidden states for a whole block.

Source: arXiv 2602.06036; tensor names and shapes are those of the published checkpoints, which carry neither an
embedding nor a head: both are the target's. This file holds the model and its full forward, used for training and as
the oracle of the cached form in `dflash_runtime.py`. Drafter norms multiply by w, not by 1 + w as Qwen3.5 targets do,
and the rotary embedding turns the whole head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from tfm_bench.models.dflash_config import DFlashConfig
from tfm_bench.models.layers import apply_rotary, rotary_rows


def allowed(
    query_positions: Tensor,
    key_positions: Tensor,
    key_is_context: Tensor,
    query_block: Tensor,
    key_block: Tensor,
    query_anchor: Tensor,
    *,
    window: int | None,
    causal_in_block: bool,
) -> Tensor:
    """Which keys a block's rows may attend to: [..., Q, K] bool.

    query_* are [..., Q] and key_* [..., K], int64. A block sees context strictly before its anchor, and of the blocks
    only itself (key_block of a context row is ignored): backwards alone if causal_in_block, else both ways. A window
    hides keys with query - key >= window and, where the block is bidirectional, key - query >= window.
    """
    distance = query_positions[..., :, None] - key_positions[..., None, :]
    before_anchor = key_positions[..., None, :] < query_anchor[..., :, None]
    same_block = query_block[..., :, None] == key_block[..., None, :]
    if causal_in_block:
        same_block = same_block & (distance >= 0)
    mask = torch.where(key_is_context[..., None, :], before_anchor, same_block)
    return mask if window is None else mask & (distance.abs() < window)


def block_positions(anchors: Tensor, block_size: int) -> Tensor:
    """Absolute positions [B, A * block_size] of blocks that start at anchors [B, A]."""
    return (anchors[..., None] + torch.arange(block_size, device=anchors.device)).flatten(-2)


def block_masks(anchors: Tensor, context_length: int, config: DFlashConfig) -> dict[str, Tensor]:
    """Attention masks for A packed blocks per sequence, one [B, A * block, C + A * block] bool per layer type.

    anchors [B, A] int64 are absolute positions in a context that starts at 0 and has C = context_length rows.
    """
    size, device = config.block_size, anchors.device
    positions = block_positions(anchors, size)
    context = torch.arange(context_length, device=device).expand(anchors.shape[0], -1)
    block = torch.arange(anchors.shape[1], device=device).repeat_interleave(size).expand_as(positions)
    key_is_context = torch.arange(context_length + positions.shape[1], device=device) < context_length
    return {
        kind: allowed(
            positions,
            torch.cat([context, positions], dim=-1),
            key_is_context,
            block,
            torch.cat([torch.full_like(context, -1), block], dim=-1),
            anchors.repeat_interleave(size, dim=-1),
            window=config.window(kind),
            causal_in_block=config.causal_in_block(kind),
        )
        for kind in dict.fromkeys(config.layer_types)
    }


class DFlashDrafter(nn.Module):
    """State-dict keys as published: fc, hidden_norm, norm, layers.{i}.{self_attn, mlp, norms}."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(config, kind) for kind in config.layer_types)
        self.norm = RMSNorm(hidden, config.rms_norm_eps)

    def forward(
        self,
        target_features: Tensor,
        block_embeddings: Tensor,
        context_positions: Tensor,
        block_positions: Tensor,
        allow: Tensor | Mapping[str, Tensor],
    ) -> Tensor:
        """Hidden states [B, Q, H] after the final norm; row j of a block predicts the token at its own position.

        target_features [B, C, taps * H] in config order; block_embeddings [B, Q, H]: target embeddings of blocks
        [anchor, MASK, ...]; positions [B, C] and [B, Q] int64; allow [B, Q, C + Q] bool, one for all layers or one
        per layer type. Row 0 of each block is the anchor's and predicts nothing.
        """
        context = self.hidden_norm(self.fc(target_features))
        rotary = self.rotary(torch.cat([context_positions, block_positions], dim=-1), block_embeddings.dtype)
        hidden = block_embeddings
        layers: list[Any] = list(self.layers)
        for layer in layers:
            mask = allow if isinstance(allow, Tensor) else allow[layer.kind]
            hidden = layer(hidden, context, rotary, mask)
        return self.norm(hidden)

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin, [B, T, 1, head_dim], to broadcast over heads."""
        dim = self.config.head_dim
        cos, sin = rotary_rows(positions, dim, self.config.rope_theta)
        return cos.unsqueeze(-2).to(dtype), sin.unsqueeze(-2).to(dtype)


class DFlashLayer(nn.Module):
    """Qwen3-style layer whose keys and values come from the context and from the block, its queries from the block."""

    def __init__(self, config: DFlashConfig, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DFlashAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DFlashMLP(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor, context: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """hidden [B, Q, H] and context [B, C, H] -> [B, Q, H]; mask [B, Q, C + Q]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), context, rotary, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class DFlashAttention(nn.Module):
    """Grouped-query attention over [context | block]; the context does not pass through the layer's input norm."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(hidden, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, hidden, bias=False)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps)

    def forward(self, hidden: Tensor, context: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """hidden [B, Q, H], context [B, C, H], rotary rows for C + Q positions, mask [B, Q, C + Q] -> [B, Q, H]."""
        block = hidden.shape[1]
        cos, sin = rotary
        both = torch.cat([context, hidden], dim=1)
        query = self.q_norm(self.q_proj(hidden).unflatten(-1, (self.heads, -1)))
        key = self.k_norm(self.k_proj(both).unflatten(-1, (self.kv_heads, -1)))
        value = self.v_proj(both).unflatten(-1, (self.kv_heads, -1))
        query = apply_rotary(query, cos[:, -block:], sin[:, -block:])
        key = apply_rotary(key, cos, sin)
        group = self.heads // self.kv_heads
        key, value = key.repeat_interleave(group, dim=2), value.repeat_interleave(group, dim=2)
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None])
        return self.o_proj(out.transpose(1, 2).flatten(2))


class DFlashMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class RMSNorm(nn.Module):
    """x / rms(x) in fp32, cast back, times w (Qwen3's form; Qwen3.5 targets multiply by 1 + w instead)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight
