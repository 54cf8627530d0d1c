"""Which device computes, and how small things get there without a wait."""

from __future__ import annotations

import torch
from torch import Tensor

from tfm_bench.errors import UserError


def choose_device(wanted: str) -> torch.device:
    """auto is a GPU where torch sees one. Raises UserError for a GPU that is not there."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise UserError("stack.device: found cuda, but torch sees no GPU here; auto and cpu are accepted")
    return torch.device("cuda" if present and wanted != "cpu" else "cpu")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device: from the CPU to a GPU through pinned memory, so that the host does not wait for it."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def on_host(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the CPU, in fp64, which holds token ids, counts and fp32 exactly: a GPU is waited for once."""
    found = torch.cat([tensor.double().flatten() for tensor in tensors]).cpu()
    parts = found.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
