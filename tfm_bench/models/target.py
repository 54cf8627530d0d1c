"""The target: a transformers causal LM of the Qwen3.5 (hybrid) or Qwen3 (dense) family that verifies token trees.

transformers builds and loads the model; this class takes its weights over and replaces what a tree needs: the forward
of the layers, the attention mask and the cache. Prefill, plain decoding and tree verification are one code path.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from kernels.gdn_tree import TORCH, Implementation, fastest
from kernels.gdn_tree.structure import CONV_WIDTH, TreeStructure, chain_structure
from tfm_bench.errors import UserError
from tfm_bench.models.cache import DEFAULT_EXTENT_STEP, EXTENT_STEP, TargetState, tree_mask
from tfm_bench.models.device import to_device
from tfm_bench.models.linear import FusedLinear
from tfm_bench.models.target_layers import AttentionLayer, GdnLayer, TreeStep, make_norm
from tfm_bench.models.target_loading import is_hybrid, load_model
from tfm_bench.models.tree_transfer import tree_on
from tfm_bench.tree import TokenTree

PREFILL_WIDTH = 64


class TargetOutput(NamedTuple):
    """logits [N, V]; taps [N, taps * H], the drafter's features; hidden [N, H] after the final norm."""

    logits: Tensor
    taps: Tensor
    hidden: Tensor


class Target:
    """One model; every sequence has its own `TargetState` (batch 1)."""

    def __init__(
        self, model: nn.Module, *, tap_layer_ids: Sequence[int], gdn_verify: str = "fused", commit: str = "replay"
    ) -> None:
        """Take over the weights of a Qwen3_5ForCausalLM or Qwen3ForCausalLM: they move, and the model still works.

        tap_layer_ids: tap k is the residual stream after decoder layer k. gdn_verify and commit name methods of
        kernels.gdn_tree, each run by its fastest implementation here. Raises UserError for a name, a layer or a model
        that is not supported.
        """
        parts: Any = model
        body, self.model, self.config = parts.model, parts, parts.config
        hybrid = is_hybrid(self.config)
        kinds = self.config.layer_types
        self.tap_layer_ids = _checked_taps(tap_layer_ids, len(kinds))
        _check_name(TORCH.verify, "gdn_verify", gdn_verify)
        _check_name(TORCH.commit, "commit", commit)
        self.gdn_verify, self.commit_name = gdn_verify, commit
        self.kernels = _gdn_kernels(parts) if hybrid else TORCH
        self.layers: list[AttentionLayer | GdnLayer] = []
        for i, layer in enumerate(body.layers):
            index = kinds[:i].count(kinds[i])
            if kinds[i] == "linear_attention":
                self.layers.append(GdnLayer(layer, index, self.kernels, gdn_verify))
            else:
                self.layers.append(AttentionLayer(layer, index, hybrid=hybrid))
        self.norm = make_norm(body.norm, hybrid)
        self.embedding = body.embed_tokens.weight.detach()
        tied = parts.lm_head.weight is body.embed_tokens.weight
        self.head = FusedLinear([parts.lm_head], share_storage=not tied)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype,
        tap_layer_ids: Sequence[int],
        gdn_verify: str = "fused",
        commit: str = "replay",
        device: str = "cpu",
    ) -> Target:
        """Load a local checkpoint folder, strictly. Raises UserError for anything missing, damaged or misfit."""
        model = load_model(path, dtype).to(device)
        return cls(model, tap_layer_ids=tap_layer_ids, gdn_verify=gdn_verify, commit=commit)

    def with_gdn_verify(self, method: str, kernels: Implementation | None = None) -> Target:
        """The same weights, verified by another method; kernels: by those instead of the fastest ones.

        Raises UserError for a method that the kernels do not have.
        """
        other = copy.copy(self)
        other.gdn_verify, other.kernels = method, kernels or self.kernels
        _check_name(other.kernels.verify, "gdn_verify", method)
        other.layers = [
            layer.with_verify(method, other.kernels) if isinstance(layer, GdnLayer) else layer for layer in self.layers
        ]
        return other

    @property
    def gdn_implementation(self) -> str:
        """Whose kernels verify Gated-DeltaNet layers: a method that the fastest ones lack is torch's."""
        method = self.kernels.verify[self.gdn_verify]
        return TORCH.name if method is TORCH.verify[self.gdn_verify] else self.kernels.name

    @property
    def device(self) -> torch.device:
        """Where weights and states live."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and attention caches; Gated-DeltaNet states are fp32 always."""
        return self.embedding.dtype

    @property
    def width_step(self) -> int:
        """Trees of free size are padded to a multiple of so many drafts."""
        return 1

    @property
    def hidden_size(self) -> int:
        """Width H of the residual stream."""
        return self.embedding.shape[1]

    @property
    def vocab_size(self) -> int:
        """Rows V of embedding and head."""
        return self.embedding.shape[0]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every end-of-sequence id of the generation config."""
        ids = self.model.generation_config.eos_token_id
        return tuple(ids) if isinstance(ids, list) else () if ids is None else (ids,)

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [N] int64 -> [N, H]."""
        return embedding(to_device(tokens, self.device), self.embedding)

    @torch.inference_mode()
    def lm_head(self, hidden: Tensor) -> Tensor:
        """hidden [N, H] after a final norm -> logits [N, V]."""
        return self.head(hidden)

    @torch.inference_mode()
    def new_state(self, max_length: int, max_width: int) -> TargetState:
        """An empty sequence with room for max_length tokens and trees of max_width nodes; all memory it will need."""
        scratch = max(max_width, PREFILL_WIDTH)
        kinds, config = self.config.layer_types, self.config
        rows = (config.num_key_value_heads, scratch + max_length, config.head_dim)
        attention = (len(kinds) - kinds.count("linear_attention"), *rows)
        gdn = [layer for layer in self.layers if isinstance(layer, GdnLayer)]
        recurrent = (len(gdn), *(gdn[0].state_size if gdn else (0, 0, 0)))
        conv = (len(gdn), gdn[0].conv_weight.shape[0] if gdn else 0, CONV_WIDTH - 1)
        return TargetState(
            keys=torch.zeros(attention, dtype=self.dtype, device=self.device),
            values=torch.zeros(attention, dtype=self.dtype, device=self.device),
            recurrent=torch.zeros(recurrent, device=self.device),
            conv=torch.zeros(conv, dtype=self.dtype, device=self.device),
            hidden_context=torch.full((max_length,), float("-inf"), dtype=self.dtype, device=self.device),
            rotary=self._rotary_table(max_length + scratch),
            max_length=max_length,
            max_width=max_width,
            scratch=scratch,
            extent_step=EXTENT_STEP.get(self.device.type, DEFAULT_EXTENT_STEP),
            kernels=self.kernels,
            keeps_states=self.commit_name == "select",
        )

    def prepare(self, state: TargetState, width: int, most_committed: int) -> None:
        """Makes ready for trees of this width, of which at most so many nodes are committed; state is an empty one.

        Nothing is to be done without graphs. With them a recording would otherwise fall into a round.
        """

    @torch.inference_mode()
    def prefill(self, state: TargetState, tokens: Tensor) -> TargetOutput:
        """Append tokens [T] int64: logits [1, V] and hidden [1, H] of the last one, taps [T, taps * H] of all.

        Done as chains through the code that verifies trees. Raises ValueError for no tokens or too many.
        """
        if not 0 < tokens.shape[0] <= state.max_length - state.length:
            raise ValueError(f"{tokens.shape[0]} tokens given; accepted are 1 to {state.max_length - state.length}")
        taps = []
        for piece in tokens.split(PREFILL_WIDTH):
            stream, piece_taps = self._forward(state, piece, chain_structure(piece.shape[0]))
            taps.append(piece_taps)
            self.commit(state, list(range(piece.shape[0])))
        hidden = self.norm(stream[-1:])
        return TargetOutput(self.head(hidden), torch.cat(taps), hidden)

    @torch.inference_mode()
    def verify(self, state: TargetState, tree: TokenTree) -> TargetOutput:
        """All nodes of a tree in one forward: reads what is committed, writes scratch alone.

        The anchor stands at position state.length. Raises ValueError for a tree wider than the state allows.
        """
        if tree.width > state.max_width:
            raise ValueError(f"the tree has {tree.width} nodes; the state was made for {state.max_width}")
        stream, taps = self._forward(state, tree.tokens, tree.structure)
        hidden = self.norm(stream)
        return TargetOutput(self.head(hidden), taps, hidden)

    @torch.inference_mode()
    def commit(self, state: TargetState, path: list[int]) -> Tensor:
        """Accept the nodes of a root path of the tree last verified: keys, values, GDN states and windows, length.

        Returns the path as it stands on the device.

        Raises ValueError for a path that does not start at the anchor, leaves the tree or does not fit.
        """
        return state.commit(path, self.commit_name)

    def _forward(
        self,
        state: TargetState,
        tokens: Tensor,
        structure: TreeStructure,
        *,
        start: Tensor | None = None,
        max_depth: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Residual stream [N, H] after the last layer, and taps [N, taps * H].

        start [1] on the device in place of state.length, and max_depth, a bound on the depths, where tokens and
        structure are on the device already and nothing may depend on what the host knows: in a graph.
        """
        state.begin(tokens.shape[0])
        if max_depth is None and self.kernels.bounded_tree is not None:
            max_depth = int(structure.depths.max())  # before the move: afterwards it would be a wait
        tokens, structure = tree_on(tokens, structure, self.device)
        positions = structure.depths + (state.length if start is None else start)
        cos, sin = (table.index_select(0, positions) for table in state.rotary)
        mask = tree_mask(structure.ancestors, state, static=start is not None)
        step = TreeStep(self._kernel_tree(structure, max_depth), cos, sin, mask)
        x, streams = self.embed(tokens), []
        for layer in self.layers:
            x = layer(x, step, state)
            streams.append(x)
        return x, torch.cat([streams[i] for i in self.tap_layer_ids], dim=-1)

    def _kernel_tree(self, structure: TreeStructure, max_depth: int | None) -> Any:
        """The tree as the kernels of this method read it: some take it from parents on the device, without a wait."""
        bounded = self.kernels.bounded_tree
        if bounded is None or self.gdn_implementation != self.kernels.name:
            return structure
        return bounded(structure.parents, max_depth=max_depth)

    def _rotary_table(self, rows: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin [rows, 1, rotary dim] from the library's own module."""
        positions = torch.arange(rows, device=self.device)[None]
        cos, sin = self.model.model.rotary_emb(torch.zeros(1, device=self.device), positions)
        sign = torch.ones_like(sin[0])
        sign[:, : sin.shape[-1] // 2] = -1.0
        return cos[0, :, None].to(self.dtype), (sin[0] * sign)[:, None].to(self.dtype)


def _checked_taps(tap_layer_ids: Sequence[int], layers: int) -> tuple[int, ...]:
    if not tap_layer_ids or any(not 0 <= i < layers for i in tap_layer_ids):
        raise UserError(
            f"target_layer_ids is {list(tap_layer_ids)}; accepted are layers 0 to {layers - 1} of the target."
        )
    return tuple(tap_layer_ids)


def _check_name(table: Mapping[str, Any], key: str, name: str) -> None:
    if name not in table:
        raise UserError(f"{key} is {name!r}; accepted are {', '.join(table)}.")


def _gdn_kernels(model: Any) -> Implementation:
    """The fastest kernels for the model's Gated-DeltaNet heads, on its device."""
    config, weight = model.config, model.model.embed_tokens.weight
    return fastest(
        weight.device, dtype=weight.dtype, key_dim=config.linear_key_head_dim, value_dim=config.linear_value_head_dim
    )
