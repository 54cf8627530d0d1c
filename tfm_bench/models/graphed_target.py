"""A target that verifies and commits by replaying graphs: one per width, context extent and bound on the depth."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.gdn_tree import Implementation
from tfm_bench.models.cache import COMMIT_INPUTS, PendingGdn, TargetState
from tfm_bench.models.capacity import Capacity
from tfm_bench.models.device import to_device
from tfm_bench.models.graphs import Backend, Graphed
from tfm_bench.models.target import Target, TargetOutput
from tfm_bench.models.tree_transfer import packed, unpacked
from tfm_bench.tree import TokenTree

DEPTH_STEP = 16  # kernels take a bound on the depth: few of them, so few graphs
WIDTH_STEP = 8


class GraphKey(NamedTuple):
    """All that a recorded verification depends on beside tensors."""

    width: int
    extent: int
    max_depth: int


class CommitKey(NamedTuple):
    """Of a recorded commit."""

    width: int
    committed: int


class Verified(NamedTuple):
    """What verifications of one width leave: the output, and by field of PendingGdn what commits read, all layers."""

    output: TargetOutput
    stacked: dict[str, Tensor]


class GraphedTarget(Target):
    """Takes a target over; its prefill stays as it is.

    Graphs are bound to the memory of a state, so one state serves sequence after sequence for as long as its room is
    enough: at any time only the sequence that was begun last is alive. On a GPU only kernels that read the tree there
    are recorded; a method without them runs as it does without graphs. capacity: room that every state has at least,
    for otherwise a longer prompt or a wider tree later on would make all recordings worthless.
    """

    def __init__(self, target: Target, backend: Backend, capacity: Capacity) -> None:
        self.__dict__.update(target.__dict__)
        self._backend, self._capacity = backend, capacity
        self._state: TargetState | None = None
        self._verifications: Graphed[None] | None = None
        self._commits: Graphed[None] | None = None
        # By width, shared by the recordings of all extents: a tensor that each of them kept would be memory for each.
        self._verified: dict[int, Verified] = {}
        self._prepared: set[tuple[int, int]] = set()  # widths, with the most nodes that are committed
        self._replayed = False  # whether the tree under verification was verified by a replay

    @property
    def records(self) -> bool:
        """Whether the kernels of this method can be recorded."""
        if self.commit_name == "select":
            return False  # states of all nodes would be held twice
        bounded = self.kernels.bounded_tree is not None and self.gdn_implementation == self.kernels.name
        return bounded or self.device.type == "cpu" or "linear_attention" not in self.config.layer_types

    @property
    def width_step(self) -> int:
        """A recording per width: of trees that end where they please there would be hundreds."""
        return WIDTH_STEP

    def with_gdn_verify(self, method: str, kernels: Implementation | None = None) -> GraphedTarget:
        """The same weights by another method, with a state and graphs of its own."""
        return GraphedTarget(super().with_gdn_verify(method, kernels), self._backend, self._capacity)

    @torch.inference_mode()
    def new_state(self, max_length: int, max_width: int) -> TargetState:
        """The kept state, emptied, where it has the room; else a new one, for which graphs are recorded anew."""
        kept = self._state
        if kept is None or kept.max_length < max_length or kept.max_width < max_width:
            room = Capacity(max(max_length, self._capacity.length), max(max_width, self._capacity.width))
            self._state = kept = super().new_state(room.length, room.width)
            self._verifications = Graphed(self._verify_static, self._backend, self.device)
            changed = (kept.recurrent, kept.conv)  # all else that a commit writes it may write twice
            self._commits = Graphed(self._commit_static, self._backend, self.device, changed)
            self._verified, self._prepared = {}, set()
        kept.reset()
        self._replayed = False
        return kept

    def forget(self) -> None:
        """Gives up the kept state and what was recorded for it, as after a run that found no memory."""
        self._state = self._verifications = self._commits = None
        self._verified, self._prepared = {}, set()

    @torch.inference_mode()
    def prepare(self, state: TargetState, width: int, most_committed: int) -> None:
        """Records all that sequences which fill the state can need: every extent, every length of the path."""
        known = (width, most_committed) in self._prepared
        if self._commits is None or state is not self._state or not self.records or known:
            return
        star = TokenTree.from_lists([0] * width, [-1] + [0] * (width - 1), [0.0] * width, width)
        for length in [*range(0, state.max_length, state.extent_step), state.max_length]:
            state.length = length
            self.verify(state, star)
        start = torch.zeros(1, dtype=torch.int64)
        for committed in range(1, min(most_committed, width, state.max_length) + 1):
            self._commits.recorded(CommitKey(width, committed), torch.arange(committed), start)
        self._prepared.add((width, most_committed))
        state.reset()
        self._replayed = False  # else the prefill that follows would commit what was verified here

    @torch.inference_mode()
    def verify(self, state: TargetState, tree: TokenTree) -> TargetOutput:
        """As Target.verify; the output is overwritten by the next verification."""
        self._replayed = False
        if self._verifications is None or state is not self._state or not self.records or tree.width > state.max_width:
            return super().verify(state, tree)
        depth = -(-int(tree.depths.max()) // DEPTH_STEP) * DEPTH_STEP
        key = GraphKey(tree.width, state.extent, min(depth, tree.width - 1))
        rows = to_device(packed(tree.tokens, tree.structure), self.device)
        self._verifications(key, rows, to_device(torch.tensor([state.length]), self.device))
        output, stacked = self._verified[tree.width]
        state.begin(tree.width)
        state.stacked = stacked
        self._replayed = True
        return output

    @torch.inference_mode()
    def commit(self, state: TargetState, path: list[int]) -> Tensor:
        """As Target.commit."""
        if self._commits is None or state is not self._state or not self._replayed:
            return super().commit(state, path)
        state.check_path(path)
        nodes = to_device(torch.tensor(path), self.device)
        start = to_device(torch.tensor([state.length]), self.device)
        self._commits(CommitKey(state.pending_width, len(path)), nodes, start)
        self._replayed = False
        state.advance(len(path))
        return nodes

    def _verify_static(self, key: GraphKey, rows: Tensor, start: Tensor) -> None:
        """Reads nothing but the key and tensors: rows as tree_transfer packs them, start [1], the anchor's position."""
        state = self._state
        assert state is not None
        tokens, structure = unpacked(rows)
        stream, taps = self._forward(state, tokens, structure, start=start, max_depth=key.max_depth)
        hidden = self.norm(stream)
        self._keep(key.width, TargetOutput(self.head(hidden), taps, hidden), state.pending)
        state.pending.clear()

    def _keep(self, width: int, output: TargetOutput, pending: list[PendingGdn]) -> None:
        """Into the memory of this width, which the run before the first recording makes."""
        fields = (*COMMIT_INPUTS[self.commit_name], "inputs") if pending else ()
        layers = {name: [getattr(layer, name) for layer in pending] for name in fields}
        if width not in self._verified:
            self._verified[width] = Verified(output, {name: torch.cat(parts) for name, parts in layers.items()})
            return
        kept = self._verified[width]
        for buffer, value in zip(kept.output, output, strict=True):
            buffer.copy_(value)
        for name, parts in layers.items():
            torch.cat(parts, out=kept.stacked[name])

    def _commit_static(self, key: CommitKey, nodes: Tensor, start: Tensor) -> None:
        """nodes [A], the path; start [1], the length before it."""
        assert self._state is not None
        self._state.commit_static(nodes, start, key.width, self.commit_name)
