"""The cost curves behind the auto arms: times of rounds by the number of drafts.

Observations, one per method and size of tree: method; budget, the largest tree; expansion_width; draft_nodes;
rounds, how many were timed; round_ms_p20, round_ms_median, round_ms_p80 over them; fitted_ms, the convex curve that the
stopping rule reads there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tfm_bench.ablations import ProbeSettings, auto_arms
from tfm_bench.engine import Arm, Stack
from tfm_bench.measure.progress import with_progress
from tfm_bench.measure.round_times import measure_round_times

VERSION = 1


def probe(stack: Stack, settings: ProbeSettings) -> Iterable[dict[str, Any]]:
    """A curve per auto arm, measured as the variant measures its own."""
    arms = [Arm(**arm.model_dump(exclude={"variant"})) for arm in auto_arms(settings)]
    for arm in with_progress(arms, "auto_budget", unit="arms"):
        times = measure_round_times(stack, arm)
        costs = times.costs()
        for drafts, samples in zip(times.drafts, times.samples_ms, strict=True):
            low, median, high = (float(value) for value in np.percentile(samples, [20, 50, 80]))
            yield {
                **{"method": arm.method, "budget": arm.budget, "expansion_width": arm.expansion_width},
                **{"draft_nodes": drafts, "rounds": len(samples)},
                **{"round_ms_p20": low, "round_ms_median": median, "round_ms_p80": high, "fitted_ms": costs[drafts]},
            }
