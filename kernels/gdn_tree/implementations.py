"""Which implementations of the tree kernels exist, which can run here, and which of them is the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.gdn_tree import commit, compiled, conv, fla_reference, fused, recurrent
from kernels.gdn_tree.fused import GdnTreeOutputs


class Implementation(NamedTuple):
    """The kernels of one implementation, by the names that configuration and records use.

    verify: method -> f(*, q, k, v, g, beta, initial_state, structure, scale=None) -> GdnTreeOutputs; commit: name ->
    f(*, ..., path, state); tree_causal_conv as in conv.py, torch's where there is no other. unavailable says why it
    cannot run here, None that it can. prepare: where verify has to bring its arguments into another form first,
    method -> f(same arguments) -> the kernel alone, to be timed. bounded_tree: f(parents, *, max_depth) -> the
    structure as these kernels read it, made on the device without a wait; None where they read a TreeStructure.
    commits_windows: whether replay and fold take inputs and window of the convolution too, in the same launch.
    """

    name: str
    verify: dict[str, Callable[..., GdnTreeOutputs]]
    commit: dict[str, Callable[..., None]]
    tree_causal_conv: Callable[..., Tensor]
    unavailable: str | None = None
    prepare: Mapping[str, Callable[..., Callable[[], GdnTreeOutputs]]] = MappingProxyType({})
    bounded_tree: Callable[..., Any] | None = None
    commits_windows: bool = False


TORCH = Implementation(
    name="torch",
    verify={
        "fused": fused.fused_tree_gated_delta_rule,
        "level_recurrent": recurrent.level_recurrent,
        "node_recurrent": recurrent.node_recurrent,
        "path_recurrent": recurrent.path_recurrent,
    },
    commit={"replay": commit.replay, "fold": commit.fold, "select": commit.select},
    tree_causal_conv=conv.tree_causal_conv,
)
COMPILED = Implementation(
    name="compiled",
    verify={
        "fused": compiled.fused_tree_gated_delta_rule,
        "node_recurrent": compiled.node_recurrent,
        "node_recurrent_scratch": compiled.node_recurrent_scratch,
        "path_recurrent": compiled.path_recurrent,
    },
    commit={"replay": compiled.replay, "fold": compiled.fold, "select": commit.select},
    tree_causal_conv=compiled.tree_causal_conv,
)


def implementations(device: torch.device) -> dict[str, Implementation]:
    """All of them, by name, with the reason where one cannot run on `device`."""
    return {
        "torch": TORCH,
        "compiled": COMPILED._replace(unavailable=_no_compiled(device)),
        "triton": _triton(device),
        "sglang": _sglang(device),
        "fla": _fla(device),
    }


def fastest(device: torch.device, *, dtype: torch.dtype, key_dim: int, value_dim: int) -> Implementation:
    """What an engine should use on `device`; `dtype` is that of the convolution, all else is fp32.

    Names that the fast implementation lacks are torch's. Where a compiler is missing, that is logged once.
    """
    if device.type == "cuda":
        fast = _triton(device)
    elif compiled.supports(device, key_dim, value_dim) and compiled.gdn_library() is not None:
        fast = COMPILED if dtype is torch.float32 else COMPILED._replace(tree_causal_conv=conv.tree_causal_conv)
    else:
        return TORCH
    if fast.unavailable:
        return TORCH
    if device.type == "cuda" and dtype is torch.bfloat16:
        # The layer computes in fp32, but nothing finer than bf16 comes in: tensor cores lose nothing that was there.
        fast.verify["fused"] = partial(fast.verify["fused"], precision="tf32")
    return fast._replace(verify=TORCH.verify | fast.verify, commit=TORCH.commit | fast.commit)


def _no_compiled(device: torch.device) -> str | None:
    if device.type != "cpu":
        return "runs on the CPU only"
    return None if compiled.gdn_library() is not None else "no C++ compiler was found"


def _triton(device: torch.device) -> Implementation:
    if device.type != "cuda":
        return _absent("triton", "needs a CUDA device")
    try:
        from kernels.gdn_tree import triton_commit, triton_conv, triton_fused, triton_recurrent, triton_structure
    except ImportError as error:
        return _absent("triton", f"{error.name or 'triton'} is not installed")
    return Implementation(
        name="triton",
        verify={
            "fused": triton_fused.fused_tree_gated_delta_rule,
            "node_recurrent": triton_recurrent.node_recurrent,
        },
        commit={"replay": triton_commit.replay, "fold": triton_commit.fold, "select": commit.select},
        tree_causal_conv=triton_conv.tree_causal_conv,
        bounded_tree=triton_structure.device_tree,
        commits_windows=True,
    )


def _sglang(device: torch.device) -> Implementation:
    if device.type != "cuda":
        return _absent("sglang", "needs a CUDA device")
    try:
        from kernels.gdn_tree import sglang_reference
    except ImportError as error:
        return _absent("sglang", f"{error.name or 'triton'} is not installed")
    return Implementation(
        name="sglang",
        verify={"node_recurrent": sglang_reference.node_recurrent},
        commit={},  # its states are transposed in memory: selecting one into our layout would charge it for that
        tree_causal_conv=conv.tree_causal_conv,
        unavailable=sglang_reference.missing(),
        prepare={"node_recurrent": sglang_reference.prepare},
    )


def _fla(device: torch.device) -> Implementation:
    if device.type != "cuda":
        return _absent("fla", "needs a CUDA device")
    return Implementation(
        name="fla",
        verify={"chunk": fla_reference.chunk},
        commit={},
        tree_causal_conv=conv.tree_causal_conv,
        unavailable=fla_reference.missing(),
        prepare={"chunk": fla_reference.prepare},
    )


def _absent(name: str, reason: str) -> Implementation:
    return Implementation(name, {}, {}, conv.tree_causal_conv, reason)
