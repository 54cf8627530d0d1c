"""Weaver: the adapter that turns a drafter's marginals into conditionals along a path (arXiv 2607.06763).

Two published generations: v1 (learned positions, GELU) and v2 (RoPE, SwiGLU). State-dict keys are those of the
published checkpoints. Reading and writing files: `weaver_files.py`.

Symbols: H target width (`d_model`), R Weaver width (`d_rank`), nh heads of hd, D drafted depths, P = 1 + D prefix
rows (target hidden, then one row per drafted position). A node of depth d predicts the token of depth d + 1 among
the drafter's candidates of row d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfm_bench.models.layers import apply_rotary, rotary_rows
from tfm_bench.models.weaver_config import WeaverConfig

NORM_EPS = 1e-6


class BiasedRMSNorm(nn.Module):
    """RMSNorm with an additive bias, in fp32 whatever the dtype of the input. Weight is used directly (no 1 + w)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + NORM_EPS)
        return torch.addcmul(self.bias.float(), y, self.weight.float()).to(x.dtype)


class WeaverBlock(nn.Module):
    """One pre-norm transformer block; v1 keeps three projections and a GELU MLP, v2 a fused one and SwiGLU."""

    def __init__(self, config: WeaverConfig) -> None:
        super().__init__()
        dim, mlp_dim = config.d_rank, config.mlp_dim
        self.config = config
        self.norm_attn = BiasedRMSNorm(dim)
        self.norm_mlp = BiasedRMSNorm(dim)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        if config.version == 1:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dim, dim, bias=False) for _ in range(3))
            self.fc1, self.fc2 = nn.Linear(dim, mlp_dim), nn.Linear(mlp_dim, dim)
        else:
            self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
            self.gate_up_proj, self.down_proj = nn.Linear(dim, 2 * mlp_dim), nn.Linear(mlp_dim, dim)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [..., T, R] at rotary positions [T] -> queries, keys, values, each [..., T, nh, hd]."""
        n = self.norm_attn(x)
        heads = (self.config.num_heads, self.config.head_dim)
        if self.config.version == 1:
            q, k, v = (projection(n).unflatten(-1, heads) for projection in (self.q_proj, self.k_proj, self.v_proj))
            return q, k, v
        q, k, v = (part.unflatten(-1, heads) for part in self.qkv_proj(n).chunk(3, dim=-1))
        return rotate(q, positions, self.config.rotary_base), rotate(k, positions, self.config.rotary_base), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Residual stream x [..., R] after the attention result `attended` [..., R] and the MLP."""
        x = x + self.o_proj(attended)
        n = self.norm_mlp(x)
        if self.config.version == 1:
            return x + self.fc2(functional.gelu(self.fc1(n)))
        gate, up = self.gate_up_proj(n).chunk(2, dim=-1)
        return x + self.down_proj(functional.silu(gate) * up)


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """RoPE over the whole head: x [..., T, nh, hd], positions [T]; angles in fp32."""
    cos, sin = rotary_rows(positions[:, None], x.shape[-1], base)
    return apply_rotary(x.float(), cos, sin).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [..., T, nh, hd], k and v [..., S, nh, hd], mask [T, S] bool (True is seen) -> [..., T, nh * hd]."""
    q, k, v = (x.transpose(-3, -2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(-3, -2).flatten(-2)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """[queries, keys] bool for queries that are the last rows of the keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


@dataclass
class NodeCache:
    """Keys and values of prefix and tree nodes, [layers, S, nh, hd] each; the first `filled` rows are written."""

    keys: Tensor
    values: Tensor
    filled: int


class Weaver(nn.Module):
    """The residual scorer. A fresh one has a zero query head, so that it starts as the drafter's truncated marginal."""

    pos_emb: nn.Parameter

    def __init__(self, config: WeaverConfig) -> None:
        super().__init__()
        self.config = config
        self.output_norm = BiasedRMSNorm(config.d_model)
        self.embed_norm = BiasedRMSNorm(config.d_embed)
        self.token_in = nn.Linear(config.d_embed, config.d_rank)
        self.proposal_in = nn.Linear(config.d_model, config.d_rank)
        self.blocks = nn.ModuleList(WeaverBlock(config) for _ in range(config.num_layers))
        self.out_norm = BiasedRMSNorm(config.d_rank)
        self.lm_head_query_in = nn.Linear(config.d_rank, config.d_model, bias=False)
        nn.init.zeros_(self.lm_head_query_in.weight)
        if config.version == 1:
            self.pos_emb = nn.Parameter(torch.randn(config.K, config.d_rank) * 0.02)

    @property
    def layers(self) -> list[WeaverBlock]:
        return cast("list[WeaverBlock]", list(self.blocks))

    def token_features(self, embeddings: Tensor) -> Tensor:
        """Target embeddings [..., d_embed] -> [..., R]. Over the whole vocabulary this is the token table."""
        return self.token_in(self.embed_norm(embeddings))

    def residual_head(self, lm_head_weight: Tensor) -> Tensor:
        """Target head [V, H] -> [V, R]; its rows times a query vector are the residuals."""
        return lm_head_weight @ self.lm_head_query_in.weight

    def _prefix_inputs(self, target_hidden: Tensor, draft_hidden: Tensor) -> Tensor:
        """[B, H] and [B, D, H] -> residual stream [B, P, R]."""
        hidden = torch.cat([target_hidden.unsqueeze(-2), draft_hidden], dim=-2)
        x = self.proposal_in(self.output_norm(hidden))
        if self.config.version == 1:
            depths = draft_hidden.shape[-2]
            x = x + functional.pad(self.pos_emb[:depths], (0, 0, 1, 0))
        return x

    def _node_inputs(self, features: Tensor, depths: Tensor) -> Tensor:
        """Token features [..., N, R] at depths [N] -> residual stream [..., N, R]."""
        return features + self.pos_emb[depths] if self.config.version == 1 else features

    def prefix(self, target_hidden: Tensor, draft_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Target hidden [B, H] and drafter hidden [B, D, H], after the final norms -> K, V [layers, B, P, nh, hd]."""
        x = self._prefix_inputs(target_hidden, draft_hidden)
        rows = x.shape[1]
        positions = torch.arange(rows, device=x.device)
        keys, values = [], []
        for index, block in enumerate(self.layers):
            q, k, v = block.project(x, positions)
            keys.append(k)
            values.append(v)
            if index + 1 < len(self.blocks):
                x = block.finish(x, attend(q, k, v, causal_mask(rows, rows, x.device)))
        return torch.stack(keys), torch.stack(values)

    def node_step(self, features: Tensor, depths: Tensor, cache: NodeCache, mask: Tensor) -> Tensor:
        """Query vectors [N, R] of N nodes, whose keys and values are appended to `cache` for their descendants.

        features [N, R] token features; depths [N]; mask [N, filled + N] bool: prefix, ancestors and the node itself.
        """
        start, end = cache.filled, cache.filled + features.shape[0]
        x = self._node_inputs(features, depths)
        for layer, block in enumerate(self.layers):
            q, cache.keys[layer, start:end], cache.values[layer, start:end] = block.project(x, depths + 1)
            x = block.finish(x, attend(q, cache.keys[layer, :end], cache.values[layer, :end], mask))
        cache.filled = end
        return self.out_norm(x)

    def path_queries(self, target_hidden: Tensor, draft_hidden: Tensor, path_embeddings: Tensor) -> Tensor:
        """Query vectors [B, D, R] of a given path, by one causal forward over [prefix | path] (teacher forcing).

        target_hidden [B, H], draft_hidden [B, D, H], path_embeddings [B, D, d_embed]: embeddings of the tokens at
        depths 0 (the anchor) to D - 1. `lm_head_query_in` of the result is the query in target space [B, D, H].
        """
        depths = torch.arange(path_embeddings.shape[1], device=path_embeddings.device)
        prefix = self._prefix_inputs(target_hidden, draft_hidden)
        x = torch.cat([prefix, self._node_inputs(self.token_features(path_embeddings), depths)], dim=1)
        rows, first = x.shape[1], prefix.shape[1]
        positions = torch.cat([torch.arange(first, device=x.device), depths + 1])
        for index, block in enumerate(self.layers):
            q, k, v = block.project(x, positions)
            if index + 1 == len(self.blocks):  # nothing reads the prefix rows above the last layer's keys and values
                x, q = x[:, first:], q[:, first:]
            x = block.finish(x, attend(q, k, v, causal_mask(q.shape[1], rows, x.device)))
        return self.out_norm(x)

    def path_scores(
        self,
        target_hidden: Tensor,
        draft_hidden: Tensor,
        path_embeddings: Tensor,
        lm_head_weight: Tensor,
        candidates: Tensor,
    ) -> Tensor:
        """Residuals [B, D, C] of candidate ids [B, D, C] (int64) along a path; other arguments as in `path_queries`.

        One GEMM against the vocabulary [V, H] and a gather: faster on small vocabularies than gathering head rows.
        """
        queries = self.path_queries(target_hidden, draft_hidden, path_embeddings)
        return (queries @ self.residual_head(lm_head_weight).T).gather(-1, candidates)
