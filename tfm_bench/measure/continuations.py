"""Continuations of a text, drawn from the target in batches: which prefixes came up, how often, and what follows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfm_bench.models.target import Target


@dataclass(frozen=True)
class Prefixes:
    """The distinct prefixes of one depth t among the samples that have not stopped before it.

    paths [U, t - 1] tokens behind the text; p [U, V] the target's conditional of the token of depth t; rows [S] the
    prefix of each sample.
    """

    paths: Tensor
    p: Tensor
    rows: Tensor

    def weights(self, samples: slice = slice(None)) -> Tensor:
        """[U] fp64, the share of each prefix among these samples."""
        rows = self.rows[samples]
        return torch.bincount(rows, minlength=self.p.shape[0]).double() / rows.shape[0]


@torch.inference_mode()
def sampled_prefixes(
    target: Target,
    text: list[int],
    *,
    samples: int,
    depths: int,
    temperature: float,
    stop_ids: Collection[int],
    generator: torch.Generator,
) -> Iterator[Prefixes]:
    """Prefixes of depth 1, 2, ... `depths` behind `text`; fewer where every sample stops.

    Prefixes that several samples share are computed once. By the library's model, which takes batches: the engine
    decodes one sequence.
    """
    model: Any = target.model
    output = model(torch.tensor([text], device=target.device), use_cache=True, logits_to_keep=1)
    paths = torch.empty(1, 0, dtype=torch.int64)
    rows = torch.zeros(samples, dtype=torch.int64)
    stops = torch.tensor(sorted(stop_ids), dtype=torch.int64)
    for depth in range(1, depths + 1):
        p = (output.logits[:, -1].float() / temperature).softmax(-1).cpu()
        yield Prefixes(paths, p, rows)
        drawn = torch.multinomial(p[rows], 1, generator=generator)[:, 0]
        going = ~torch.isin(drawn, stops)
        if depth == depths or not going.any():
            return
        steps, rows = torch.unique(torch.stack([rows, drawn])[:, going], dim=1, return_inverse=True)
        paths = torch.cat([paths[steps[0]], steps[1, :, None]], dim=1)
        output.past_key_values.reorder_cache(steps[0].to(target.device))
        output = model(steps[1, :, None].to(target.device), cache=output.past_key_values, use_cache=True)
