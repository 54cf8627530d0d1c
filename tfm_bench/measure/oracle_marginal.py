"""What the best drafter could reach that does not know the tokens in between: acceptance under the target's own law.

At depth t the target's conditional p(. | prefix) depends on the t - 1 tokens in between; a factorised drafter proposes
one q for all of them and is accepted with E[sum_v min(q_v, p_v)] over the target's own prefixes. `p` [U, V] holds the
conditionals of U prefixes, `weights` [U] what each counts for, all together 1. Source: arXiv 2607.06763, section 3.5.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

BISECTIONS = 60  # halves [0, 1] down to fp64


def acceptance(proposal: Tensor, p: Tensor, weights: Tensor) -> float:
    """E over prefixes of sum_v min(q_v, p_v) = 1 - TV(q, p), with q [V] for all prefixes or [U, V], one for each."""
    return float(torch.minimum(proposal, p).sum(-1, dtype=torch.float64) @ weights)


def point_mass(proposal: Tensor) -> Tensor:
    """All mass on the likeliest token of each row: its acceptance is the target's probability of that token."""
    return one_hot(proposal.argmax(-1), proposal.shape[-1]).to(proposal.dtype)


def factorised_proposals(p: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """By name, each [V]: the marginal over prefixes, a point mass at its argmax, and the best proposal that there is.

    `ceiling`, the marginal, is accepted with 1 - E[TV(marginal, p)], the structural ceiling of the paper. It is no
    upper bound: where prefixes disagree, a point mass can be accepted more often. `best_factorised` is one.
    """
    marginal = (weights @ p.double()).to(p.dtype)
    return {"ceiling": marginal, "ceiling_argmax": point_mass(marginal), "best_factorised": best_factorised(p, weights)}


def best_factorised(p: Tensor, weights: Tensor) -> Tensor:
    """The distribution q [V] with the highest acceptance.

    Acceptance is a sum over tokens of concave functions of q_v, whose slope at q_v is the weight of the prefixes with
    p_v > q_v. So at the optimum all slopes meet at one level: q_v is the quantile of p_v that this level leaves above,
    and the level is where these quantiles sum to 1.
    """
    values, order = p.double().T.sort(-1, descending=True)
    above = weights[order].cumsum(-1)
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        level = (low + high) / 2
        low, high = (level, high) if _quantiles(values, above, level).sum() > 1 else (low, level)
    more, less = (_quantiles(values, above, level) for level in (low, high))
    # Between the two every step has the same slope: any share of it is as good.
    gap = more.sum() - less.sum()
    share = (1 - less.sum()) / gap if gap > 0 else 0.0
    return (less + share * (more - less)).to(p.dtype)


def _quantiles(values: Tensor, above: Tensor, level: float) -> Tensor:
    """Per token [V] the largest value that prefixes of this weight at least reach; values, above [V, U], descending."""
    wanted = torch.full_like(values[:, :1], level)
    first = torch.searchsorted(above, wanted).clamp_max(values.shape[1] - 1)
    return values.gather(-1, first)[:, 0]
