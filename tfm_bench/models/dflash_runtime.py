"""Drafting with a context cache: the drafter's forward for one sequence, in few dispatches.

Keys and values of the context come from target features, not from draft activations: they are computed once, when
tokens are committed, and all that a draft adds is the block itself (arXiv 2602.06036, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm_bench.models.checkpoints import load_strict
from tfm_bench.models.dflash import DFlashDrafter, DFlashLayer, RMSNorm, allowed
from tfm_bench.models.dflash_config import DFlashConfig
from tfm_bench.models.layers import InferenceNorm, apply_rotary_, grouped_attention, head_weights, rotary_rows
from tfm_bench.models.linear import FusedLinear, gated_mlp


@dataclass
class DrafterState:
    """Context of one sequence, `length` tokens so far.

    keys, values [layers, KV heads, block + max_length, head_dim], written in place: rows below `block` are scratch
    for the block that is being drafted, context position p stands in row block + p. rotary holds cos and signed sin
    [max_length + block, 1, head_dim]; window_masks [block, 1, max_length] per sliding layer type.
    """

    keys: Tensor
    values: Tensor
    rotary: tuple[Tensor, Tensor]
    window_masks: dict[str, Tensor]
    max_length: int
    length: int = 0


class DrafterRuntime:
    """Cached inference over the weights of a DFlashDrafter, batch 1."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        self.config = config = drafter.config
        parameter = drafter.fc.weight
        self.device, self.dtype = parameter.device, parameter.dtype
        self.fc = FusedLinear([drafter.fc])
        self.hidden_norm, self.norm = _norm(drafter.hidden_norm), _norm(drafter.norm)
        layers: list[Any] = list(drafter.layers)
        attentions = [layer.self_attn for layer in layers]
        # Copies: the block's projections below need keys and values next to the queries of their layer.
        self.context_kv = FusedLinear([p for a in attentions for p in (a.k_proj, a.v_proj)], share_storage=False)
        key_weights = torch.stack([head_weights([a.k_norm.weight], [a.kv_heads]) for a in attentions])
        self.context_k_norm = InferenceNorm(key_weights, config.rms_norm_eps, self.dtype)
        self.layers = [_RuntimeLayer(layer, config) for layer in layers]
        self.block_masks = {
            kind: self._relative_mask(kind, 0, config.block_size, context=False)
            for kind in dict.fromkeys(config.layer_types)
            if config.window(kind) is not None or config.causal_in_block(kind)
        }

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, dtype: torch.dtype, device: str = "cpu") -> DrafterRuntime:
        """Load config.json and weights strictly. Raises UserError for anything missing, damaged or misfit."""
        with torch.device("meta"):
            drafter = DFlashDrafter(DFlashConfig.from_file(folder))
        drafter.load_state_dict(load_strict(drafter, folder), assign=True)
        return cls(drafter.to(device=device, dtype=dtype).requires_grad_(False))

    @torch.inference_mode()
    def new_state(self, max_length: int) -> DrafterState:
        """Empty context with room for max_length tokens; rotary rows reach one block further."""
        config = self.config
        size = (config.num_hidden_layers, config.num_key_value_heads, config.block_size + max_length, config.head_dim)
        positions = torch.arange(max_length + config.block_size, device=self.device)
        cos, sin = rotary_rows(positions, config.head_dim, config.rope_theta)
        return DrafterState(
            keys=torch.zeros(size, dtype=self.dtype, device=self.device),
            values=torch.zeros(size, dtype=self.dtype, device=self.device),
            rotary=(cos[:, None].to(self.dtype), sin[:, None].to(self.dtype)),
            max_length=max_length,
            window_masks={
                kind: self._relative_mask(kind, -max_length, 0, context=True)
                for kind in self.block_masks
                if config.window(kind) is not None
            },
        )

    def prepare(self, state: DrafterState) -> None:
        """Makes ready for rounds over an empty context; nothing is to be done without graphs."""

    @torch.inference_mode()
    def append(self, state: DrafterState, target_features: Tensor, start: int) -> None:
        """Add the context rows of committed tokens: target_features [n, taps * H] at positions start .. start + n - 1.

        Raises ValueError unless the rows follow the context without a gap and fit.
        """
        n, block = target_features.shape[0], self.config.block_size
        self.check_append(state, n, start)
        cos, sin = (rows[start : start + n, None] for rows in state.rotary)
        rows = slice(block + start, block + start + n)
        state.keys[:, :, rows], state.values[:, :, rows] = self.context_rows(target_features, cos, sin)
        state.length = start + n

    def check_append(self, state: DrafterState, tokens: int, start: int) -> None:
        """Raises ValueError unless the rows follow the context without a gap and fit."""
        if start != state.length or start + tokens > state.max_length:
            raise ValueError(
                f"{tokens} rows at {start} do not follow {state.length} of {state.max_length} context rows"
            )

    def context_rows(self, target_features: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [layers, KV heads, n, head_dim] of committed tokens; cos, sin [n, 1, 1, head_dim]."""
        config = self.config
        both = self.context_kv(self.hidden_norm(self.fc(target_features))).view(
            target_features.shape[0], config.num_hidden_layers, 2, config.num_key_value_heads, config.head_dim
        )
        keys = apply_rotary_(self.context_k_norm(both[:, :, 0]), cos, sin)
        return keys.permute(1, 2, 0, 3), both[:, :, 1].permute(1, 2, 0, 3)

    @torch.inference_mode()
    def draft(self, state: DrafterState, block_embeddings: Tensor, start: int) -> Tensor:
        """Hidden states [block - 1, H] after the final norm; row j predicts the token at position start + 1 + j.

        block_embeddings [block, H]: target embeddings of [anchor, MASK, ...], the anchor at position start. Nothing of
        the block stays in the context. Raises ValueError unless the context reaches exactly up to the anchor.
        """
        self.check_block(state, block_embeddings, start)
        cos, sin = (rows[start : start + self.config.block_size] for rows in state.rotary)
        masks = {kind: self._mask(state, kind) for kind in dict.fromkeys(self.config.layer_types)}
        return self.run_layers(state, block_embeddings, start, cos, sin, masks)

    def check_block(self, state: DrafterState, block_embeddings: Tensor, start: int) -> None:
        """Raises ValueError unless the context reaches exactly up to the anchor and the block has its size."""
        block, rows = self.config.block_size, block_embeddings.shape[0]
        if start != state.length or rows != block:
            raise ValueError(f"a block of {block} rows at {state.length} is needed, got {rows} at {start}")

    def run_layers(
        self,
        state: DrafterState,
        hidden: Tensor,
        extent: int,
        cos: Tensor,
        sin: Tensor,
        masks: Mapping[str, Tensor | None],
    ) -> Tensor:
        """`draft` of embeddings hidden [block, H] that reads the first `extent` context rows; masks by layer type."""
        last = self.config.block_size + extent
        for layer, keys, values in zip(self.layers, state.keys, state.values, strict=True):
            hidden = layer(hidden, keys[:, :last], values[:, :last], cos, sin, masks[layer.kind])
        return self.norm(hidden[1:])

    def _mask(self, state: DrafterState, kind: str) -> Tensor | None:
        """Additive mask [block, 1, M] over the first M rows of scratch and context; None hides nothing."""
        window, length = self.config.window(kind), state.length
        if window is None or length + self.config.block_size <= window:
            return self.block_masks.get(kind)
        return torch.cat([self.block_masks[kind], state.window_masks[kind][..., state.max_length - length :]], dim=-1)

    def _relative_mask(self, kind: str, first_key: int, last_key: int, *, context: bool) -> Tensor:
        """Additive mask [block, 1, keys] for a block whose anchor stands at 0 and keys first_key .. last_key - 1."""
        queries = torch.arange(self.config.block_size, device=self.device)
        keys = torch.arange(first_key, last_key, device=self.device)
        same = torch.zeros_like(queries)
        visible = allowed(
            queries,
            keys,
            torch.full_like(keys, context, dtype=torch.bool),
            same,
            torch.zeros_like(keys),
            same,
            window=self.config.window(kind),
            causal_in_block=self.config.causal_in_block(kind),
        )
        hidden = torch.zeros_like(visible, dtype=self.dtype).masked_fill_(~visible, float("-inf"))
        return hidden[:, None]


class _RuntimeLayer:
    """One drafter layer on [block, H] rows, its projections fused."""

    def __init__(self, layer: DFlashLayer, config: DFlashConfig) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.kind, self.heads, self.kv_heads = layer.kind, attention.heads, attention.kv_heads
        self.input_norm, self.post_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.qkv = FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj])
        dtype = attention.q_norm.weight.dtype
        query, key = attention.q_norm.weight.float() * config.head_dim**-0.5, attention.k_norm.weight.float()
        weights = head_weights([query, key], [self.heads, self.kv_heads])
        self.head_norm = InferenceNorm(weights, config.rms_norm_eps, dtype)
        self.out = FusedLinear([attention.o_proj])
        self.gate_up, self.down = FusedLinear([mlp.gate_proj, mlp.up_proj]), FusedLinear([mlp.down_proj])

    def __call__(
        self, hidden: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None
    ) -> Tensor:
        """hidden [block, H]; keys, values [KV heads, block + L, head_dim], whose first `block` rows are written."""
        block, rotated = hidden.shape[0], self.heads + self.kv_heads
        projected = self.qkv(self.input_norm(hidden)).view(block, rotated + self.kv_heads, -1)
        heads = apply_rotary_(self.head_norm(projected[:, :rotated]), cos, sin)
        keys[:, :block] = heads[:, self.heads :].transpose(0, 1)
        values[:, :block] = projected[:, rotated:].transpose(0, 1)
        hidden = self.out.add(grouped_attention(heads[:, : self.heads], keys, values, mask), hidden)
        return gated_mlp(self.gate_up, self.down, self.post_norm(hidden), hidden)


def _norm(norm: RMSNorm) -> InferenceNorm:
    return InferenceNorm(norm.weight, norm.eps, norm.weight.dtype)
