"""What the Triton tests of this folder share: a device that can run the kernels, and buffers that start poisoned."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    """A GPU, or the CPU where Triton's interpreter stands in."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton needs a GPU or its interpreter")
    return torch.device("cpu")


@pytest.fixture
def poisoned(monkeypatch) -> None:
    """torch.empty and empty_like give NaN, or an index that exists but is wrong: what is read unwritten shows."""

    def poison(allocate):
        def allocated(*args, **kwargs):
            buffer = allocate(*args, **kwargs)
            return buffer.fill_(float("nan") if buffer.is_floating_point() else 1)

        return allocated

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poison(getattr(torch, name)))
