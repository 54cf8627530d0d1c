"""The clock of a GPU, on a made-up torch.cuda that counts replays and tells which work waits for the device."""

import contextlib

import pytest
import torch

from tfm_bench.measure import clocks
from tfm_bench.measure.clocks import WARM_CALLS, CudaClock, Replayed

ELAPSED_MS = 50.0


class Graph:
    def __init__(self):
        self.replays = 0

    def replay(self):
        self.replays += 1


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return ELAPSED_MS


class Cuda:
    """What the clock uses of torch.cuda."""

    CUDAGraph, Event = Graph, Event

    def __init__(self):
        self.mode, self.stream, self.fails = "default", "main", False

    def synchronize(self):
        pass

    def set_sync_debug_mode(self, mode):
        self.mode = mode

    def current_stream(self):
        return self.stream

    def set_stream(self, stream):
        self.stream = stream

    @contextlib.contextmanager
    def graph(self, graph):
        """As in torch, nothing puts the stream back where a capture fails."""
        self.stream = "capture"
        yield
        if self.fails:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.stream = "main"


@pytest.fixture
def cuda(monkeypatch):
    cuda = Cuda()
    for name in ("CUDAGraph", "Event", "synchronize", "set_sync_debug_mode", "current_stream", "set_stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(clocks, "FLUSH_BYTES", 8)
    return cuda


def test_cold_calls_are_replayed_alone_and_warm_ones_in_a_row(cuda):
    calls, clock = [], CudaClock(torch.device("cpu"))
    prepared = clock.prepare(lambda x: calls.append(x) or len(calls), 7)
    assert isinstance(prepared, Replayed)
    assert calls == [7] * (2 + 1 + WARM_CALLS)  # once, once to see whether it waits, and the captures
    clock._flush.fill_(1)
    assert clock.time(prepared, cache="warm") == (ELAPSED_MS / WARM_CALLS, 3)
    assert (prepared.once.replays, prepared.row.replays, clock._flush.tolist()) == (1, 1, [1] * 8)
    assert clock.time(prepared, cache="cold") == (ELAPSED_MS, 3)
    assert (prepared.once.replays, prepared.row.replays, clock._flush.tolist()) == (2, 1, [0] * 8)
    assert clock.time(prepared) == (ELAPSED_MS, 3)
    assert len(calls) == 3 + WARM_CALLS


def test_work_that_waits_is_called_as_it_is(cuda):
    calls, clock = [], CudaClock(torch.device("cpu"))

    def waiting():
        calls.append(cuda.mode)
        if cuda.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return "result"

    assert clock.prepare(waiting) is waiting
    assert (calls, cuda.mode) == (["default", "error"], "default")
    assert clock.time(waiting, cache="warm") == (ELAPSED_MS / WARM_CALLS, "result")
    assert len(calls) == 2 + 1 + WARM_CALLS


def test_a_capture_that_fails_is_an_error_and_leaves_the_stream_as_it_was(cuda):
    cuda.fails = True
    with pytest.raises(RuntimeError, match="during capture"):
        CudaClock(torch.device("cpu")).prepare(lambda: None)
    assert cuda.stream == "main"
