"""The results of README.md, written from results/expected and kept between markers."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from tfm_bench.measure.files import write_text
from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.acceptance import table_acceptance_ratio
from tfm_bench.report.arms import clean_rows
from tfm_bench.report.readme_claims import claims_section
from tfm_bench.report.readme_kernels import kernels_section
from tfm_bench.report.readme_targets import RULES, targets_section
from tfm_bench.report.sections import with_section
from tfm_bench.report.speedup import table_headline
from tfm_bench.report.stage_times import table_stage_times
from tfm_bench.report.tables import DASH, to_markdown

LABELS = {"ar": "AR", "dflash_chain": "DFlash chain", "ddtree": "DDTree", "tfm": "DFlash-TfM"}


def readme_with_results(readme: str, expected: Path, rules: Path = RULES) -> str:
    """README text with its made parts anew, from the files of a run. Raises ValueError when a marker is missing."""
    kernels, claims, seconds = (pd.read_csv(expected / f"{name}.csv") for name in ("gdn_verify", "claims", "seconds"))
    sections = {
        "claims": claims_section(claims),
        "targets": targets_section(seconds, rules.read_text(encoding="utf-8")),
        "results": results_section(read_decode_table(expected / "decode.csv")),
        "kernels": kernels_section(kernels),
    }
    for name, section in sections.items():
        readme = with_section(readme, name, section)
    return readme


def results_section(decode: pd.DataFrame) -> str:
    """Where it was measured, the headline table, the accepted drafts and the stage times, in Markdown."""
    first = decode.iloc[0]
    prompts = decode[decode["split"] == "test"].groupby("dataset", sort=False)["prompt"].nunique()
    counts = ", ".join(f"{count} {dataset}" for dataset, count in prompts.items())
    where = (
        f"Measured on {first['device']}, {first['threads']} threads, {first['dtype']}, "
        f"{decode['measured_at'].min()[:10]}; {decode['repeat'].nunique()} processes per cell; test prompts: {counts}. "
        "Brackets: 95 % interval, paired bootstrap over repeats and prompts. A/A: the interval of AR over AR, measured "
        "twice in every process; a speedup inside it is no finding."
    )
    return "\n".join(
        [
            f"{where}\n",
            "Each method at the budget that was fastest on the dev prompts, prompts with degenerate text left out:\n",
            to_markdown(headline_rows(decode)),
            "DFlash-TfM against the other drafters, each at its own budget of the first table (tokens per second):\n",
            to_markdown(against_rows(decode)),
            "Accepted drafts at equal verify width (16 rows, anchor included), without degenerate prompts:\n",
            to_markdown(acceptance_rows(decode)),
            "Milliseconds per round by stage at the budgets of the first table, all datasets:\n",
            to_markdown(stage_rows(decode)),
        ]
    )


def headline_rows(decode: pd.DataFrame) -> pd.DataFrame:
    """The headline table for reading: against AR, without degenerate prompts, a line per dataset, T and method."""
    table = table_headline(decode)
    keys = ["dataset", "temperature", "method"]
    against_ar = table[table["baseline"] == "ar"]
    whole = against_ar[against_ar["prompt_selection"] == "all"].set_index(keys)
    shown = clean_rows(against_ar)
    every = whole.loc[list(shown[keys].itertuples(index=False, name=None))].set_axis(shown.index)
    return pd.DataFrame(
        {
            "dataset": shown["dataset"],
            "T": shown["temperature"].map("{:g}".format),
            "method": shown["method"].map(LABELS),
            "budget": shown["budget"],
            "acceptance length": shown["acceptance_length"],
            "round (ms)": shown["round_time_ms"],
            "tok/s": shown["tokens_per_second"].map("{:.0f}".format),
            "speedup": with_interval(shown, "speedup"),
            "A/A": interval(shown, "noise"),
            "lossless": fraction(shown["lossless_prompts"], shown["prompts"]),
            "degenerate, left out": fraction(every["degenerate_prompts"], every["prompts"]),
        }
    )


def against_rows(decode: pd.DataFrame) -> pd.DataFrame:
    """Speed of DFlash-TfM over DDTree and over the chain, without degenerate prompts."""
    shown = clean_rows(table_headline(decode))
    shown = shown[shown["baseline"] != "ar"]
    return pd.DataFrame(
        {
            "dataset": shown["dataset"],
            "T": shown["temperature"].map("{:g}".format),
            "against": shown["baseline"].map(LABELS),
            "prompts": shown["prompts"],
            "speed ratio": with_interval(shown, "speedup"),
        }
    )


def acceptance_rows(decode: pd.DataFrame) -> pd.DataFrame:
    """Ratios of accepted drafts at the chain's own verify width."""
    table = clean_rows(table_acceptance_ratio(decode))
    shown = table[(table["verify_width"] == 16) & (table["baseline_verify_width"] == 16)]
    return pd.DataFrame(
        {
            "dataset": shown["dataset"],
            "T": shown["temperature"].map("{:g}".format),
            "prompts": shown["prompts"],
            "method": shown["method"].map(LABELS),
            "against": shown["baseline"].map(LABELS),
            "accepted drafts": shown["accepted_drafts"],
            "of the baseline": shown["baseline_accepted_drafts"],
            "ratio": with_interval(shown, "accepted_drafts_ratio"),
        }
    )


def stage_rows(decode: pd.DataFrame) -> pd.DataFrame:
    """Stage times of the arms that the pooled headline shows."""
    headline = table_headline(decode)
    shown = headline[(headline["dataset"] == "all") & (headline["baseline"] == "ar")]
    keys = ["temperature", "method", "budget", "expansion_width"]
    stages = table_stage_times(decode).merge(shown[keys].drop_duplicates(), on=keys)
    renamed = {column: column.removesuffix("_ms") for column in stages.columns if column.endswith("_ms")}
    columns = ["draft_ms", "tree_ms", "verify_ms", "accept_ms", "commit_ms", "other_ms", "staged_round_ms"]
    labelled = stages.assign(T=stages["temperature"].map("{:g}".format), method=stages["method"].map(LABELS))
    return labelled[["T", "method", "budget", *columns]].rename(columns=renamed | {"staged_round_ms": "whole round"})


def with_interval(table: pd.DataFrame, column: str) -> pd.Series:
    """value [low, high], or, where there is no value, the status that says why."""
    values = table[column].map("{:.2f} ".format) + interval(table, column)
    return values.where(table[column].notna(), table["status"])


def interval(table: pd.DataFrame, column: str) -> pd.Series:
    """[low, high], or a dash where there is none."""
    ends = zip(table[f"{column}_low"], table[f"{column}_high"], strict=True)
    texts = [DASH if pd.isna(low) else f"[{low:.2f}, {high:.2f}]" for low, high in ends]
    return pd.Series(texts, index=table.index)


def fraction(part: pd.Series, whole: pd.Series) -> pd.Series:
    """part/whole as text."""
    return part.astype(str) + "/" + whole.astype(str)


def main() -> None:
    """Rewrites README.md from results/expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--expected", type=Path, default=Path("results/expected"))
    arguments = parser.parse_args()
    readme = arguments.readme.read_text(encoding="utf-8")
    write_text(arguments.readme, readme_with_results(readme, arguments.expected))


if __name__ == "__main__":
    main()
