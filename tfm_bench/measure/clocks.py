"""Clocks for short pieces of work, on a CPU and on CUDA, and what else a fair time needs: caches and allocator."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Cache = Literal["cold", "warm"]

FLUSH_BYTES = 2**28  # beyond the L2 of any GPU
WARM_CALLS = 10
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


class Clock(Protocol):
    """Times work; `caches` are the cache states that it can bring about by itself (none on a CPU)."""

    caches: tuple[Cache, ...]

    def prepare(self, work: Callable[..., Result], *arguments: Any) -> Callable[..., Result]:
        """The cheapest way to call work again on these very arguments."""

    def time(self, work: Callable[..., Result], *arguments: Any, cache: Cache | None = None) -> tuple[float, Result]:
        """Milliseconds of one call, and what it returned."""


class CpuClock:
    """Wall time. Cold states are made by rotating more of them than the caches hold, not by the clock."""

    caches: tuple[Cache, ...] = ()

    def prepare(self, work: Callable[..., Result], *arguments: Any) -> Callable[..., Result]:
        """Nothing to prepare."""
        return work

    def time(self, work: Callable[..., Result], *arguments: Any, cache: Cache | None = None) -> tuple[float, Result]:
        """Milliseconds of one call."""
        start = time.perf_counter()
        result = work(*arguments)
        return (time.perf_counter() - start) * 1e3, result


class CudaClock:
    """CUDA events. Cold: L2 is overwritten before the call, which also hides the launch. Warm: the mean of a row."""

    caches: tuple[Cache, ...] = ("cold", "warm")

    def __init__(self, device: torch.device) -> None:
        self._flush: Tensor = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def prepare(self, work: Callable[..., Result], *arguments: Any) -> Callable[..., Result]:
        """A graph of one call, whose replay returns the tensors of the capture. Work that waits stays as it is."""
        work(*arguments)
        torch.cuda.synchronize()
        if _waits(work, *arguments):
            return work
        once, result = _captured(partial(work, *arguments))
        return Replayed(once, _captured(partial(_in_a_row, work, *arguments))[0], result)

    def time(self, work: Callable[..., Result], *arguments: Any, cache: Cache | None = None) -> tuple[float, Result]:
        """Milliseconds of one call. Warm: a row in one graph, as a launch takes longer than a short kernel runs."""
        warm = cache == "warm"
        if cache == "cold":
            self._flush.zero_()
        elif warm:
            work(*arguments)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        if warm and isinstance(work, Replayed):
            work.row.replay()
            result = work.result
        elif warm:
            result = _in_a_row(work, *arguments)
        else:
            result = work(*arguments)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / (WARM_CALLS if warm else 1), result


@dataclass(frozen=True)
class Replayed(Generic[Result]):
    """Graphs of one call and of WARM_CALLS in a row; result: the tensors that `once` writes."""

    once: torch.cuda.CUDAGraph
    row: torch.cuda.CUDAGraph
    result: Result

    def __call__(self, *_: Any) -> Result:
        self.once.replay()
        return self.result


def _in_a_row(work: Callable[..., Result], *arguments: Any) -> Result:
    for _ in range(WARM_CALLS - 1):
        work(*arguments)
    return work(*arguments)


def _waits(work: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the host waits for the device: asked beforehand, as a capture that fails spoils those that follow."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        work(*arguments)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    return False


def _captured(work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = work()
    except RuntimeError:
        torch.cuda.set_stream(stream)  # torch leaves that of the capture, where it fails
        raise
    return graph, result


def keep_freed_memory() -> bool:
    """Makes glibc serve large blocks from its heap and never give that back; False on another C library.

    As with a serving engine's pool or CUDA's caching allocator. Otherwise an arm that stores a state per node also pays
    for fresh pages in every call, which on a CPU costs more than its arithmetic.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return False
    return bool(libc.mallopt(M_MMAP_MAX, 0) and libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
