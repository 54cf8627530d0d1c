"""The kernel table of README.md, from results/expected/gdn_verify.csv."""

from __future__ import annotations

import pandas as pd

from tfm_bench.report.gdn_verify import FUSED
from tfm_bench.report.tables import to_markdown

IMPLEMENTATION = "compiled"
SHOWN = [("27b", "weaver"), ("27b", "ddtree"), ("27b", "chain"), ("tiny", "weaver"), ("tiny", "chain")]
NODES = (16, 32, 64, 128)
RIVALS = {
    "node_recurrent": "node recurrent",
    "node_recurrent_scratch": "states in cache",
    "path_recurrent": "path recurrent",
}


def kernels_section(kernels: pd.DataFrame) -> str:
    """Where it was measured, and the table, in Markdown."""
    first = kernels.iloc[0]
    where = (
        f"Measured on {first['device']}, {first['threads']} threads, {first['dtype']}, "
        f"{kernels['measured_at'].min()[:10]}; one layer, batch 1, C++ against C++; medians. × is the time of a "
        "recurrence over that of the solve, commit included, and in brackets verification alone. The floor is what the "
        "solve's bytes and FLOPs take at the measured bandwidth and matrix-product rate."
    )
    return f"{where}\n\n{to_markdown(kernel_rows(kernels))}"


def kernel_rows(kernels: pd.DataFrame) -> pd.DataFrame:
    """A line per shapes, tree and nodes: the solve in milliseconds and over its floor, the recurrences over it."""
    right = kernels[
        (kernels["implementation"] == IMPLEMENTATION) & (kernels["status"] == "ok") & (kernels["batch"] == 1)
    ]
    times = (
        right[right["phase"].isin(["verify", "total"])]
        .set_index(["shapes", "tree", "nodes", "arm", "phase"])
        .sort_index()
    )
    rows: list[dict[str, object]] = []
    for shapes, tree in SHOWN:
        for nodes in NODES:
            place = times.loc[(shapes, tree, nodes)]
            fused = place.loc[(FUSED, "total")]
            rows.append(
                {
                    **{"shapes": shapes, "tree": tree, "nodes": nodes},
                    "solve + commit (ms)": f"{fused['median_ms']:.3f}",
                    "over its floor": f"{fused['median_ms'] / fused['roofline_ms']:.1f} ×",
                    **{name: _ratios(place["median_ms"], arm) for arm, name in RIVALS.items()},
                }
            )
    return pd.DataFrame(rows)


def _ratios(milliseconds: pd.Series, arm: str) -> str:
    total, verify = (milliseconds[arm, phase] / milliseconds[FUSED, phase] for phase in ("total", "verify"))
    return f"{total:.1f} × ({verify:.1f} ×)"
