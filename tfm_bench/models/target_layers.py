"""Decoder layers of the target over a tree of N nodes: weights of the library's modules, forward of our own.

Each layer maps the residual stream [N, H] to the next, reads the committed part of the state and leaves what a commit
needs in its scratch. Qwen3.5 norms multiply by 1 + w, Qwen3's by w; Qwen3.5 attention has an output gate and turns a
part of each head only.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from kernels.gdn_tree import Implementation
from tfm_bench.models.cache import PendingGdn, TargetState
from tfm_bench.models.layers import InferenceNorm, apply_rotary_, grouped_attention, head_weights
from tfm_bench.models.linear import FusedLinear, gated_mlp

L2_EPS = 1e-6


class TreeStep(NamedTuple):
    """What depends on the tree alone: computed once per verification, shared by all layers.

    cos, sin [N, 1, rotary dim]; mask as `cache.tree_mask` gives it.
    """

    structure: Any  # a TreeStructure, or what the implementation makes of it
    cos: Tensor
    sin: Tensor
    mask: Tensor | None


class Mlp:
    """Norm and gated MLP with residual, [N, H] -> [N, H]."""

    def __init__(self, layer: nn.Module, zero_centred: bool) -> None:
        modules: Any = layer
        self.norm = make_norm(modules.post_attention_layernorm, zero_centred)
        self.gate_up = FusedLinear([modules.mlp.gate_proj, modules.mlp.up_proj])
        self.down = FusedLinear([modules.mlp.down_proj])

    def __call__(self, x: Tensor) -> Tensor:
        return gated_mlp(self.gate_up, self.down, self.norm(x), x)


class AttentionLayer:
    """Full attention, gated in hybrid models; `index` counts attention layers."""

    def __init__(self, layer: nn.Module, index: int, *, hybrid: bool) -> None:
        modules: Any = layer
        attention, self.index, self.gated = modules.self_attn, index, hybrid
        self.norm, self.mlp = make_norm(modules.input_layernorm, hybrid), Mlp(layer, hybrid)
        dim, config = attention.head_dim, attention.config
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, dim
        self.qkv = FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = FusedLinear([attention.o_proj])
        # Rows of head_dim in the fused output: with a gate, each query is followed by its gate. Gates go through norm
        # and rotation with the rest and are read from before it: one dispatch for all is cheaper than none for some.
        self.query_rows = self.heads * (2 if hybrid else 1)
        offset = 1.0 if hybrid else 0.0
        query_weight = (attention.q_norm.weight.float() + offset) * dim**-0.5
        weights = [query_weight, attention.k_norm.weight.float() + offset]
        self.head_norm = InferenceNorm(
            head_weights(weights, [self.query_rows, self.kv_heads]), config.rms_norm_eps, attention.k_norm.weight.dtype
        )

    def __call__(self, x: Tensor, step: TreeStep, state: TargetState) -> Tensor:
        nodes, stride = x.shape[0], 2 if self.gated else 1
        rotated = self.query_rows + self.kv_heads
        projected = self.qkv(self.norm(x)).view(nodes, rotated + self.kv_heads, self.dim)
        heads = apply_rotary_(self.head_norm(projected[:, :rotated]), step.cos, step.sin)
        first, last = state.scratch - nodes, state.scratch + state.extent
        keys, values = state.keys[self.index, :, first:last], state.values[self.index, :, first:last]
        keys[:, :nodes] = heads[:, self.query_rows :].transpose(0, 1)
        values[:, :nodes] = projected[:, rotated:].transpose(0, 1)
        out = grouped_attention(heads[:, : self.query_rows : stride], keys, values, step.mask)
        if self.gated:
            gate = projected[:, 1 : self.query_rows : 2].sigmoid()
            out.view(nodes, self.heads, self.dim).mul_(gate)
        return self.mlp(self.out.add(out, x))


class GdnLayer:
    """Gated DeltaNet; `index` counts GDN layers, `method` is a key of `kernels.verify`."""

    def __init__(self, layer: nn.Module, index: int, kernels: Implementation, method: str) -> None:
        modules: Any = layer
        mixer, self.index, self.kernels, self.verify = modules.linear_attn, index, kernels, kernels.verify[method]
        self.norm, self.mlp = make_norm(modules.input_layernorm, True), Mlp(layer, True)
        self.in_proj = FusedLinear([mixer.in_proj_qkv, mixer.in_proj_z, mixer.in_proj_b, mixer.in_proj_a])
        self.out = FusedLinear([mixer.out_proj])
        self.heads, self.value_dim = mixer.num_k_heads, mixer.head_v_dim
        self.state_size = (mixer.num_v_heads, mixer.head_k_dim, mixer.head_v_dim)
        self.mixed_sizes = [2 * mixer.key_dim, mixer.value_dim]
        self.conv_weight = mixer.conv1d.weight.detach().squeeze(1).contiguous()
        self.dt_bias = mixer.dt_bias.detach().float()
        self.decay_rate = -mixer.A_log.detach().float().exp()
        weight = mixer.norm.weight
        self.gated_norm = InferenceNorm(weight, mixer.layer_norm_epsilon, weight.dtype)
        self.l2_floor = torch.tensor(L2_EPS**0.5, device=weight.device)

    def with_verify(self, method: str, kernels: Implementation) -> GdnLayer:
        """The same weights, verified by a method of these kernels."""
        other = copy.copy(self)
        other.kernels, other.verify = kernels, kernels.verify[method]
        return other

    def __call__(self, x: Tensor, step: TreeStep, state: TargetState) -> Tensor:
        nodes = x.shape[0]
        inputs, z, b, a = self.in_proj(self.norm(x))[None].split_with_sizes(self.in_proj.sizes, -1)
        mixed = self.kernels.tree_causal_conv(
            inputs=inputs,
            window=state.conv[self.index : self.index + 1],
            weight=self.conv_weight,
            structure=step.structure,
        )
        qk, v = mixed.float().split_with_sizes(self.mixed_sizes, -1)
        q, k = self._normalised(qk.view(1, nodes, 2 * self.heads, -1)).chunk(2, 2)
        v = v.view(1, nodes, -1, self.value_dim)
        g = softplus(a.float() + self.dt_bias).mul_(self.decay_rate)
        beta = b.float().sigmoid()
        outputs, pseudo_values, states = self.verify(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            initial_state=state.recurrent[self.index : self.index + 1],
            structure=step.structure,
        )
        # Of all layers at once they are many times the model's other scratch; most commits do not read them.
        kept = states if state.keeps_states else None
        state.pending.append(PendingGdn(inputs, k, v, g, beta, pseudo_values, kept))
        out = self.gated_norm(outputs[0]).flatten(1) * silu(z[0])
        return self.mlp(self.out.add(out, x))

    def _normalised(self, qk: Tensor) -> Tensor:
        """x / sqrt(sum(x^2) + eps) over the last dimension, as flash-linear-attention defines it."""
        return qk / torch.linalg.vector_norm(qk, dim=-1, keepdim=True).hypot_(self.l2_floor)


def make_norm(norm: nn.Module, zero_centred: bool) -> InferenceNorm:
    """Inference form of a library RMS norm; zero-centred ones multiply by 1 + w."""
    module: Any = norm
    weight = module.weight.detach()
    eps = module.eps if zero_centred else module.variance_epsilon
    return InferenceNorm(weight.float() + 1.0 if zero_centred else weight, eps, weight.dtype)
