"""Clocks for short pieces of work, on a CPU and on CUDA, and what else a fair time needs: caches and allocator."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Cache = Literal["cold", "warm"]

FLUSH_BYTES = 2**28  # beyond the L2 of any GPU
WARM_REPLAYS = 10
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
    """CUDA events. Cold: L2 is overwritten before the call, which also hides the launch. Warm: the mean of replays."""

    caches: tuple[Cache, ...] = ("cold", "warm")

    def __init__(self, device: torch.device) -> None:
        self._flush: Tensor = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def prepare(self, work: Callable[..., Result], *arguments: Any) -> Callable[..., Result]:
        """A graph of one call; its replay returns the tensors of the capture. Work that synchronises stays as it is."""
        work(*arguments)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                captured = work(*arguments)
        except RuntimeError:
            torch.cuda.synchronize()
            return work

        def replay(*_: Any) -> Result:
            graph.replay()
            return captured

        return replay

    def time(self, work: Callable[..., Result], *arguments: Any, cache: Cache | None = None) -> tuple[float, Result]:
        """Milliseconds of one call."""
        calls = WARM_REPLAYS if cache == "warm" else 1
        if cache == "cold":
            self._flush.zero_()
        elif cache == "warm":
            work(*arguments)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls - 1):
            work(*arguments)
        result = work(*arguments)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls, result


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
