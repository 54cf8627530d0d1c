"""A gate against stored records: has a run become worse by more than the noise of both runs explains?

Rule. Per arm, the ratio of this run to the baseline over the repeats and prompts that both hold, better above 1, with
the interval of every other ratio. Only prompts on which `ar` emitted the same text in both runs are the same work.
Speed regressed when that interval lies below the lower A/A bound of both runs (`ar` against itself, both ways round, at
most 1). Acceptance regressed when the ratio itself is below 1 by more than ACCEPTANCE_SLACK: the same text is accepted
the same way each time, and the interval is for information only. A kernel regressed when this run's fast end (p20) is
slower than the baseline's slow end (p80) by more than the widest A/A bound of any dataset and temperature. So did an
arm that is no longer lossless, or that failed. The A/A control runs in the process that it controls: a machine that is
slower as a whole counts as a regression.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tfm_bench.errors import EXIT_TOOL_ERROR, UserError
from tfm_bench.measure.files import write_text
from tfm_bench.measure.statistics import Interval, Rate, ratio, ratio_interval
from tfm_bench.measure.stored_run import KERNEL, StoredRun, hardware, read_run, shared_by

EXIT_OK, EXIT_REGRESSION = 0, 1

COLUMNS = ["what", "metric", "prompts", "baseline", "now", "ratio", "ratio_low", "ratio_high", "tolerance", "verdict"]
WORSE = ("regression", "not lossless", "failed")
NOT_COMPARED = ("missing", "too few prompts", "other text")
LEAST_PROMPTS = 2  # one has no interval
ACCEPTANCE_SLACK = 1e-3
SHOWN_ROWS = 12

Row = dict[str, object]


def table_regression(run: StoredRun, baseline: StoredRun) -> pd.DataFrame:
    """A row per arm of the baseline and metric. Raises UserError for other hardware and where nothing is compared.

    Ratios are better above 1, those of times too. verdict: ok, one of WORSE, or one of NOT_COMPARED.
    """
    _require_same_hardware(run.decode, baseline.decode, run.path, baseline.path)
    arms = run.arms()
    rows = [
        {"what": _label(key), **row}
        for key, stored in baseline.arms().items()
        for row in _compare_arm(arms.get(key), stored, run, baseline)
    ]
    _require_compared(rows, f"{run.path} and {baseline.path} share too few arms and prompts of the same text")
    if baseline.kernels is not None:
        if run.kernels is None:
            raise UserError(
                f"{run.path}: no gdn_verify.csv beside it; {baseline.path} has one: nothing was compared with it"
            )
        _require_same_hardware(run.kernels, baseline.kernels, run.path, baseline.path)
        kernels = _compare_kernels(run.kernels, baseline.kernels, _widest_noise(run, baseline))
        _require_compared(kernels, f"{run.path} and {baseline.path} share no timed kernel")
        rows += kernels
    return pd.DataFrame(rows, columns=COLUMNS)


def has_regression(table: pd.DataFrame) -> bool:
    """Whether any row got worse."""
    return bool(table["verdict"].isin(WORSE).any())


def read_regression(path: Path) -> pd.DataFrame:
    """results/tables/regression.csv."""
    return pd.read_csv(path)


def summary(table: pd.DataFrame) -> str:
    """The worst rows, all of those that regressed among them, and one line with the verdict."""
    worse, left_out = table["verdict"].isin(WORSE), table["verdict"].isin(NOT_COMPARED)
    ranked = table.assign(fine=~worse, margin=table["ratio_high"] - table["tolerance"]).sort_values(["fine", "margin"])
    shown = ranked.head(max(SHOWN_ROWS, int(worse.sum())))[COLUMNS]
    verdict = "REGRESSION" if worse.any() else "no regression"
    line = f"{verdict}: {worse.sum()} of {(~left_out).sum()} comparisons are worse than the noise explains"
    missing = f"; {left_out.sum()} of the baseline could not be compared" if left_out.any() else ""
    return f"{shown.to_string(index=False, float_format='{:.4g}'.format, na_rep='-')}\n{line}{missing}"


def regression(run: Path, baseline: Path, output: Path) -> int:
    """Compare, write the table to `output` and print its summary. Returns EXIT_OK or EXIT_REGRESSION.

    Raises UserError for what is no comparison; then there is no `output`, not even an older one.
    """
    output.unlink(missing_ok=True)
    table = table_regression(read_run(run), read_run(baseline))
    write_text(output, table.to_csv(index=False, lineterminator="\n"))
    print(summary(table), flush=True)
    return EXIT_REGRESSION if has_regression(table) else EXIT_OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, 1 for a regression, 2 for everything that keeps the comparison from being made."""
    parser = argparse.ArgumentParser(description="Compare a run with a stored one.")
    parser.add_argument("--baseline", type=Path, required=True, help="a decode.csv, or a folder that holds one")
    parser.add_argument("--run", type=Path, default=Path("results"), help="the run at hand (default: results)")
    parser.add_argument("--output", type=Path, default=Path("results/tables/regression.csv"))
    parsed = parser.parse_args(arguments)
    try:
        return regression(parsed.run, parsed.baseline, parsed.output)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return EXIT_TOOL_ERROR


def _require_same_hardware(run: pd.DataFrame, baseline: pd.DataFrame, path: Path, stored: Path) -> None:
    here, there = hardware(run, path), hardware(baseline, stored)
    if here != there:
        raise UserError(f"{path}: measured on {here}; {stored} on {there}: their times do not compare")


def _require_compared(rows: list[Row], reason: str) -> None:
    if all(row["verdict"] in NOT_COMPARED for row in rows):
        raise UserError(f"{reason}: nothing was compared")


def _widest_noise(run: StoredRun, baseline: StoredRun) -> float:
    """The lowest A/A bound of both runs over what both decoded. Arms that were not compared have none to offer."""
    shared = run.workloads() & baseline.workloads()
    if not shared:
        raise UserError(f"{run.path} and {baseline.path} share no dataset and temperature: no noise floor for kernels")
    return min(stored.noise(*workload) for stored in (run, baseline) for workload in sorted(shared))


def _label(key: tuple[object, ...]) -> str:
    stack, dataset, temperature, method, budget, width = key
    return f"{stack} {dataset} T={temperature:g} {method} {budget}" + (f"/{width}" if width else "")


def _compare_arm(now: pd.DataFrame | None, stored: pd.DataFrame, run: StoredRun, baseline: StoredRun) -> list[Row]:
    right = stored[stored["status"] == "ok"]
    if now is None or right.empty:
        return [{"metric": "tokens_per_second", "verdict": "missing"}]
    same, other = _prompts_by_text(stored, run, baseline)
    # A prompt on which `ar` failed has no text to compare: a failure there still counts.
    if (now.loc[now["prompt"].isin(set(right["prompt"]) - other), "status"] != "ok").any():
        return [{"metric": "tokens_per_second", "verdict": "failed"}]
    both = set(now["prompt"]) & set(right["prompt"])
    if both and not both & same:
        return [{"metric": "tokens_per_second", "prompts": 0, "verdict": "other text"}]
    shared = shared_by(*(rows[rows["prompt"].isin(same)] for rows in (now, right)))
    found: Row = {"prompts": len(shared.prompts)}
    if len(shared.prompts) < LEAST_PROMPTS:
        return [{"metric": "tokens_per_second", **found, "verdict": "too few prompts"}]
    dataset, temperature = stored["dataset"].iloc[0], stored["temperature"].iloc[0]
    noise = min(run.noise(dataset, temperature), baseline.noise(dataset, temperature))
    accepted = _rates(shared.acceptance(now), shared.acceptance(right), 1 - ACCEPTANCE_SLACK, by_interval=False)
    rows: list[Row] = [
        {"metric": "tokens_per_second", **found, **_rates(shared.speed(now), shared.speed(right), noise)},
        {"metric": "acceptance_length", **found, **accepted},
    ]
    was, still = shared.lossless(right), shared.lossless(now)
    if still < was and set(now["dtype"]) == {"float32"}:
        counts = {"baseline": was, "now": still, "ratio": still / was}
        rows.append({"metric": "lossless_prompts", **found, **counts, "verdict": "not lossless"})
    return rows


def _prompts_by_text(arm: pd.DataFrame, run: StoredRun, baseline: StoredRun) -> tuple[set[int], set[int]]:
    """Prompts of an arm's workload on which `ar` emitted one text in both runs, and those on which it did not."""
    stack, dataset, temperature = arm[["stack", "dataset", "temperature"]].iloc[0]
    now, stored = (stored.texts(stack, dataset, temperature) for stored in (run, baseline))
    known = now.keys() & stored.keys()
    same = {prompt for prompt in known if len(now[prompt] | stored[prompt]) == 1}
    return same, known - same


def _compare_kernels(run: pd.DataFrame, baseline: pd.DataFrame, tolerance: float) -> list[Row]:
    pairs = baseline[baseline["status"] == "ok"].merge(run, on=KERNEL, how="left", suffixes=("_baseline", ""))
    return [
        {"what": " ".join(str(pair[key]) for key in KERNEL), "metric": "median_ms", **_times(pair, tolerance)}
        for pair in pairs.to_dict("records")
    ]


def _times(pair: Row, tolerance: float) -> Row:
    """One kernel: the ratio of medians, and from the worst to the best case of the middle 60 % of both runs."""
    if pair["status"] != "ok":
        return {"verdict": "missing" if pd.isna(pair["status"]) else "failed"}
    stored, now = (
        np.array([pair[f"{name}_ms{suffix}"] for name in ("p20", "median", "p80")]) for suffix in ("_baseline", "")
    )
    low, middle, high = stored / now[::-1]
    return {"baseline": stored[1], "now": now[1], **_verdict(middle, Interval(low, high), tolerance)}


def _rates(now: Rate, stored: Rate, tolerance: float, *, by_interval: bool = True) -> Row:
    # The repeats of the two runs are no pairs, but drawing them as pairs gives the same spread.
    judged = _verdict(ratio(now, stored), ratio_interval(now, stored), tolerance, by_interval=by_interval)
    return {"baseline": stored.value(), "now": now.value(), **judged}


def _verdict(value: float, interval: Interval, tolerance: float, *, by_interval: bool = True) -> Row:
    return {
        **{"ratio": value, "ratio_low": interval.low, "ratio_high": interval.high, "tolerance": tolerance},
        "verdict": "regression" if (interval.high if by_interval else value) < tolerance else "ok",
    }


if __name__ == "__main__":
    sys.exit(main())
