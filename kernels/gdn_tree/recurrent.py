"""Gated delta rule over a token tree by recurrence: the three things that "per-branch" verification can mean.

All three share one step of three operations on states [M, K, V] per node, M = B * HV: decay the parent's state, read it
with key and query in one product, add k u^T. The read-out follows from u: S_i^T q = (e^g S_p)^T q + (k.q) u.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.gdn_tree.fused import GdnTreeOutputs
from kernels.gdn_tree.structure import TreeStructure

# States that advance together take no more than this: then they stay in a core's cache between operations.
PACK_BYTES = 4 * 2**20


class StepInputs(NamedTuple):
    """What one step per node needs, node first, M = B * HV.

    decays [N, M, 1, 1] = e^g; reads [N, M, 2, K] = (-beta k, scale q); carry [N, M, 2, V] = (beta v, 0), which the step
    turns into (u, read-out of the decayed state); keys [N, M, K, 1]; updates [N, M, 1, V], the view of u in carry.
    """

    decays: Tensor
    reads: Tensor
    carry: Tensor
    keys: Tensor
    updates: Tensor


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
    """Node after node, each from its parent's stored state, as serving engines do: N sequential steps, N states.

    Arguments as in fused_tree_gated_delta_rule; the returned states are [B, N, HV, K, V].
    """
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    steps = _step_inputs(scale, q, k, v, g, beta)
    root = initial_state.flatten(0, 1)
    states = root.new_empty(k.shape[1], *root.shape)
    nodes = states.unbind(0)
    per_node = zip(*(x.unbind(0) for x in steps), strict=True)
    for parent, state, step in zip(structure.parent_list, nodes, per_node, strict=True):
        decay, reads, carry, key, update = step
        torch.mul(nodes[parent] if parent >= 0 else root, decay, out=state)
        carry.baddbmm_(reads, state)
        state.addcmul_(key, update)
    return _collect(steps.carry, q, k, scale, states)


def level_recurrent(
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
    """All nodes of one depth at once, as far as their states fit into PACK_BYTES: depth + 1 steps or more, N states.

    Arguments as in fused_tree_gated_delta_rule; the returned states are [B, N, HV, K, V].
    """
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    root = initial_state.flatten(0, 1)
    plan = level_plan(structure, _states_per_pack(root))
    inputs: tuple[Tensor, ...] = (q, k, v, g, beta)
    if plan.place is not None:
        inputs = tuple(x.index_select(1, plan.order) for x in inputs)
    steps = _step_inputs(scale, *inputs)
    states = root.new_empty(k.shape[1], *root.shape)
    packs = states.split(plan.counts)
    done = 0
    for current, parents, step in zip(packs, plan.parents, _in_groups(steps, plan.counts), strict=True):
        if isinstance(parents, int):
            torch.mul(states[parents] if done else root, step.decays, out=current)
        else:
            torch.index_select(states[:done], 0, parents, out=current).mul_(step.decays)
        _read_and_update(current, step)
        done += len(current)
    if plan.place is None:
        return _collect(steps.carry, q, k, scale, states)
    return _collect(steps.carry.index_select(0, plan.place), q, k, scale, states.index_select(0, plan.place))


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
    """Each root-to-leaf path on its own: work on shared prefixes is repeated, no state is stored.

    Arguments as in fused_tree_gated_delta_rule. Paths run side by side as far as their states fit into PACK_BYTES.
    """
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    root = initial_state.flatten(0, 1)
    carry = root.new_empty(k.shape[1], len(root), 2, v.shape[-1])
    for pack in path_plan(structure, _states_per_pack(root)):
        steps = _step_inputs(scale, *(x.index_select(1, pack.nodes) for x in (q, k, v, g, beta)))
        states = root.new_empty(pack.counts[0], *root.shape)
        for depth, step in enumerate(_in_groups(steps, pack.counts)):
            active = states[: len(step.decays)]
            torch.mul(active if depth else root, step.decays, out=active)
            _read_and_update(active, step)
        carry.index_copy_(0, pack.nodes, steps.carry)
    return _collect(carry, q, k, scale, None)


class LevelPlan(NamedTuple):
    """`order` [N] lists the nodes level by level, `place` [N] is its inverse (None where nodes stand so already).

    counts: nodes per step; parents: per step, the places of the nodes' parents, or the one place where all share it.
    """

    order: Tensor
    place: Tensor | None
    counts: list[int]
    parents: list[Tensor | int]


@lru_cache(maxsize=8)
def level_plan(structure: TreeStructure, nodes_per_step: int) -> LevelPlan:
    """Levels, shallowest first, in steps of at most `nodes_per_step`; shared by all layers of a round."""
    order = torch.cat(structure.levels)
    place = torch.argsort(order)
    steps = [step for level in structure.levels for step in level.split(nodes_per_step)]
    above = [place[structure.parents[step]] for step in steps]
    parents = [int(places[0]) if bool((places == places[0]).all()) else places for places in above]
    in_order = torch.equal(structure.depths, structure.depths[order])
    return LevelPlan(order, None if in_order else place, [len(step) for step in steps], parents)


class Pack(NamedTuple):
    """Root-to-leaf paths, longest first, step by step: counts[t] of them reach depth t, on these nodes in turn."""

    nodes: Tensor
    counts: list[int]


@lru_cache(maxsize=8)
def path_plan(structure: TreeStructure, paths_per_pack: int) -> list[Pack]:
    """All root-to-leaf paths, in packs of at most `paths_per_pack`; shared by all layers of a round."""
    paths = sorted((structure.path_to(leaf) for leaf in structure.leaves), key=len, reverse=True)
    packs = []
    for start in range(0, len(paths), paths_per_pack):
        chosen = paths[start : start + paths_per_pack]
        steps = [[path[depth] for path in chosen if len(path) > depth] for depth in range(len(chosen[0]))]
        nodes = torch.tensor([node for step in steps for node in step], device=structure.parents.device)
        packs.append(Pack(nodes, [len(step) for step in steps]))
    return packs


def _states_per_pack(state: Tensor) -> int:
    return max(1, PACK_BYTES // (state.numel() * state.element_size()))


def _step_inputs(scale: float, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> StepInputs:
    group = v.shape[2] // k.shape[2]
    q, k, v, g, beta = (
        x.transpose(0, 1).flatten(1, 2)
        for x in (q.repeat_interleave(group, 2), k.repeat_interleave(group, 2), v, g, beta)
    )
    strength = beta.unsqueeze(-1)
    carry = torch.stack([v * strength, torch.zeros_like(v)], 2)
    return StepInputs(
        decays=g.exp()[..., None, None],
        reads=torch.stack([k * -strength, q * scale], 2),
        carry=carry,
        keys=k.unsqueeze(-1),
        updates=carry[:, :, :1],
    )


def _in_groups(steps: StepInputs, counts: list[int]) -> Iterator[StepInputs]:
    """Views of consecutive groups of `counts` nodes."""
    return (StepInputs(*group) for group in zip(*(x.split(counts) for x in steps), strict=True))


def _read_and_update(states: Tensor, step: StepInputs) -> None:
    """states [n, M, K, V], decayed already: step.carry becomes (u, read-out), then states take k u^T."""
    step.carry.flatten(0, 1).baddbmm_(step.reads.flatten(0, 1), states.flatten(0, 1))
    states.addcmul_(step.keys, step.updates)


def _collect(carry: Tensor, q: Tensor, k: Tensor, scale: float, states: Tensor | None) -> GdnTreeOutputs:
    """carry [N, M, 2, V] after all steps: adds (k.q) u to the read-out and brings the batch back to the front."""
    batch, nodes, heads, _ = k.shape
    u, reads = carry.view(nodes, batch, -1, 2, carry.shape[-1]).transpose(0, 1).unbind(3)
    agreement = (torch.linalg.vecdot(k, q) * scale).repeat_interleave(u.shape[2] // heads, 2)
    outputs = torch.addcmul(reads, agreement.unsqueeze(-1), u)
    if states is not None:
        states = states.view(nodes, batch, -1, *states.shape[2:]).transpose(0, 1)
    return GdnTreeOutputs(outputs, u, states)
