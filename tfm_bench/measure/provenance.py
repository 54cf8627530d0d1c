"""What ties a number to its origin: code, versions, machine and time."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from pydantic import BaseModel

PACKAGES = ("torch", "transformers", "numpy")
REPOSITORY = Path(__file__).resolve().parents[2]


class Provenance(BaseModel):
    """Origin of a record. commit is None, and dirty too, outside a git checkout."""

    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    device: str
    cpu: str
    threads: int
    measured_at: datetime


def collect_provenance(device: torch.device) -> Provenance:
    """Describe a process that computes on `device`; call it after the number of threads is set."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    cpu = _cpu_model()
    return Provenance(
        commit=commit,
        dirty=None if status is None else bool(status),
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        device=torch.cuda.get_device_name(device) if str(device).startswith("cuda") else cpu,
        cpu=cpu,
        threads=torch.get_num_threads(),
        measured_at=datetime.now(UTC).replace(microsecond=0),
    )


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
