"""A drafter that drafts, and appends what a round accepted, by replaying graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from tfm_bench.models.cache import DEFAULT_EXTENT_STEP, EXTENT_STEP
from tfm_bench.models.device import to_device
from tfm_bench.models.dflash_runtime import DrafterRuntime, DrafterState
from tfm_bench.models.graphs import Backend, Graphed


class GraphedDrafter(DrafterRuntime):
    """Takes a drafter over. One context of at least max_length tokens serves all sequences, as in GraphedTarget."""

    def __init__(self, drafter: DrafterRuntime, backend: Backend, max_length: int) -> None:
        self.__dict__.update(drafter.__dict__)
        self._backend, self._max_length = backend, max_length
        self._state: DrafterState | None = None
        self._drafts: Graphed[Tensor] | None = None
        self._appends: Graphed[None] | None = None
        self._prepared = False

    @torch.inference_mode()
    def new_state(self, max_length: int) -> DrafterState:
        """The kept context, emptied, where it has the room; else a new one, for which graphs are recorded anew."""
        if self._state is None or self._state.max_length < max_length:
            self._state = super().new_state(max(max_length, self._max_length))
            self._drafts = Graphed(self._draft_static, self._backend, self.device)
            self._appends = Graphed(self._append_static, self._backend, self.device)
            self._prepared = False
        self._state.length = 0
        return self._state

    @torch.inference_mode()
    def prepare(self, state: DrafterState) -> None:
        """Records all that rounds can need: every extent, and every number of accepted tokens."""
        if self._appends is None or state is not self._state or self._prepared:
            return
        config = self.config
        block = torch.zeros(config.block_size, config.hidden_size, dtype=self.dtype, device=self.device)
        step = EXTENT_STEP.get(self.device.type, DEFAULT_EXTENT_STEP)
        for length in [*range(0, state.max_length, step), state.max_length]:
            state.length = length
            self.draft(state, block, length)
        state.length, width = 0, len(config.target_layer_ids) * config.hidden_size
        for tokens in range(1, min(config.block_size, state.max_length) + 1):
            features = torch.zeros(tokens, width, dtype=self.dtype, device=self.device)
            self._appends.recorded(tokens, features, torch.zeros(1, dtype=torch.int64))
        self._prepared = True

    @torch.inference_mode()
    def draft(self, state: DrafterState, block_embeddings: Tensor, start: int) -> Tensor:
        """As DrafterRuntime.draft; the next draft overwrites the result."""
        self.check_block(state, block_embeddings, start)
        if self._drafts is None or state is not self._state:
            return super().draft(state, block_embeddings, start)
        step = EXTENT_STEP.get(self.device.type, DEFAULT_EXTENT_STEP)
        extent = min(-(-start // step) * step, state.max_length)
        return self._drafts(extent, block_embeddings, to_device(torch.tensor([start]), self.device))

    @torch.inference_mode()
    def append(self, state: DrafterState, target_features: Tensor, start: int) -> None:
        """As DrafterRuntime.append; a prompt is no round, and is appended without a graph."""
        tokens = target_features.shape[0]
        if self._appends is None or state is not self._state or tokens > self.config.block_size:
            super().append(state, target_features, start)
            return
        self.check_append(state, tokens, start)
        self._appends(tokens, target_features, to_device(torch.tensor([start]), self.device))
        state.length = start + tokens

    def _draft_static(self, extent: int, block_embeddings: Tensor, start: Tensor) -> Tensor:
        """start [1] on the device; attention reads `extent` rows of context and hides what is not there yet."""
        state = self._state
        assert state is not None
        rows = start + torch.arange(self.config.block_size, device=self.device)
        cos, sin = (table.index_select(0, rows) for table in state.rotary)
        masks = {kind: self._static_mask(kind, rows, extent) for kind in dict.fromkeys(self.config.layer_types)}
        return self.run_layers(state, block_embeddings, extent, cos, sin, masks)

    def _static_mask(self, kind: str, rows: Tensor, extent: int) -> Tensor:
        """Additive mask [block, 1, block + extent] for a block at positions rows [block]."""
        context, window = torch.arange(extent, device=self.device), self.config.window(kind)
        visible = (context < rows[:1]).expand(rows.shape[0], -1)
        if window is not None:
            visible = visible & (rows[:, None] - context < window)
        hidden = torch.zeros_like(visible, dtype=self.dtype).masked_fill_(~visible, float("-inf"))[:, None]
        block = self.block_masks.get(kind)
        if block is None:
            block = hidden.new_zeros(rows.shape[0], 1, rows.shape[0])
        return torch.cat([block, hidden], dim=-1)

    def _append_static(self, tokens: int, target_features: Tensor, start: Tensor) -> None:
        """start [1] on the device."""
        state = self._state
        assert state is not None
        rows = start + torch.arange(tokens, device=self.device)
        cos, sin = (table.index_select(0, rows)[:, None] for table in state.rotary)
        keys, values = self.context_rows(target_features, cos, sin)
        state.keys.index_copy_(2, rows + self.config.block_size, keys)
        state.values.index_copy_(2, rows + self.config.block_size, values)
