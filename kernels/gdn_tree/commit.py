"""Committing the accepted path to the recurrent state, in place: three ways to reach the state of its last node.

`path` [A] int64 lists the accepted nodes, anchor first. Rows off the path are never read. The leading dimension B may
carry all layers of a model at once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def replay(*, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, path: Tensor, state: Tensor) -> None:
    """Runs the recurrence once more along the path: exact, the same arithmetic whatever tree the path came from.

    k [B, N, H, K], l2-normalised; v [B, N, HV, V]; g, beta [B, N, HV]; state [B, HV, K, V], contiguous.
    """
    keys, values, decays, strengths = (x.index_select(1, path).transpose(0, 1) for x in (k, v, g, beta))
    keys = keys.repeat_interleave(v.shape[2] // k.shape[2], 2).flatten(1, 2)
    strengths = strengths.flatten(1, 2).unsqueeze(-1)
    updates = (values.flatten(1, 2) * strengths).unsqueeze(2)
    reads = (keys * strengths).unsqueeze(2)
    decays = decays.flatten(1, 2).exp()[..., None, None]
    matrices = state.view(-1, *state.shape[2:])
    for decay, read, update, key in zip(decays, reads, updates, keys.unsqueeze(-1), strict=True):
        matrices.mul_(decay)
        matrices.addcmul_(key, torch.baddbmm(update, read, matrices, alpha=-1))


def fold(*, k: Tensor, pseudo_values: Tensor, g: Tensor, path: Tensor, state: Tensor) -> None:
    """S <- e^{G} S + sum over the path of e^{G - G_j} k_j u_j^T, with the pseudo-values u that verification left.

    k [B, N, H, K]; pseudo_values [B, N, HV, V]; g [B, N, HV]; state [B, HV, K, V], contiguous. Source: README.md.
    """
    upwards = path.flip(0)
    keys, u, decays = (x.index_select(1, upwards) for x in (k, pseudo_values, g))
    # Leaf first, so that the running sum is that of the nodes below j: no difference of large sums is taken.
    below = pad(decays, (0, 0, 1, 0)).cumsum(1).exp().unsqueeze(-1)
    keys = keys.repeat_interleave(u.shape[2] // keys.shape[2], 2)
    weighted = u * below[:, :-1]
    matrices = state.view(-1, *state.shape[2:])
    matrices.mul_(below[:, -1].reshape(-1, 1, 1))
    matrices.baddbmm_(keys.permute(0, 2, 3, 1).flatten(0, 1), weighted.transpose(1, 2).flatten(0, 1))


def select(*, states: Tensor, path: Tensor, state: Tensor) -> None:
    """Copies the stored state of the last node: the commit of methods that keep one state per node.

    states [B, N, HV, K, V]; state [B, HV, K, V].
    """
    torch.index_select(states, 1, path[-1:], out=state.unsqueeze(1))
