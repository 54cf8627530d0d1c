"""Work on static buffers that is recorded once per shape and replayed: CUDA graphs, and the rules they impose."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

Outputs = TypeVar("Outputs")


class Backend(Protocol):
    """Records work that launches the same operations on the same memory every time."""

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """What runs the operations again, and what `work` returned: tensors that every replay overwrites."""


class CudaGraphs:
    """CUDA graphs that share one memory pool: only one of them may be read before the next one is replayed."""

    def __init__(self) -> None:
        self._pool, self._aside = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """Runs the work once aside, so that compilation and library set-up are not part of the recording."""
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            work()
        torch.cuda.current_stream().wait_stream(self._aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = work()
        return graph.replay, outputs


class _Recorded(NamedTuple, Generic[Outputs]):
    """Static inputs, what reads them, and what it writes."""

    inputs: Sequence[Tensor]
    replay: Callable[[], None]
    outputs: Outputs


class Graphed(Generic[Outputs]):
    """A function of tensors that is recorded once per key.

    work(key, *inputs) may read nothing of the host that is not in the key, wait for no device and leave no trace but
    its outputs, scratch and what is in `preserved`: tensors that it changes, and that recording leaves unchanged. The
    outputs belong to the recording: the next call with the same key overwrites them.
    """

    def __init__(
        self,
        work: Callable[..., Outputs],
        backend: Backend,
        device: torch.device,
        preserved: Sequence[Tensor] = (),
    ) -> None:
        self._work, self._backend, self._device, self._preserved = work, backend, device, preserved
        self._recorded: dict[Hashable, _Recorded[Outputs]] = {}

    @property
    def keys(self) -> list[Hashable]:
        """Of what has been recorded, oldest first."""
        return list(self._recorded)

    def __call__(self, key: Hashable, *inputs: Tensor) -> Outputs:
        """Copies the inputs into the static ones and replays. Raises ValueError for another shape or dtype."""
        recorded = self.recorded(key, *inputs)
        for static, given in zip(recorded.inputs, inputs, strict=True):
            if static.shape != given.shape or static.dtype != given.dtype:
                raise ValueError(
                    f"{key}: recorded for {tuple(static.shape)} {static.dtype}, got {tuple(given.shape)} {given.dtype}"
                )
            static.copy_(given, non_blocking=True)
        recorded.replay()
        return recorded.outputs

    def recorded(self, key: Hashable, *inputs: Tensor) -> _Recorded[Outputs]:
        """Records the work for this key unless that has been done; inputs as in the calls that follow."""
        if key not in self._recorded:
            self._recorded[key] = self._record(key, inputs)
        return self._recorded[key]

    def _record(self, key: Hashable, inputs: Sequence[Tensor]) -> _Recorded[Outputs]:
        static = [given.to(self._device, copy=True) for given in inputs]
        before = [tensor.clone() for tensor in self._preserved]
        replay, outputs = self._backend.record(lambda: self._work(key, *static))
        for tensor, kept in zip(self._preserved, before, strict=True):
            tensor.copy_(kept)
        return _Recorded(static, replay, outputs)
