"""results/tables/gdn_verify: fused against every recurrence of its implementation, beside the paper's figures."""

from __future__ import annotations

import pandas as pd

from tfm_bench.errors import UserError

VERSION = 1
FUSED, RECURRENCE = "fused", "node_recurrent"
SHAPES, TREE, BATCH = "27b", "weaver", 1
MICROSECONDS = 1e3

# arXiv 2607.06763: microseconds of one layer on a B200 at batch 1 by nodes, recurrent and fused, without commit.
PAPER_DEVICE = "NVIDIA B200"
PAPER_US = {16: (55.2, 37.0), 32: (103.9, 39.0), 64: (195.0, 42.8), 128: (408.3, 57.3)}

PLACE = ["device", "threads", "dtype", "implementation", "shapes", "tree", "nodes", "batch", "cache"]
COLUMNS = [
    *[
        "source",
        "device",
        "threads",
        "dtype",
        "implementation",
        "shapes",
        "tree",
        "nodes",
        "batch",
        "cache",
        "baseline",
    ],
    *["baseline_verify_us", "fused_verify_us", "verify_ratio", "baseline_commit", "fused_commit"],
    *["baseline_total_us", "fused_total_us", "total_ratio"],
]


def table_gdn_verify(kernels: pd.DataFrame) -> pd.DataFrame:
    """The paper's four rows, then ours at the same sizes: shapes of the 27B model, Weaver trees, batch 1.

    Ratios are baseline over fused; `total` includes the commit that baseline_commit and fused_commit name. Baselines
    whose arm was not right, or not there, have no row.
    """
    ours = fused_against_baselines(one_problem(kernels))
    ours = ours[(ours["shapes"] == SHAPES) & ours["nodes"].isin(PAPER_US)]
    table = pd.concat([paper_rows(), ours.assign(source="measured")], ignore_index=True)[COLUMNS]
    return table.astype({"threads": "Int64"})


def one_problem(kernels: pd.DataFrame) -> pd.DataFrame:
    """Rows of Weaver trees at batch 1; of a device that was measured with cold and with warm caches, the cold ones.

    Raises UserError where there is none.
    """
    rows = kernels[(kernels["tree"] == TREE) & (kernels["batch"] == BATCH)]
    if rows.empty:
        raise UserError(f"kernels.grids: found no {TREE} trees at batch {BATCH}; table and figures show those")
    has_cold = rows.groupby("shapes")["cache"].transform(lambda cache: (cache == "cold").any())
    return rows[(rows["cache"] == "cold") | ~has_cold]


def fused_against_baselines(kernels: pd.DataFrame) -> pd.DataFrame:
    """A row per problem, implementation and baseline: times in microseconds, and the ratios baseline over fused."""
    times = _arm_times(kernels)
    fused = times[times["arm"] == FUSED].drop(columns="arm")
    # SGLang has no solve of trees: its recurrence stands against the one that runs beside it.
    beside = fused[fused["implementation"] == "triton"].assign(implementation="sglang")
    fused = pd.concat([fused, beside], ignore_index=True)
    baselines = times[times["arm"] != FUSED].rename(columns={"arm": "baseline"})
    pairs = baselines.merge(fused, on=PLACE, suffixes=("_baseline", "_fused"), sort=False)
    for phase in ("verify", "total"):
        for side in ("baseline", "fused"):
            pairs[f"{side}_{phase}_us"] = pairs[f"{phase}_{side}"] * MICROSECONDS
        pairs[f"{phase}_ratio"] = pairs[f"{phase}_baseline"] / pairs[f"{phase}_fused"]
    renamed = {f"commit_{side}": f"{side}_commit" for side in ("baseline", "fused")}
    return pairs.rename(columns=renamed)[[column for column in COLUMNS if column != "source"]]


def paper_rows() -> pd.DataFrame:
    """What the paper gives, in our columns; what it does not state is missing."""
    rows = [
        {
            **{"source": "paper", "device": PAPER_DEVICE, "shapes": SHAPES, "nodes": nodes, "batch": BATCH},
            **{"baseline": RECURRENCE, "baseline_verify_us": recurrent, "fused_verify_us": fused},
            "verify_ratio": recurrent / fused,
        }
        for nodes, (recurrent, fused) in PAPER_US.items()
    ]
    return pd.DataFrame(rows)


def require_times(data: pd.DataFrame) -> pd.DataFrame:
    """`data` itself. Raises UserError where it holds nothing to draw."""
    if data.empty:
        raise UserError("gdn_verify.csv: found no time to draw; its columns status and reason say why")
    return data


def kernel_note(kernels: pd.DataFrame) -> str:
    """Device, dtype, date and problem of the rows: what a reader needs beside a number."""
    devices = kernels[["device", "threads"]].drop_duplicates().itertuples(index=False, name=None)
    names = " + ".join(f"{device}, {threads} threads" for device, threads in devices)
    caches = kernels[["shapes", "cache"]].drop_duplicates().itertuples(index=False, name=None)
    states = ", ".join(f"{shapes} {cache}" for shapes, cache in caches)
    return (
        f"Measured {str(kernels['measured_at'].max())[:10]} on {names}, {'/'.join(kernels['dtype'].unique())}; "
        f"one layer, batch {BATCH}, Weaver trees of recorded rounds; caches: {states}.\n"
    )


def _arm_times(kernels: pd.DataFrame) -> pd.DataFrame:
    """A row per problem and right arm: milliseconds of `verify` and `total`, and the commit in the latter."""
    right = kernels[kernels["status"] == "ok"]
    verify = right[right["phase"] == "verify"].rename(columns={"median_ms": "verify"})
    total = right[right["phase"] == "total"].rename(columns={"median_ms": "total"})
    keys = [*PLACE, "arm"]
    return verify[[*keys, "verify"]].merge(total[[*keys, "total", "commit"]], on=keys, how="left", sort=False)
