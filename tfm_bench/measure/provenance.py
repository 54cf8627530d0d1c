"""What ties a number to its origin: code, versions, machine and time."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from tfm_bench.measure.gpu_state import GpuState

PACKAGES = ("torch", "transformers", "numpy")
REPOSITORY = Path(__file__).resolve().parents[2]
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


class Origin(BaseModel):
    """The code and the machine. commit is None, and dirty too, outside a git checkout."""

    model_config = ConfigDict(allow_inf_nan=False)

    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    device: str
    cpu: str
    threads: int


class Provenance(Origin):
    """Origin of a kernel record or a recorded tree."""

    measured_at: datetime


class CellProvenance(Origin):
    """Origin of a decode record, and what else the machine did meanwhile.

    started_at: when the process began; finished_at: when the record's prompt was done. load_s, warmup_s: loading the
    stack and running every arm before anything is timed; jit_s: what first runs took longer than second ones
    (compilation, captures, first touch), a part of warmup_s. foreign_load: cores that other processes kept busy, on
    average while the record's prompt ran; None where that is too short to tell or /proc is not there. seed: what the
    record's prompt was sampled with, the seed of the settings and the index of the prompt added up. gdn_path:
    implementation:method, gpu: None on a CPU and without nvidia-ml-py. tf32_*: None for a server, which keeps it to
    itself; launch_command: the server's, None for a stack that this process decodes.
    """

    frequency_governor: str | None
    gpu: GpuState | None
    attention_path: str
    gdn_path: str
    dtype: str
    tf32_matmul: bool | None
    tf32_cudnn: bool | None
    seed: int
    family_versions: dict[str, int]
    config_sha256: str
    started_at: datetime
    finished_at: datetime
    load_s: float
    warmup_s: float
    jit_s: float
    foreign_load: float | None
    launch_command: list[str] | None = None


def collect_provenance(device: torch.device) -> Provenance:
    """Describe a process that computes on `device`; call it after the number of threads is set."""
    return Provenance(**origin_of(device), measured_at=now())


def now() -> datetime:
    """The present second, in UTC."""
    return datetime.now(UTC).replace(microsecond=0)


def origin_of(device: torch.device) -> dict[str, Any]:
    """Fields of Origin; call it after the number of threads is set."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    cpu = _cpu_model()
    return {
        "commit": commit,
        "dirty": None if status is None else bool(status),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "device": torch.cuda.get_device_name(device) if str(device).startswith("cuda") else cpu,
        "cpu": cpu,
        "threads": torch.get_num_threads(),
    }


def arithmetic() -> dict[str, Any]:
    """What decides on rounding and speed beside the code: TF32 flags and the CPU's frequency governor, if readable."""
    try:
        governor = GOVERNOR.read_text(encoding="utf-8").strip()
    except OSError:
        governor = None
    return {
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": torch.backends.cudnn.allow_tf32,
        "frequency_governor": governor,
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
