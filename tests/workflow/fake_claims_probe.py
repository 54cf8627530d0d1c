"""Stands in for tfm_bench.measure.probes.claims: what the paper says of a round held in all but one of them."""

from __future__ import annotations

from collections.abc import Iterator

from tfm_bench.ablations import ProbeSettings
from tfm_bench.engine import Stack

VERSION = 1
WATCHED = {"trees": 4, "trees_as_claimed": 4, "rounds": 4, "gdn_ms": 5.0, "decode_ms": 50.0}


def probe(stack: Stack, settings: ProbeSettings) -> Iterator[dict[str, object]]:
    assert settings.ablation == "claims"
    place = {"dataset": settings.ablations.dataset, "temperature": 1.0, "budget": 64}
    for prompt in range(3):
        yield place | WATCHED | {"prompt": prompt, "rounds_unwritten": 3 if prompt == 0 else 4}
