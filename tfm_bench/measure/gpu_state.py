"""Clocks and throttling of an NVIDIA GPU, from nvidia-ml-py where it is installed."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from pydantic import BaseModel


class GpuClocks(BaseModel):
    """One reading. throttle_reasons: NVML's bit mask of what holds the clocks back; processes: that compute on it."""

    sm_mhz: int
    memory_mhz: int
    throttle_reasons: int
    processes: int


class GpuState(BaseModel):
    """The GPU of a cell; `before` is read before its first timed run, `after` at the end of a record's prompt."""

    name: str
    driver: str
    before: GpuClocks
    after: GpuClocks


def read_gpu(device: torch.device) -> GpuState | None:
    """The state of `device`, before and after being now. None on a CPU, without nvidia-ml-py and without a driver."""
    nvml = _nvml() if str(device).startswith("cuda") else None
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
        # By UUID: CUDA counts only visible devices, NVML counts all.
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        clocks = _clocks(nvml, handle)
        driver = nvml.nvmlSystemGetDriverVersion()
        return GpuState(name=nvml.nvmlDeviceGetName(handle), driver=driver, before=clocks, after=clocks)
    except nvml.NVMLError:
        return None


def read_gpu_again(before: GpuState | None, device: torch.device) -> GpuState | None:
    """`before` with the clocks of now as `after`."""
    now = read_gpu(device) if before else None
    return before.model_copy(update={"after": now.after}) if before and now else before


def _clocks(nvml: Any, handle: Any) -> GpuClocks:
    return GpuClocks(
        sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        memory_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        throttle_reasons=nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        processes=len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    )


def _nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None
