"""What a device can do, measured, and what a kernel has to do, counted: the time below which no kernel can be.

Counts are those of the algorithm, whatever the code does. B sequences, N nodes, H key heads, HV value heads, K and V
the head widths, P pairs (node, itself or an ancestor), A committed nodes. A FLOP is one multiplication or addition;
a dot product of length K has 2 K; exponentials are free. Bytes are those that have to cross memory once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.gdn_tree import TreeStructure
from tfm_bench.config import STATE_STORING
from tfm_bench.measure.clocks import Cache, Clock
from tfm_bench.measure.kernel_problems import LayerShapes
from tfm_bench.measure.kernel_records import Commit, Phase

GEMM_SIZE = {"cpu": 2048, "cuda": 8192}
STREAM_BYTES = 2**28
CACHED_BYTES = tuple(2**power for power in range(18, 25))
PROBE_RUNS = 15
FLOAT_BYTES = 4
STEP_PER_NODE = ("node_recurrent", "node_recurrent_scratch", "level_recurrent")


class Limits(NamedTuple):
    """The best that the device showed: bytes per second from memory and from caches, FLOP per second of a GEMM."""

    bytes_per_second: float
    cached_bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True)
class Work:
    """What has to cross memory, and what has to be computed."""

    bytes: int
    flops: int

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)

    def milliseconds(self, limits: Limits, cache: Cache) -> float:
        """max(bytes / bandwidth, FLOPs / rate); the bandwidth is that of caches where everything stays in them."""
        bandwidth = limits.bytes_per_second if cache == "cold" else limits.cached_bytes_per_second
        return 1e3 * max(self.bytes / bandwidth, self.flops / limits.flops_per_second)


class TreeCounts(NamedTuple):
    """Of a tree: nodes N, pairs P, nodes on all paths to a leaf (shared ones counted per path), depth, leaves."""

    nodes: int
    pairs: int
    path_nodes: int
    depth: int
    leaves: int


class Sizes(NamedTuple):
    """All that work depends on: `length` nodes are committed; value_bytes is the size of an element of q, k and v."""

    shapes: LayerShapes
    tree: TreeCounts
    length: int
    batch: int
    value_bytes: int


def measure_limits(clock: Clock, device: torch.device, dtype: torch.dtype) -> Limits:
    """The fastest of PROBE_RUNS each: copying, summing or scaling in place a buffer beyond all caches; a copy
    of a buffer of any size within them, and a GEMM of two matrices of `dtype`.
    """
    stream = torch.ones(2, STREAM_BYTES // FLOAT_BYTES, device=device)
    streamed = stream[0]
    bandwidth = max(
        _copy_rate(clock, stream, "cold"),
        STREAM_BYTES / _fastest(clock, lambda: streamed.sum(), "cold"),
        # In place, as commits are: unlike in a copy no line is fetched only to be overwritten.
        2 * STREAM_BYTES / _fastest(clock, lambda: streamed.mul_(1.0), "cold"),
    )
    cached = max(_copy_rate(clock, stream[:, : size // FLOAT_BYTES], "warm") for size in CACHED_BYTES)
    size = GEMM_SIZE[device.type]
    left, right, product = (torch.rand(size, size, device=device).to(dtype) for _ in range(3))
    gemm_seconds = _fastest(clock, lambda: torch.mm(left, right, out=product), "cold")
    return Limits(bandwidth, max(cached, bandwidth), 2 * size**3 / gemm_seconds)


def best_of(*measured: Limits) -> Limits:
    """The highest of every rate: a limit that was measured beside other work is none."""
    return Limits(*map(max, zip(*measured, strict=True)))


def _copy_rate(clock: Clock, buffers: Tensor, cache: Cache) -> float:
    target, source = buffers
    return 2 * source.numel() * FLOAT_BYTES / _fastest(clock, lambda: target.copy_(source), cache)


def _fastest(clock: Clock, work: Callable[[], Tensor], cache: Cache) -> float:
    """Seconds. cache: as kernels are timed, where the clock can bring it about; else launches would be in it."""
    prepared = clock.prepare(work)
    return min(clock.time(prepared, cache=cache if clock.caches else None)[0] for _ in range(PROBE_RUNS)) / 1e3


def tree_counts(structure: TreeStructure) -> TreeCounts:
    """Counts of one tree."""
    depths = structure.depths
    return TreeCounts(
        nodes=len(depths),
        pairs=int(structure.ancestors.sum()),
        path_nodes=sum(int(depths[leaf]) + 1 for leaf in structure.leaves),
        depth=int(depths.max()),
        leaves=len(structure.leaves),
    )


def phase_work(arm: str, phase: Phase, commit: Commit | None, sizes: Sizes) -> Work | None:
    """Work of a phase; None for an arm that is not counted here.

    Verification and its commit in one call: the committed state that both read has to cross memory only once.
    """
    verify = verify_work(arm, sizes)
    if commit is None or verify is None:
        return verify
    committing = commit_work(commit, sizes)
    if phase != "total":
        return committing
    shared = 0 if commit == "select" else sizes.batch * sizes.shapes.state_bytes
    return verify + committing + Work(-shared, 0)


def verify_work(arm: str, sizes: Sizes) -> Work | None:
    """Work of one verification; None for an arm that is not counted here.

    Every arm reads the committed state, q, k, v, g and beta once and writes outputs and u. node_recurrent and
    level_recurrent write N states besides; a parent's state may still stand in a cache when its child reads it, so
    these reads are not counted.
    """
    shapes, tree = sizes.shapes, sizes.tree
    steps = {"path_recurrent": tree.path_nodes, **dict.fromkeys(STEP_PER_NODE, tree.nodes)}
    if arm != "fused" and arm not in steps:
        return None
    stored = tree.nodes if arm in STATE_STORING else steps.get(arm, 0) - tree.leaves
    flops = _fused_flops(shapes, tree) if arm == "fused" else _recurrent_flops(shapes, steps[arm], stored)
    states = 1 + (tree.nodes if arm in STATE_STORING else 0)
    values = 2 * shapes.heads * shapes.key_dim + 2 * shapes.value_heads * shapes.value_dim
    floats = shapes.value_heads * (shapes.value_dim + 2)
    per_node = values * sizes.value_bytes + floats * FLOAT_BYTES
    return Work(sizes.batch * (states * shapes.state_bytes + tree.nodes * per_node), sizes.batch * flops)


def commit_work(commit: Commit, sizes: Sizes) -> Work:
    """Work of a commit: the state is read and written once, beside the rows of the path.

    replay runs the recurrence without its read-out on k, v, g, beta; fold adds one product of k and u to the decayed
    state; select reads a stored state in place of the committed one and computes nothing.
    """
    K, V, HV = sizes.shapes.key_dim, sizes.shapes.value_dim, sizes.shapes.value_heads
    keys = sizes.shapes.heads * K * sizes.value_bytes
    rows, flops = {
        "replay": (keys + HV * (V * sizes.value_bytes + 2 * FLOAT_BYTES), sizes.length * HV * (5 * K * V + 2 * V)),
        "fold": (keys + HV * (V + 1) * FLOAT_BYTES, HV * (K * V + sizes.length * (2 * K * V + V + 1))),
        "select": (0, 0),
    }[commit]
    return Work(sizes.batch * (2 * sizes.shapes.state_bytes + sizes.length * rows), sizes.batch * flops)


def kept_bytes(commit: Commit, sizes: Sizes) -> int:
    """Bytes that a layer has to keep from verification to its commit, its committed state not counted.

    select: one state per node; replay: k, v, g and beta of all nodes; fold: k, u and g.
    """
    K, V, HV = sizes.shapes.key_dim, sizes.shapes.value_dim, sizes.shapes.value_heads
    per_node = {
        "select": sizes.shapes.state_bytes,
        "replay": (sizes.shapes.heads * K + HV * V) * sizes.value_bytes + 2 * HV * FLOAT_BYTES,
        "fold": sizes.shapes.heads * K * sizes.value_bytes + HV * (V + 1) * FLOAT_BYTES,
    }[commit]
    return sizes.batch * sizes.tree.nodes * per_node


def _recurrent_flops(shapes: LayerShapes, steps: int, stored: int) -> int:
    """Per step and state element 4: read with key and query 2 each; 3 more where the state is formed: decay 1, add
    k u^T 2. A leaf's state has no reader unless it is stored. 2 V for u, K to scale q.
    """
    K, V = shapes.key_dim, shapes.value_dim
    return shapes.value_heads * (3 * stored * K * V + steps * (4 * K * V + 2 * V)) + steps * shapes.heads * K


def _fused_flops(shapes: LayerShapes, tree: TreeCounts) -> int:
    """Per key head: scale q, q·k on pairs, k·k on strict pairs (of two nodes). Per value head and node: k and q read
    the state (4 K V), both reads are decayed, one subtracted from v, times beta (4 V). Path sums: 1 a strict pair, 1 a
    node below the anchor. Weights: 3 a strict pair. Forward substitution: 2 V a strict pair; read-out: 2 V a pair.
    Paths longer than half a key are better cut, and the pairs then depend on where: there only the state reads count.
    """
    K, V, N, P = shapes.key_dim, shapes.value_dim, tree.nodes, tree.pairs
    if tree.depth >= max(K // 2, 1):
        return shapes.value_heads * N * 4 * K * V
    strict = P - N
    per_key_head = N * K + 2 * K * (P + strict)
    per_value_head = N * (4 * K * V + 4 * V) + (N - 1) + 4 * strict + 2 * V * (P + strict)
    return shapes.heads * per_key_head + shapes.value_heads * per_value_head
