"""Clocks and throttling from a made-up NVML; a CPU, a missing package and a missing driver leave nothing."""

import sys
from types import SimpleNamespace

import pytest
import torch

from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.measure.gpu_state import GpuClocks, GpuState, read_gpu, read_gpu_again
from tfm_bench.measure.records import read_records

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
CLOCKS = GpuClocks(sm_mhz=1980, memory_mhz=3201, throttle_reasons=0, processes=1)


class NvmlError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """A GPU at full clocks; `state` changes what it says."""
    state = {"sm": 1980, "memory": 3201, "reasons": 0, "processes": ["ours"]}
    module = SimpleNamespace(
        NVMLError=NvmlError,
        NVML_CLOCK_SM="sm",
        NVML_CLOCK_MEM="memory",
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID={"GPU-7f": "handle"}.__getitem__,
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetClockInfo=lambda handle, clock: state[clock],
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: state["reasons"],
        nvmlDeviceGetComputeRunningProcesses=lambda handle: state["processes"],
        state=state,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7f"))
    return module


def test_clocks_are_read_before_and_after(nvml):
    before = read_gpu(CUDA)
    assert before == GpuState(name="NVIDIA H200", driver="580.1", before=CLOCKS, after=CLOCKS)
    nvml.state |= {"sm": 1200, "reasons": 8, "processes": ["ours", "theirs"]}
    after = read_gpu_again(before, CUDA)
    assert after.before == CLOCKS
    assert after.after == GpuClocks(sm_mhz=1200, memory_mhz=3201, throttle_reasons=8, processes=2)


def test_there_is_nothing_to_read_without_gpu_package_or_driver(nvml, monkeypatch):
    def fails():
        raise NvmlError("no driver")

    assert read_gpu(CPU) is None
    nvml.nvmlInit = fails
    assert read_gpu(CUDA) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpu(CUDA) is None
    assert read_gpu_again(None, CPU) is None


def test_a_cell_records_the_gpu_and_says_who_else_uses_it(cells, stack_folder, monkeypatch, capsys):
    state = GpuState(name="NVIDIA H200", driver="580.1", before=CLOCKS, after=CLOCKS)
    shared = state.model_copy(update={"after": CLOCKS.model_copy(update={"processes": 2})})
    monkeypatch.setattr(cells, "read_gpu", lambda device: state)
    for after, said in ((state, 0), (shared, 1)):
        monkeypatch.setattr(cells.runs, "read_gpu_again", lambda before, device, after=after: after)
        cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
        assert {record.provenance.gpu.after.processes for record in read_records(stack_folder / "cell.jsonl")} == {
            1 + said
        }
        assert capsys.readouterr().err.count("other processes use NVIDIA H200 too") == said
