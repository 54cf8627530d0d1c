"""Where each claim of workflows/claims.yaml is measured: functions from the tables of a run to a value and an interval.

Tables by name: decode, headline, acceptance_ratio, gdn_verify (the raw one), claims_probe, ablation_ceiling. The last
three are not made for every stack: their claims say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from tfm_bench.measure.files import read_json_lines
from tfm_bench.measure.probe_records import ProbeRecord, probe_table
from tfm_bench.measure.records import TOKEN_IDENTICAL
from tfm_bench.measure.statistics import Rate, rate_interval
from tfm_bench.report.arms import ALL_DATASETS, OK
from tfm_bench.report.claims import Measure, Measured, Missing
from tfm_bench.report.gdn_verify import FUSED, RECURRENCE, SHAPES, one_problem

VERSION = 1
TEMPERATURE, PAPER_BUDGET, CHAIN_BUDGET = 1.0, 64, 15
Tables = Mapping[str, pd.DataFrame]


def read_tables(files: Mapping[str, Path]) -> dict[str, pd.DataFrame]:
    """Tables by name, from CSV files and from records of a probe. Raises UserError for damaged records.

    `checked` is no table: it stands for a gate that has passed.
    """
    return {name: _read(path) for name, path in files.items() if name != "checked"}


def _read(path: Path) -> pd.DataFrame:
    if path.suffix == ".jsonl":
        return probe_table(read_json_lines(path, ProbeRecord, "a record of a probe"))
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def _speedup(tables: Tables, *, baseline: str) -> Measured | Missing:
    """`tfm` at its dev budget against a baseline at its own, all data sets pooled, T = 1."""
    rows = tables["headline"]
    rows = rows[(rows["method"] == "tfm") & (rows["baseline"] == baseline)]
    return _pooled(rows, "speedup")


def _accepted_drafts(tables: Tables, *, baseline: str, budget: int = PAPER_BUDGET) -> Measured | Missing:
    """`tfm` against a baseline at one budget, all data sets pooled, T = 1."""
    rows = tables["acceptance_ratio"]
    rows = rows[(rows["method"] == "tfm") & (rows["baseline"] == baseline) & (rows["budget"] == budget)]
    if budget == CHAIN_BUDGET:
        rows = rows[rows["baseline_verify_width"] == rows["verify_width"]]
    return _pooled(rows, "accepted_drafts_ratio", f" with budget {budget}")


def _pooled(rows: pd.DataFrame, column: str, where: str = "") -> Measured | Missing:
    """The row of all data sets, without flagged prompts where there are any; the reason lists the data sets."""
    rows = rows[rows["temperature"] == TEMPERATURE].sort_values("prompt_selection")
    rows = rows.drop_duplicates("dataset", keep="last")  # "not_degenerate" comes after "all"
    whole = rows[rows["dataset"] == ALL_DATASETS]
    if whole.empty:
        return Missing(f"no row at T = {TEMPERATURE:g}{where}")
    (row,) = whole.to_dict("records")
    if row["status"] != OK:
        return Missing(f"status: {row['status']}")
    single = rows[rows["dataset"] != ALL_DATASETS]
    parts = ", ".join(
        f"{one['dataset']} {one[column]:.2f} [{one[f'{column}_low']:.2f}, {one[f'{column}_high']:.2f}] "
        f"(budget {one['budget']})"
        for one in single.to_dict("records")
    )
    reason = f"stack {row['stack']}, {row['prompts']} prompts, pooled with budget {row['budget']}; alone: {parts}"
    return Measured(row[column], row[f"{column}_low"], row[f"{column}_high"], reason)


def _gdn_verify(tables: Tables, *, nodes: int) -> Measured | Missing:
    """Node recurrence over fused, verification alone, by the implementation whose fused solve is the fastest."""
    verify = _verify_rows(tables["gdn_verify"], SHAPES, nodes)
    fused, recurrent = (verify[verify["arm"] == arm].set_index("implementation") for arm in (FUSED, RECURRENCE))
    both = fused.index.intersection(recurrent.index)
    if both.empty:
        return Missing(f"no {SHAPES} problem of {nodes} nodes was timed")
    best = fused.loc[both, "median_ms"].idxmin()
    one, other = fused.loc[best], recurrent.loc[best]
    reason = f"{best} against {best} on {one['device']}, {one['dtype']}; low and high from 20th and 80th percentiles"
    value, low, high = (
        float(other[a] / one[b]) for a, b in (("median_ms", "median_ms"), ("p20_ms", "p80_ms"), ("p80_ms", "p20_ms"))
    )
    return Measured(value, low, high, reason)


def _verify_rows(kernels: pd.DataFrame, shapes: str, nodes: int) -> pd.DataFrame:
    rows = one_problem(kernels)
    chosen = (rows["shapes"] == shapes) & (rows["nodes"] == nodes) & (rows["phase"] == "verify")
    return rows[chosen & (rows["status"] == OK)]


def _gdn_verify_share(tables: Tables) -> Measured | Missing:
    """Time inside the layers' verification over that of the rounds, T = 1; interval over prompts."""
    watched = tables["claims_probe"]
    rows = watched[watched["temperature"] == TEMPERATURE]
    rate = Rate(rows[["gdn_ms"]].to_numpy(dtype=float).T, rows[["decode_ms"]].to_numpy(dtype=float).T)
    interval = rate_interval(rate)
    first = rows.iloc[0]
    reason = f"all layers of the stack together, {len(rows)} prompts of {first['dataset']}, budget {first['budget']}"
    return Measured(rate.value(), interval.low, interval.high, reason)


def _passes_ceiling(tables: Tables, *, choice: str) -> Measured | Missing:
    """Weaver's acceptance less that of the best factorised drafter, at the deepest drafted token that was sampled.

    choice: "most" takes the data set whose ceiling is lowest there, "least" the one whose ceiling is highest.
    """
    if "ablation_ceiling" not in tables:
        return Missing("ablation_ceiling is not in ablations.run")
    table = tables["ablation_ceiling"]
    if choice == "least" and table["dataset"].nunique() < 2:
        return Missing("ablations.ceiling.datasets has a single data set: that of the claim above")
    ceiling = table[(table["drafter"] == "ceiling") & (table["depth"] == table["depth"].max())]
    ranked = ceiling.sort_values("acceptance")
    place = ranked.iloc[0 if choice == "most" else -1]
    rows = table[(table["drafter"] == "weaver") & (table["dataset"] == place["dataset"])].sort_values("depth")
    deepest = rows.iloc[-1]
    passed = ", ".join(str(depth) for depth in rows.loc[rows["above_best_factorised_low"] > 0, "depth"]) or "none"
    reason = (
        f"{place['dataset']}, depth {deepest['depth']}, {deepest['places']} places; the interval is above 0 at depths: "
        f"{passed}; above the oracle marginal, sampled from: {deepest['above_ceiling']:.2f} "
        f"[{deepest['above_ceiling_low']:.2f}, {deepest['above_ceiling_high']:.2f}]"
    )
    value, low, high = (float(deepest[f"above_best_factorised{end}"]) for end in ("", "_low", "_high"))
    return Measured(value, low, high, reason)


def _held(tables: Tables, *, what: str, held: str) -> Measured | Missing:
    """Share of the watched trees or rounds in which a property held."""
    rows = tables["claims_probe"]
    watched = int(rows[what].sum())
    if not watched:
        return Missing(f"no {what} were watched")
    return Measured(rows[held].sum() / watched, math.nan, math.nan, f"{watched} {what} watched")


def _lossless(tables: Tables) -> Measured | Missing:
    """Over all generations of drafting methods in float32 that promise it; one without a number has not held."""
    decode = tables["decode"]
    promised = (decode["dtype"] == "float32") & (decode["rule"] == TOKEN_IDENTICAL)
    judged = decode[promised & (decode["method"] != "ar")]
    if judged.empty:
        return Missing("no generation in float32")
    held = (judged["status"] == OK) & judged["lossless"].fillna(False).astype(bool)
    return Measured(float(held.mean()), math.nan, math.nan, f"{len(judged)} generations in float32")


def _from(table: str, measure: Callable[..., Measured | Missing], **options: Any) -> Measure:
    """A measure of a table that not every stack has."""

    def measured(tables: Tables) -> Measured | Missing:
        if table not in tables:
            return Missing(f"{table} is not measured on this stack")
        return measure(tables, **options)

    return measured


MEASURES: dict[str, Measure] = {
    "speedup_over_ar": partial(_speedup, baseline="ar"),
    "speedup_over_chain": partial(_speedup, baseline="dflash_chain"),
    "speedup_over_ddtree": partial(_speedup, baseline="ddtree"),
    "accepted_drafts_over_chain": partial(_accepted_drafts, baseline="dflash_chain"),
    "accepted_drafts_over_ddtree": partial(_accepted_drafts, baseline="ddtree"),
    "accepted_drafts_over_chain_16_rows": partial(_accepted_drafts, baseline="dflash_chain", budget=CHAIN_BUDGET),
    "accepted_drafts_over_ddtree_16_rows": partial(_accepted_drafts, baseline="ddtree", budget=CHAIN_BUDGET),
    **{f"gdn_verify_{nodes}_nodes": _from("gdn_verify", _gdn_verify, nodes=nodes) for nodes in (16, 32, 64, 128)},
    "gdn_verify_share": _from("claims_probe", _gdn_verify_share),
    "weaver_calls": _from("claims_probe", _held, what="trees", held="trees_as_claimed"),
    "nothing_written_for_rejected_nodes": _from("claims_probe", _held, what="rounds", held="rounds_unwritten"),
    "passes_the_ceiling_most_choice": partial(_passes_ceiling, choice="most"),
    "passes_the_ceiling_least_choice": partial(_passes_ceiling, choice="least"),
    "lossless": _lossless,
}
