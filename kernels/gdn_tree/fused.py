"""Gated delta rule over a token tree as one masked triangular solve per head: no state per node is ever formed."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.gdn_tree.structure import TreeStructure


class GdnTreeOutputs(NamedTuple):
    """What verification leaves behind: outputs and pseudo-values u, both [B, N, HV, V].

    states [B, N, HV, K, V] exist only where the method stores them for its commit.
    """

    outputs: Tensor
    pseudo_values: Tensor
    states: Tensor | None


class SolvePlan(NamedTuple):
    """A tree as the solve needs it, in one dtype.

    The columns of `paths` [N, N + P + 1] are 0/1 indicators of nodes whose log decays add up: first the N paths from
    above the anchor to a node, then for each of the P pairs (node, ancestor or self) the path between the two, last
    an empty one. `floor` [N + P + 1] is 0, and -inf for the last. `slots` [N * N] names the column of each pair (i, j),
    the last one where j is no ancestor of i.
    """

    paths: Tensor
    floor: Tensor
    slots: Tensor


@lru_cache(maxsize=8)
def solve_plan(structure: TreeStructure, dtype: torch.dtype) -> SolvePlan:
    """Derived once per tree: all layers of a round share it through the cache."""
    ancestors = structure.ancestors.cpu().numpy()
    nodes = ancestors.shape[0]
    lower, upper = np.nonzero(ancestors)
    empty = np.zeros((1, nodes), dtype=bool)
    paths = np.concatenate([ancestors, ancestors[lower] & ~ancestors[upper], empty])
    floor = np.zeros(len(paths))
    floor[-1] = -np.inf
    slots = np.full((nodes, nodes), len(paths) - 1)
    slots[lower, upper] = nodes + np.arange(len(lower))
    device = structure.ancestors.device
    return SolvePlan(
        paths=torch.from_numpy(paths.T.copy()).to(device, dtype),
        floor=torch.from_numpy(floor).to(device, dtype),
        slots=torch.from_numpy(slots.ravel()).to(device),
    )


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
    """All nodes at once: (I + A) U = beta (V - e^G K S_0), then outputs = scale (e^G Q S_0 + (E * QK^T) U).

    q, k [B, N, H, K], l2-normalised; v [B, N, HV, V]; g (log decay, <= 0) and beta [B, N, HV]; initial_state
    [B, HV, K, V], contiguous, read only; all of one dtype. E_ij = e^{G_i - G_j} where j is i or an ancestor of i,
    else 0; A = beta E * KK^T below the diagonal. Source: arXiv 2607.06763, section 3.4; derivation in README.md.
    """
    batch, nodes, heads, key_dim = k.shape
    value_heads, value_dim = v.shape[2:]
    rows = batch * value_heads
    scale = key_dim**-0.5 if scale is None else scale
    kq = _stack_per_value_head(k, q, value_heads // heads)
    reads = torch.bmm(kq.view(rows, 2 * nodes, key_dim), initial_state.flatten(0, 1)).view(rows, 2, nodes, value_dim)
    values, decays, strengths = (x.transpose(1, 2).reshape(rows, nodes, -1) for x in (v, g, beta))
    if nodes == 1:
        keys, queries = kq.view(rows, 2, key_dim, 1).unbind(1)
        readout = torch.bmm(queries.mT, keys)
        reads *= decays.exp().unsqueeze(1)
        key_reads, query_reads = reads.unbind(1)
        u = (values - key_reads).mul_(strengths)
    else:
        plan = solve_plan(structure, k.dtype)
        path_decays = torch.addmm(plan.floor, decays.squeeze(2), plan.paths).exp_()
        update, readout = _decayed_gram(kq, path_decays.index_select(1, plan.slots))
        reads *= path_decays[:, :nodes].view(rows, 1, nodes, 1)
        key_reads, query_reads = reads.unbind(1)
        u = values.new_empty(rows, nodes, value_dim)
        torch.sub(values, key_reads, out=u).mul_(strengths)
        torch.linalg.solve_triangular(update * strengths, u, upper=False, unitriangular=True, out=u)
    outputs = torch.baddbmm(query_reads, readout, u, beta=scale, alpha=scale)
    outputs, u = (x.view(batch, value_heads, nodes, value_dim).transpose(1, 2) for x in (outputs, u))
    return GdnTreeOutputs(outputs, u, None)


def _stack_per_value_head(k: Tensor, q: Tensor, group: int) -> Tensor:
    """[B, H, group, 2N, K], keys before queries: one copy, which both the Gram and the state reads use in place."""
    return torch.cat([x.transpose(1, 2).unsqueeze(2).expand(-1, -1, group, -1, -1) for x in (k, q)], 3)


def _decayed_gram(kq: Tensor, pair_decays: Tensor) -> tuple[Tensor, Tensor]:
    """E * KK^T and E * QK^T, both [B * HV, N, N]; the Gram is formed once per key head and shared by its group."""
    per_key_head = kq.select(2, 0).flatten(0, 1)
    group, nodes = kq.shape[2], kq.shape[3] // 2
    gram = torch.bmm(per_key_head, per_key_head[:, :nodes].mT).view(-1, 1, 2, nodes, nodes)
    weights = gram * pair_decays.view(-1, group, 1, nodes, nodes)
    update, readout = weights.view(-1, 2, nodes, nodes).unbind(1)
    return update, readout
