"""What the target remembers of one sequence: attention keys and values, Gated-DeltaNet states, convolution windows.

Everything is allocated once and written in place. Verification reads what is committed and writes nothing but scratch;
only `Target.commit` moves a path from scratch into the committed part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.gdn_tree import TORCH, Implementation, commit_window
from tfm_bench.models.device import to_device

# Context rows that attention reads are rounded up to a multiple of this, so that a GPU meets few distinct shapes
# (one captured graph each); the CPU reads exactly what there is.
EXTENT_STEP = {"cpu": 1}
DEFAULT_EXTENT_STEP = 256
COMMIT_INPUTS = {"replay": ("k", "v", "g", "beta"), "fold": ("k", "pseudo_values", "g")}


@dataclass
class PendingGdn:
    """What one Gated-DeltaNet layer computed for the tree under verification, kept until the commit.

    inputs [1, N, C] of the convolution; k [1, N, H, K], normalised; v, pseudo_values [1, N, HV, V]; g, beta [1, N, HV];
    states [1, N, HV, K, V] where the method stores them and the commit reads them.
    """

    inputs: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    pseudo_values: Tensor
    states: Tensor | None


@dataclass
class TargetState:
    """Caches of one sequence of `length` committed tokens.

    keys, values [attention layers, KV heads, scratch + max_length, D]: tree node i of an N-wide tree stands in row
    scratch - N + i, context position p in row scratch + p, so that both lie side by side at any width. recurrent
    [GDN layers, HV, K, V] fp32; conv [GDN layers, C, 3], oldest input first. hidden_context [max_length] is added to
    attention scores: 0 for committed rows, -inf beyond. rotary holds cos and signed sin, one row per position. Of
    the tree under verification: pending, layer by layer, or in its place stacked, the fields that the commit reads;
    keeps_states: whether the states of its nodes are among them.
    """

    keys: Tensor
    values: Tensor
    recurrent: Tensor
    conv: Tensor
    hidden_context: Tensor
    rotary: tuple[Tensor, Tensor]
    max_length: int
    max_width: int
    scratch: int
    extent_step: int
    kernels: Implementation = TORCH
    keeps_states: bool = False
    length: int = 0
    pending_width: int = 0
    pending: list[PendingGdn] = field(default_factory=list)
    stacked: dict[str, Tensor] = field(default_factory=dict)

    @property
    def extent(self) -> int:
        """Context rows that attention reads: `length`, rounded up to the device's step."""
        return min(-(-self.length // self.extent_step) * self.extent_step, self.max_length)

    def reset(self) -> None:
        """An empty sequence in the same memory. Keys and values may stay: their rows are hidden until written anew."""
        self.length = 0
        self.hidden_context.fill_(float("-inf"))
        self.recurrent.zero_()
        self.conv.zero_()
        self.begin(0)

    def begin(self, width: int) -> None:
        """Forget what an earlier tree left in scratch; a forward over `width` nodes follows."""
        self.pending_width = width
        self.pending.clear()
        self.stacked = {}

    def commit(self, path: list[int], recurrent_commit: str) -> Tensor:
        """Move the path's nodes from scratch behind the committed context; returns the path on the device.

        path starts at the anchor; recurrent_commit names an entry of `kernels.commit`. Raises ValueError, before
        anything is written, for a path that is none or does not fit.
        """
        self.check_path(path)
        nodes = to_device(torch.tensor(path), self.keys.device)
        if self.pending or self.stacked:
            self._commit_gdn(nodes, recurrent_commit)
        self._commit_rows(nodes)
        self.advance(len(path))
        return nodes

    def check_path(self, path: list[int]) -> None:
        """Raises ValueError for a path that does not start at the anchor, leaves the tree or does not fit."""
        if not path or path[0] != 0 or not all(0 <= node < self.pending_width for node in path):
            raise ValueError(
                f"path {path} does not start at the anchor of a verified tree of {self.pending_width} nodes"
            )
        if self.length + len(path) > self.max_length:
            raise ValueError(f"{len(path)} tokens do not fit behind {self.length} of {self.max_length}")

    def advance(self, tokens: int) -> None:
        """The sequence is longer by so many tokens, and no tree is under verification."""
        self.length += tokens
        self.begin(0)

    def commit_static(self, nodes: Tensor, start: Tensor, width: int, recurrent_commit: str) -> None:
        """The writes of `commit` for a path nodes [A] of a tree of `width` nodes, start [1] being the length before.

        Both on the device, so that a graph can be replayed at any length.
        """
        if self.pending or self.stacked:
            self._commit_gdn(nodes, recurrent_commit)
        positions = start + torch.arange(nodes.shape[0], device=nodes.device)
        for cache in (self.keys, self.values):
            cache.index_copy_(2, positions + self.scratch, cache.index_select(2, nodes + (self.scratch - width)))
        self.hidden_context.index_fill_(0, positions, 0.0)

    def _commit_rows(self, nodes: Tensor) -> None:
        """Keys and values of all attention layers at once."""
        first = self.scratch + self.length
        last = first + nodes.shape[0]
        source = nodes + (self.scratch - self.pending_width)
        for cache in (self.keys, self.values):
            cache[:, :, first:last] = cache.index_select(2, source)
        self.hidden_context[self.length : self.length + nodes.shape[0]] = 0.0

    def _commit_gdn(self, nodes: Tensor, name: str) -> None:
        """Recurrent states and windows of all GDN layers at once: layers ride in the batch dimension."""
        if name == "select":
            leaf = nodes[-1:]
            states = torch.cat([_stored(layer).index_select(1, leaf) for layer in self.pending])
            self.kernels.commit[name](states=states, path=torch.zeros_like(leaf), state=self.recurrent)
        else:
            inputs = {field: self._layers(field) for field in COMMIT_INPUTS[name]}
            if self.kernels.commits_windows:
                inputs |= {"inputs": self._layers("inputs"), "window": self.conv}
            self.kernels.commit[name](**inputs, path=nodes, state=self.recurrent)
        if name == "select" or not self.kernels.commits_windows:
            commit_window(inputs=self._layers("inputs"), path=nodes, window=self.conv)

    def _layers(self, name: str) -> Tensor:
        """[GDN layers, N, ...]. Whole, as one copy of all nodes takes less time than a selection per layer."""
        if self.stacked:
            return self.stacked[name]
        return torch.cat([getattr(layer, name) for layer in self.pending])


def _stored(layer: PendingGdn) -> Tensor:
    if layer.states is None:
        raise ValueError("this GDN verification stores no states; commit by replay or fold")
    return layer.states


def tree_mask(ancestors: Tensor, state: TargetState, *, static: bool = False) -> Tensor | None:
    """Additive mask [N, 1, M] over the first M of [tree | context] rows; None where nothing is hidden.

    ancestors [N, N] bool on the state's device. static: the mask covers all rows, whatever the length within the
    extent, so that a graph can be replayed at another one.
    """
    nodes, extent = ancestors.shape[0], state.extent
    if nodes == 1 and extent == state.length and not static:
        return None
    mask = torch.zeros_like(ancestors, dtype=state.hidden_context.dtype).masked_fill_(~ancestors, float("-inf"))
    if static or extent > state.length:
        mask = torch.cat([mask, state.hidden_context[:extent].expand(nodes, -1)], dim=1)
    return mask[:, None]
