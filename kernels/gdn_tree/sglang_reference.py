"""SGLang's own tree kernel on our arguments: what a production engine runs per branch, unchanged, as outside reference.

The kernel comes from the wheel sglang 0.5.23, unpacked without its dependencies into the folder SGLANG_REFERENCE
(default: .sglang at the root of this repository). Only the kernel's file is executed. What it imports from the rest of
SGLang is six questions about the device, which it asks to choose a tile and a launch mode; they are answered here.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels.gdn_tree.fused import GdnTreeOutputs
from kernels.gdn_tree.structure import TreeStructure
from kernels.gdn_tree.triton_structure import DeviceTree, as_device_tree

KERNEL_FILE = "sglang/kernels/ops/attention/linear/fused_sigmoid_gating_recurrent.py"


def node_recurrent(**operands: Any) -> GdnTreeOutputs:
    """Operands as in triton_recurrent.node_recurrent: converts them, then runs SGLang's function.

    Returns outputs [B, N, HV, V] and states [B, N, HV, K, V], a view of memory that SGLang keeps as [..., V, K]; it
    leaves no pseudo-values, that field is an empty tensor. Raises RuntimeError where SGLang's file is missing.
    """
    return prepare(**operands)()


def prepare(**operands: Any) -> Callable[[], GdnTreeOutputs]:
    """The same without the conversions, which are done: to be called, and timed, any number of times."""
    function, arguments = sglang_function(), sglang_arguments(**operands)
    states = arguments["intermediate_states_buffer"].transpose(-1, -2)

    def run() -> GdnTreeOutputs:
        outputs = function(**arguments)
        return GdnTreeOutputs(outputs, outputs.new_empty(0), states)

    return run


def sglang_arguments(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    structure: TreeStructure | DeviceTree,
    scale: float | None = None,
    state_indices: Tensor | None = None,
) -> dict[str, Any]:
    """Keywords of SGLang's function as its tree verification passes them, and the buffer for its states.

    SGLang forms g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b). Above its threshold softplus is the
    identity, so that with threshold -inf, A_log = dt_bias = 0 and a = -g the decay is exact. b is the fp64 logit of
    beta rounded to fp32: beta comes back within 1e-7, relative.
    """
    batch, nodes = k.shape[:2]
    value_heads = v.shape[2]
    parents = as_device_tree(structure).parents.expand(batch, -1)
    padding = (parents < 0).unsqueeze(2)
    padding[:, 0] = False
    q, k, v = (x.masked_fill(padding.unsqueeze(3), 0).contiguous() for x in (q, k, v))
    first = torch.arange(batch, dtype=torch.int32, device=k.device)
    pool = initial_state.transpose(-1, -2).contiguous()
    zeros = g.new_zeros(value_heads)
    return {
        "q": q,
        "k": k,
        "v": v,
        "a": (-g).masked_fill(padding, 0).contiguous(),
        "b": torch.logit(beta.double()).float().masked_fill(padding, 0).contiguous(),
        "A_log": zeros,
        "dt_bias": zeros,
        "softplus_beta": 1.0,
        "softplus_threshold": float("-inf"),
        "initial_state_source": pool,
        "initial_state_indices": first if state_indices is None else state_indices,
        "scale": scale,
        "disable_state_update": True,
        "intermediate_states_buffer": pool.new_empty(batch, nodes, *pool.shape[1:]),
        "intermediate_state_indices": first,
        "cache_steps": nodes,
        "retrieve_parent_token": parents.clamp(min=0),
    }


def missing() -> str | None:
    """Why SGLang's kernel cannot run here; None where its file is."""
    return None if kernel_file().is_file() else "SGLang's kernel is not unpacked (make sglang-reference)"


def kernel_file() -> Path:
    """Where SGLang's file is expected."""
    folder = os.environ.get("SGLANG_REFERENCE") or Path(__file__).parents[2] / ".sglang"
    return Path(folder) / KERNEL_FILE


def sglang_function() -> Callable[..., Tensor]:
    """SGLang's fused_sigmoid_gating_delta_rule_update. Raises RuntimeError where its file is missing."""
    return _load(kernel_file()).fused_sigmoid_gating_delta_rule_update


@lru_cache(maxsize=1)
def _load(file: Path) -> ModuleType:
    if not file.is_file():
        raise RuntimeError(
            f"{file} is missing: run `make sglang-reference`, or point SGLANG_REFERENCE to an unpacked wheel of SGLang."
        )
    spec = importlib.util.spec_from_file_location("sglang_tree_kernel", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    answers = _device_answers()
    before = {name: sys.modules.get(name) for name in answers}
    sys.modules.update(answers)
    try:
        spec.loader.exec_module(module)
    finally:
        for name, known in before.items():
            if known is None:
                del sys.modules[name]
            else:
                sys.modules[name] = known
    return module


def _device_answers() -> dict[str, ModuleType]:
    """The two SGLang modules that the kernel's file imports from, with the same answers for CUDA devices and CPUs."""
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    utils = ModuleType("sglang.srt.utils")
    utils.__dict__.update(
        is_cuda=lambda: torch.cuda.is_available() and torch.version.cuda is not None,
        is_hip=lambda: torch.version.hip is not None,
        is_gfx95_supported=lambda: False,
        is_sm90_supported=lambda: major == 9,
        get_device_sm=lambda: 10 * major + minor,
    )
    launch = ModuleType("sglang.kernels.jit.utils")
    launch.__dict__.update(is_arch_support_pdl=lambda: major >= 9)
    return {module.__name__: module for module in (utils, launch)}
