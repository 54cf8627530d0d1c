"""The compiled paths of this package behind ctypes: tensors in, tensors out, on the CPU in fp32."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from kernels.compile import load_library
from kernels.gdn_tree.fused import GdnTreeOutputs
from kernels.gdn_tree.structure import CONV_WIDTH, TreeStructure

SOURCE = Path(__file__).with_name("gdn_tree.cpp")
LANES = 16
# Below this many multiplications a second thread costs more than it saves.
WORK_PER_THREAD = 2**19
CONV_WORK = 16  # multiplications that an output costs, its exponential included


def _fields(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_int64) for name in names]


def _row_fields(*names: str) -> list[tuple[str, type]]:
    return [(f"{name}_{part}", ctypes.c_int64) for name in names for part in ("data", "sequence", "node", "head")]


class Verification(ctypes.Structure):
    _fields_ = (
        *_fields("batch", "nodes", "heads", "value_heads", "key_dim", "value_dim", "threads"),
        *_row_fields("q", "k", "v", "g", "beta"),
        *_fields("state", "parents", "outputs", "pseudo_values", "states"),
        ("scale", ctypes.c_double),
    )


class Commit(ctypes.Structure):
    _fields_ = (
        *_fields("rows", "nodes", "heads", "value_heads", "key_dim", "value_dim", "threads", "length"),
        *_row_fields("k", "v", "g", "beta"),
        *_fields("path", "state"),
    )


class Convolution(ctypes.Structure):
    _fields_ = (
        *_fields("batch", "nodes", "channels", "threads", "sequence_stride", "node_stride"),
        *_fields("inputs", "window", "weight", "bias", "parents", "outputs"),
    )


def gdn_library() -> ctypes.CDLL | None:
    """The compiled kernels; None, and a warning once, where they cannot be built."""
    return load_library(SOURCE)


def supports(device: torch.device, key_dim: int, value_dim: int) -> bool:
    """Whether the compiled paths cover fp32 inputs of such heads: on the CPU, widths in whole lanes."""
    return device.type == "cpu" and key_dim % LANES == 0 and value_dim % LANES == 0


def fused_tree_gated_delta_rule(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    structure: TreeStructure,
    scale: float | None = None,
) -> GdnTreeOutputs:
    """The masked solve of fused.py, over pairs of a node and its ancestors only.

    Arguments as there. Paths longer than half a key are cut: the state in between is formed, and the next nodes start
    from it, so that long chains cost no more than a recurrence.
    """
    call, result = _verification(q, k, v, g, beta, initial_state, structure, scale, None)
    _run("gdn_fused", call, ctypes.c_int64(k.shape[3] // 2))
    return result


def node_recurrent(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    structure: TreeStructure,
    scale: float | None = None,
) -> GdnTreeOutputs:
    """Node after node, each from its parent's stored state; the states are returned, [B, N, HV, K, V]."""
    states = k.new_empty(*k.shape[:2], *initial_state.shape[1:])
    call, result = _verification(q, k, v, g, beta, initial_state, structure, scale, states)
    _run("gdn_node_recurrent", call)
    return result


def node_recurrent_scratch(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    structure: TreeStructure,
    scale: float | None = None,
) -> GdnTreeOutputs:
    """Node after node, depth first, with one state per depth in cache and none kept: its commit is a replay.

    Not a method that serving engines have: the strongest recurrence for a CPU, where stored states cost more than
    arithmetic.
    """
    call, result = _verification(q, k, v, g, beta, initial_state, structure, scale, None)
    _run("gdn_node_recurrent_scratch", call)
    return result


def path_recurrent(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    structure: TreeStructure,
    scale: float | None = None,
) -> GdnTreeOutputs:
    """Each root-to-leaf path on its own: work on shared prefixes is repeated, no state is kept."""
    call, result = _verification(q, k, v, g, beta, initial_state, structure, scale, None)
    _run("gdn_path_recurrent", call)
    return result


def replay(*, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, path: Tensor, state: Tensor) -> None:
    """The recurrence once more along the path, in place; arguments as in commit.py."""
    _run("gdn_replay", _commit(k, v, g, beta, path, state))


def fold(*, k: Tensor, pseudo_values: Tensor, g: Tensor, path: Tensor, state: Tensor) -> None:
    """The sum over the path with the pseudo-values of verification, in place; arguments as in commit.py."""
    _run("gdn_fold", _commit(k, pseudo_values, g, g, path, state))


def tree_causal_conv(
    *, inputs: Tensor, window: Tensor, weight: Tensor, structure: TreeStructure, bias: Tensor | None = None
) -> Tensor:
    """Depthwise convolution with SiLU along the path of each node; arguments as in conv.py."""
    batch, nodes, channels = inputs.shape
    shapes = {
        (batch, nodes, channels): inputs,
        (batch, channels, CONV_WIDTH - 1): window,
        (channels, CONV_WIDTH): weight,
    }
    for shape, x in (shapes if bias is None else shapes | {(channels,): bias}).items():
        contiguous = x.stride(2) == 1 if x is inputs else x.is_contiguous()
        if x.shape != shape or x.dtype is not torch.float32 or not x.is_cpu or not contiguous:
            raise ValueError(f"expected contiguous fp32 {shape} on the CPU, got {x.dtype} {tuple(x.shape)}")
    _check_indices(structure.parents, nodes)
    outputs = inputs.new_empty(batch, nodes, channels)
    call = Convolution(
        *(batch, nodes, channels, _threads(batch * nodes * channels * CONV_WORK), *inputs.stride()[:2]),
        *(inputs.data_ptr(), window.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()),
        *(structure.parents.data_ptr(), outputs.data_ptr()),
    )
    _run("gdn_convolve", call)
    return outputs


def _run(name: str, call: ctypes.Structure, *arguments: ctypes.c_int64) -> None:
    library = gdn_library()
    if library is None:
        raise RuntimeError("the Gated-DeltaNet kernels were not compiled on this machine")
    if getattr(library, name)(ctypes.byref(call), *arguments):
        raise ValueError("parents must come before their children, and a path must stay within the nodes")


def _verification(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    structure: TreeStructure,
    scale: float | None,
    states: Tensor | None,
) -> tuple[Verification, GdnTreeOutputs]:
    """The call and what it fills. The C++ trusts its pointers: nothing of a wrong size may reach it."""
    batch, nodes, heads, key_dim = k.shape
    value_heads, value_dim = v.shape[2:]
    _check_rows(q, k, v, g, beta)
    _check_state(initial_state, (batch, value_heads, key_dim, value_dim), heads)
    _check_indices(structure.parents, nodes)
    outputs = k.new_empty(batch, nodes, value_heads, value_dim)
    pseudo_values = k.new_empty(batch, value_heads, nodes, value_dim)
    call = Verification(
        *(batch, nodes, heads, value_heads, key_dim, value_dim),
        _threads(batch * nodes * value_heads * key_dim * value_dim),
        *(field for x in (q, k, v, g, beta) for field in (x.data_ptr(), *x.stride()[:3])),
        *(initial_state.data_ptr(), structure.parents.data_ptr(), outputs.data_ptr(), pseudo_values.data_ptr()),
        0 if states is None else states.data_ptr(),
        key_dim**-0.5 if scale is None else scale,
    )
    return call, GdnTreeOutputs(outputs, pseudo_values.transpose(1, 2), states)


def _commit(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, path: Tensor, state: Tensor) -> Commit:
    rows, nodes, heads, key_dim = k.shape
    value_heads, value_dim = v.shape[2:]
    _check_rows(k, k, v, g, beta)
    _check_state(state, (rows, value_heads, key_dim, value_dim), heads)
    _check_indices(path, path.shape[0])
    return Commit(
        *(rows, nodes, heads, value_heads, key_dim, value_dim),
        _threads(rows * path.shape[0] * value_heads * key_dim * value_dim),
        path.shape[0],
        *(field for x in (k, v, g, beta) for field in (x.data_ptr(), *x.stride()[:3])),
        *(path.data_ptr(), state.data_ptr()),
    )


def _check_rows(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> None:
    for x in (q, k, v, g, beta):
        if x.dtype is not torch.float32 or not x.is_cpu:
            raise ValueError(f"expected fp32 on the CPU, got {x.dtype} on {x.device}")
    if q.shape != k.shape or v.shape[:2] != k.shape[:2] or not g.shape == beta.shape == v.shape[:3]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v, g, beta))
        raise ValueError(f"q, k, v, g and beta do not belong together: {shapes}")
    if not q.stride(3) == k.stride(3) == v.stride(3) == 1 or k.shape[3] % LANES or v.shape[3] % LANES:
        raise ValueError(f"heads must be contiguous and a multiple of {LANES} wide, got {k.shape[3]} and {v.shape[3]}")


def _check_state(state: Tensor, shape: tuple[int, ...], heads: int) -> None:
    if state.shape != shape or state.dtype is not torch.float32 or not state.is_cpu or shape[1] % heads:
        raise ValueError(f"expected an fp32 state {shape} on the CPU, got {state.dtype} {tuple(state.shape)}")
    if not state.is_contiguous():
        raise RuntimeError("the state must be contiguous: a view in the right order is needed")


def _check_indices(indices: Tensor, count: int) -> None:
    if (
        indices.shape != (count,)
        or indices.dtype is not torch.int64
        or not (indices.is_contiguous() and indices.is_cpu)
    ):
        raise ValueError(f"expected {count} contiguous int64 indices, got {indices.dtype} {tuple(indices.shape)}")


def _threads(work: int) -> int:
    return max(1, min(torch.get_num_threads(), work // WORK_PER_THREAD))
