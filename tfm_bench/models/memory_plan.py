"""What a stack will need of a device's memory, from its configs alone: said before gigabytes of weights are read.

Lines that are exact count tensors that loading and `new_state` make; the others are estimates of what a round needs
beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tfm_bench.drafting.weaver_tree import TABLE_ROWS
from tfm_bench.errors import UserError
from tfm_bench.models.capacity import Capacity
from tfm_bench.models.dflash import DFlashDrafter
from tfm_bench.models.dflash_config import DFlashConfig
from tfm_bench.models.target import PREFILL_WIDTH
from tfm_bench.models.target_loading import expected_shapes
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig
from tfm_bench.stack_config import STATE_STORING

GIGABYTE = 10**9
FP32 = 4
CONV_HISTORY = 3
# CUDA's context, Triton's modules and the workspaces of cuBLAS: 0.5 to 0.9 GB where others measured it.
RUNTIME_BYTES = 10**9


class Line(NamedTuple):
    """One line of the plan."""

    name: str
    bytes: int
    exact: bool


class StackConfigs(NamedTuple):
    """Configs of the parts, the library's of the target; weaver is None for a stack without one."""

    target: Any
    drafter: DFlashConfig
    weaver: WeaverConfig | None


def memory_plan(
    configs: StackConfigs,
    dtype: torch.dtype,
    capacity: Capacity,
    *,
    gdn_verify: str = "fused",
    commit: str = "replay",
    table_bytes: int = 0,
) -> list[Line]:
    """Every part on a device other than the CPU (where projections are kept twice), largest concerns first.

    table_bytes: size of an element of Weaver's tables, by default that of dtype, as in Triton.
    """
    size, width = dtype.itemsize, max(capacity.width, PREFILL_WIDTH)
    vocab = configs.target.vocab_size
    lines = [
        Line("target weights", size * _count(expected_shapes(configs.target)), True),
        Line("drafter weights", size * _parameters(DFlashDrafter, configs.drafter), True),
        Line("drafter context projections", size * _context_projections(configs.drafter), True),
    ]
    if configs.weaver is not None:
        tables = 2 * vocab * configs.weaver.d_rank * (table_bytes or size)
        lines += [
            Line("Weaver weights", size * _parameters(Weaver, configs.weaver), True),
            Line("Weaver tables", tables, True),
            Line("making the tables", 3 * min(vocab, TABLE_ROWS) * configs.weaver.d_embed * FP32, False),
        ]
    lines += [
        Line("attention keys and values", size * attention_elements(configs.target, capacity), True),
        Line("Gated-DeltaNet states", FP32 * gdn_elements(configs.target), True),
        Line("convolution windows", size * conv_elements(configs.target), True),
        Line("drafter context", size * drafter_elements(configs.drafter, capacity.length), True),
        Line("kept from verify to commit", _pending_bytes(configs.target, width, size), False),
        Line("states of tree nodes", _node_state_bytes(configs.target, width, gdn_verify, commit), False),
        Line("logits", (2 * FP32 + size) * (capacity.width + configs.drafter.block_size) * vocab, False),
        Line("activations", 4 * size * width * _widest(configs.target), False),
    ]
    # Graphs of all shapes share one pool, which holds what the largest of them keeps.
    pool = sum(line.bytes for line in lines[-4:])
    return [*lines, Line("graph pool", pool, False), Line("CUDA and libraries", RUNTIME_BYTES, False)]


def attention_elements(config: Any, capacity: Capacity) -> int:
    """Elements of keys and values of all attention layers, scratch rows included."""
    rows = max(capacity.width, PREFILL_WIDTH) + capacity.length
    return 2 * _layers(config, "full_attention") * config.num_key_value_heads * rows * config.head_dim


def gdn_elements(config: Any) -> int:
    """Elements of the recurrent states of all Gated-DeltaNet layers."""
    layers = _layers(config, "linear_attention")
    return layers and layers * config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim


def conv_elements(config: Any) -> int:
    """Elements of the convolution windows of all Gated-DeltaNet layers."""
    layers = _layers(config, "linear_attention")
    return layers and layers * _channels(config) * CONV_HISTORY


def drafter_elements(config: DFlashConfig, length: int) -> int:
    """Elements of the drafter's keys and values, rotary rows and window masks."""
    rows, kinds = config.block_size + length, dict.fromkeys(config.layer_types)
    context = 2 * config.num_hidden_layers * config.num_key_value_heads * rows * config.head_dim
    masks = sum(config.block_size * length for kind in kinds if config.window(kind) is not None)
    return context + 2 * rows * config.head_dim + masks


def plan_table(plan: list[Line]) -> str:
    """One line per part in GB (10^9 bytes), estimates marked, the sum last."""
    rows = [(line.name + ("" if line.exact else " (estimate)"), line.bytes) for line in plan]
    rows.append(("sum", total_bytes(plan)))
    longest = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{longest}} {count / GIGABYTE:8.2f} GB\n" for name, count in rows)


def total_bytes(plan: list[Line]) -> int:
    """All lines together."""
    return sum(line.bytes for line in plan)


def require_memory(plan: list[Line], free: int, device: str) -> None:
    """Raises UserError, with the number of GB that are missing, where `free` bytes do not hold the plan."""
    needed = total_bytes(plan)
    if needed > free:
        raise UserError(
            f"device: found {free / GIGABYTE:.1f} GB free on {device}; {needed / GIGABYTE:.1f} GB are needed, "
            f"{(needed - free) / GIGABYTE:.1f} GB are missing"
        )


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of main memory that new processes can have; None where the system does not say."""
    if not meminfo.is_file():
        return None
    lines = meminfo.read_text(encoding="ascii").splitlines()
    kilobytes = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    return None if kilobytes is None else kilobytes * 1024


def _pending_bytes(config: Any, width: int, size: int) -> int:
    """What GDN layers keep of a tree: inputs, keys, values and pseudo-values."""
    layers = _layers(config, "linear_attention")
    if not layers:
        return 0
    values = config.linear_num_value_heads * config.linear_value_head_dim
    # The input projection holds z, b and a too; q, k and v are slices of one fp32 tensor, and are normalised beside it.
    projected = _channels(config) + values + 2 * config.linear_num_value_heads
    kept = size * projected + FP32 * (2 * _channels(config) + values)
    return layers * width * kept


def _node_state_bytes(config: Any, width: int, gdn_verify: str, commit: str) -> int:
    """A state per node where the method stores them: of all layers for a commit that reads them, else of one."""
    layers = _layers(config, "linear_attention")
    if not layers or gdn_verify not in STATE_STORING:
        return 0
    return width * FP32 * gdn_elements(config) // (1 if commit == "select" else layers)


def _channels(config: Any) -> int:
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    return 2 * keys + config.linear_num_value_heads * config.linear_value_head_dim


def _widest(config: Any) -> int:
    """Elements of the widest row between two layers: gate and up of the MLP."""
    return 2 * config.intermediate_size + config.hidden_size


def _context_projections(config: DFlashConfig) -> int:
    """Keys and values of all drafter layers once more, side by side (see DrafterRuntime)."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * config.hidden_size


def _layers(config: Any, kind: str) -> int:
    return list(config.layer_types).count(kind)


def _parameters(module: type[DFlashDrafter] | type[Weaver], config: Any) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in module(config).parameters())


def _count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
