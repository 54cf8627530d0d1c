"""The tree under construction on the device, and the choice of its next nodes from the frontier, in Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation

PLANT_BLOCK = 256
PUBLISHED_TREES = ((64, 4), (64, 8), (128, 4), (128, 8))  # budget, width
PUBLISHED_DEPTHS, PUBLISHED_CHILDREN = 15, 8
I32, I64, FP32, FP64 = torch.int32, torch.int64, torch.float32, torch.float64


class TreeState(NamedTuple):
    """Buffers of one tree: N = budget + 1 slots, E frontier entries, W nodes per batch. All contiguous.

    By slot: tokens, parents [N] int64, edges [N] fp32 (the tree, padded under the anchor); depths [N] int32, scores [N]
    fp64 (sums of edges), paths [N, D] int32 (slot of the ancestor at each depth, the node's own at its depth).
    batch [W] int32: slots of the nodes to expand next, -1 for none. size [1] int32: number of nodes.
    entry_scores [E] fp64, entry_tokens [E] int64, entry_edges [E] fp32: the frontier; child r of slot s is entry
    s * children + r, and a score of -inf is no entry.
    """

    tokens: Tensor
    parents: Tensor
    edges: Tensor
    depths: Tensor
    scores: Tensor
    paths: Tensor
    batch: Tensor
    size: Tensor
    entry_scores: Tensor
    entry_tokens: Tensor
    entry_edges: Tensor

    @classmethod
    def allocate(cls, *, budget: int, width: int, max_depth: int, children: int, device: torch.device) -> TreeState:
        """Buffers without content: `plant` comes first. max_depth is D, the largest depth of a node."""
        nodes, entries = budget + 1, _entries(budget, width, children)
        shapes = (
            *((I64, nodes), (I64, nodes), (FP32, nodes), (I32, nodes), (FP64, nodes), (I32, nodes, max_depth)),
            *((I32, width), (I32, 1), (FP64, entries), (I64, entries), (FP32, entries)),
        )
        return cls(*(torch.empty(shape, dtype=dtype, device=device) for dtype, *shape in shapes))


def plant(state: TreeState, anchor: Tensor) -> None:
    """Reset to a tree of the anchor [1] int64 alone, which is also the next batch; the frontier is empty."""
    nodes, width, entries = state.tokens.shape[0], state.batch.shape[0], state.entry_scores.shape[0]
    grid = (triton.cdiv(max(nodes, width, entries), PLANT_BLOCK),)
    sizes = {"NODES": nodes, "WIDTH": width, "ENTRIES": entries, "BLOCK": PLANT_BLOCK}
    _plant_kernel[grid](anchor, *state[:-2], **sizes, num_warps=4)


def select_frontier(state: TreeState, *, children: int, last: bool) -> None:
    """Move the best entries of the frontier to the next slots; equal scores go by lower entry.

    These are W entries, in the last call as many as slots are left; fewer where the frontier runs dry. The placed
    nodes of depth below D become the next batch.
    """
    blocks = _blocks(state.batch.shape[0], state.entry_scores.shape[0], state.paths.shape[1])
    _select_frontier_kernel[(1,)](
        *state, NODES=state.tokens.shape[0], CHILDREN=children, LAST=last, **blocks, num_warps=4
    )


def _entries(budget: int, width: int, children: int) -> int:
    """Entries of all slots that can have children: all but those of the last batch."""
    return (1 + max(0, triton.cdiv(budget, width) - 1) * width) * children


def _blocks(width: int, entries: int, max_depth: int) -> dict[str, object]:
    sizes = {"WIDTH": width, "ENTRIES": entries, "DEPTH": max_depth}
    blocks = {f"BLOCK_{name}": triton.next_power_of_2(size) for name, size in sizes.items()}
    return {"WIDTH": width, "ENTRIES": entries, "MAX_DEPTH": max_depth, **blocks}


@triton.jit
def _plant_kernel(
    anchor: tl.tensor,
    tokens: tl.tensor,
    parents: tl.tensor,
    edges: tl.tensor,
    depths: tl.tensor,
    scores: tl.tensor,
    paths: tl.tensor,
    batch: tl.tensor,
    size: tl.tensor,
    entry_scores: tl.tensor,
    NODES: tl.constexpr,
    WIDTH: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    root = item == 0
    tl.store(tokens + item, tl.where(root, tl.load(anchor), 0), item < NODES)
    tl.store(parents + item, tl.where(root, -1, 0), item < NODES)
    tl.store(edges + item, tl.where(root, 0.0, float("-inf")), item < NODES)
    tl.store(depths + item, 0, root)
    tl.store(scores + item, 0.0, root)
    tl.store(paths + item, 0, root)
    tl.store(batch + item, tl.where(root, 0, -1), item < WIDTH)
    tl.store(size + item, 1, root)
    tl.store(entry_scores + item, float("-inf"), item < ENTRIES)


@triton.jit
def _select_frontier_kernel(
    tokens: tl.tensor,
    parents: tl.tensor,
    edges: tl.tensor,
    depths: tl.tensor,
    scores: tl.tensor,
    paths: tl.tensor,
    batch: tl.tensor,
    size: tl.tensor,
    entry_scores: tl.tensor,
    entry_tokens: tl.tensor,
    entry_edges: tl.tensor,
    NODES: tl.constexpr,
    CHILDREN: tl.constexpr,
    LAST: tl.constexpr,
    WIDTH: tl.constexpr,
    ENTRIES: tl.constexpr,
    MAX_DEPTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_ENTRIES: tl.constexpr,
    BLOCK_DEPTH: tl.constexpr,
) -> None:
    entry, lane, level = tl.arange(0, BLOCK_ENTRIES), tl.arange(0, BLOCK_WIDTH), tl.arange(0, BLOCK_DEPTH)
    frontier = tl.load(entry_scores + entry, entry < ENTRIES, float("-inf"))
    chosen = tl.full([BLOCK_WIDTH], -1, tl.int32)
    first = tl.load(size)
    # After a frontier that ran dry the last batch may hold more than WIDTH nodes: what is left to fill.
    wanted = NODES - first if LAST else WIDTH
    placed = tl.minimum(wanted, tl.sum((frontier > float("-inf")).to(tl.int32), 0))
    for i in range(placed):
        score, best = tl.max(frontier, 0, return_indices=True)
        frontier = tl.where(entry == best, float("-inf"), frontier)
        slot, parent = first + i, best // CHILDREN
        tl.store(tokens + slot, tl.load(entry_tokens + best))
        tl.store(parents + slot, parent)
        tl.store(edges + slot, tl.load(entry_edges + best))
        if not LAST:
            # Parents were placed by earlier launches: nothing is read here that this one writes.
            depth = tl.load(depths + parent) + 1
            tl.store(depths + slot, depth)
            tl.store(scores + slot, score)
            path = tl.load(paths + parent * MAX_DEPTH + level, level < depth, 0)
            tl.store(paths + slot * MAX_DEPTH + level, tl.where(level == depth, slot, path), level < MAX_DEPTH)
            chosen = tl.where((lane == i) & (depth < MAX_DEPTH), slot, chosen)
    if not LAST:
        tl.store(entry_scores + entry, frontier, entry < ENTRIES)
        tl.store(batch + lane, chosen, lane < WIDTH)
    tl.store(size, first + placed)


def specialisations() -> list[Specialisation]:
    """Planting and selection for the published budgets and widths."""
    return [spec for budget, width in PUBLISHED_TREES for spec in _tree_specialisations(budget, width)]


def _tree_specialisations(budget: int, width: int) -> Iterator[Specialisation]:
    integers = dict.fromkeys(("depths", "paths", "batch", "size"), "*i32:16")
    integers |= dict.fromkeys(("anchor", "tokens", "parents", "entry_tokens"), "*i64:16")
    types = {**integers, **dict.fromkeys(("scores", "entry_scores"), "*fp64:16")}
    types |= dict.fromkeys(("edges", "entry_edges"), "*fp32:16")
    entries = _entries(budget, width, PUBLISHED_CHILDREN)
    planted: dict[str, object] = {"NODES": budget + 1, "WIDTH": width, "ENTRIES": entries, "BLOCK": PLANT_BLOCK}
    signature = {name: types[name] for name in ("anchor", *TreeState._fields[:-2])}
    yield Specialisation(f"weaver_plant_b{budget}_w{width}", _plant_kernel, signature, planted)
    signature = {name: types[name] for name in TreeState._fields}
    selected = {"NODES": budget + 1, "CHILDREN": PUBLISHED_CHILDREN, **_blocks(width, entries, PUBLISHED_DEPTHS)}
    for last in (False, True):
        name = f"weaver_select_frontier_b{budget}_w{width}{'_last' if last else ''}"
        yield Specialisation(name, _select_frontier_kernel, signature, {**selected, "LAST": last})
