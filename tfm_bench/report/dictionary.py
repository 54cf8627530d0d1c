"""results/README.md, the data dictionary: `python -m tfm_bench.report.dictionary` writes it anew.

Names and types come from the models and the tables, meanings from tfm_bench.report.meanings.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pandas as pd
from pydantic import BaseModel

from tfm_bench.backends import protocols
from tfm_bench.backends.request_log import ServerRequest
from tfm_bench.config import CellSettings, StackConfig
from tfm_bench.kernel_config import KernelsConfig
from tfm_bench.latency_config import LatencyRun
from tfm_bench.measure import example_tree, kernel_records, latency_records, plan, regression
from tfm_bench.measure.files import write_text
from tfm_bench.measure.provenance import CellProvenance, Provenance
from tfm_bench.measure.recorded_trees import RecordedTree
from tfm_bench.measure.records import DecodeRecord
from tfm_bench.measure.rounds import RoundsRecord
from tfm_bench.report import acceptance, claims, expected, gdn_verify, latency, speedup, stage_times
from tfm_bench.report.ablations import (
    acceptance_rule,
    auto_budget,
    budget,
    ceiling,
    context,
    drafting,
    pool,
    precision,
    temperature,
    width,
)
from tfm_bench.report.ablations import gdn_verify as gdn_verify_ablation
from tfm_bench.report.figures import acceptance_by_depth, accepted_length_histogram, noise_floor
from tfm_bench.report.meanings import meaning
from tfm_bench.report.tables import to_markdown

README = Path("results/README.md")
PLACE = ["stack", "repeat", "split", "dataset", "temperature", "prompt", "prompt_tokens"]
ARM = ["method", "budget", "expansion_width", "variant", "rule"]
DECODE_COLUMNS = [
    *[*PLACE, *ARM, "control", "status", "reason", "verify_width", "tokens", "rounds", "accepted_drafts_sum"],
    *["accepted_drafts", "acceptance_length", "max_depth", "prefill_ms", "decode_ms", *stage_times.STAGE_COLUMNS],
    *["tokens_sha256", "lossless", "first_divergence", "logit_gap", "degenerate", "gdn_implementation"],
    *["weaver_implementation", "dtype", "device", "threads", "torch", "measured_at"],
]
STAGE_TIMES = [*stage_times.KEYS, "rounds", *stage_times.STAGE_COLUMNS, "staged_round_ms", "round_time_ms"]
TABLES: dict[str, list[str]] = {
    "decode": DECODE_COLUMNS,
    "gdn_verify": kernel_records.COLUMNS,
    "latency_27b": latency_records.COLUMNS,
    "tables/latency_27b": latency.COLUMNS,
    "tables/speedup": speedup.COLUMNS,
    "tables/headline": speedup.HEADLINE_COLUMNS,
    "tables/acceptance_ratio": acceptance.COLUMNS,
    "tables/protocols": protocols.COLUMNS,
    "tables/stage_times": [*STAGE_TIMES, "degenerate_prompts"],
    "tables/gdn_verify": gdn_verify.COLUMNS,
    "tables/regression": regression.COLUMNS,
    "claims": claims.COLUMNS,
    "checks/expected": expected.COLUMNS,
    "expected/seconds": plan.COLUMNS,
    "example_tree": example_tree.COLUMNS,
    "figures/example_tree": ["lane"],
    "figures/acceptance_by_depth": acceptance_by_depth.COLUMNS,
    "figures/accepted_length_histogram": accepted_length_histogram.COLUMNS,
    "figures/noise_floor": noise_floor.COLUMNS,
    "ablation_acceptance_rule": acceptance_rule.COLUMNS,
    "ablation_auto_budget": auto_budget.COLUMNS,
    "ablation_pool": pool.COLUMNS,
    "ablation_drafting": drafting.COLUMNS,
    "ablation_ceiling": ceiling.COLUMNS,
    "ablation_precision": precision.COLUMNS,
    "ablation_budget": budget.COLUMNS,
    "ablation_width": width.COLUMNS,
    "ablation_gdn_verify": gdn_verify_ablation.COLUMNS,
    "ablation_temperature": temperature.COLUMNS,
    "ablation_context": context.COLUMNS,
}
RECORDS: dict[str, type[BaseModel]] = {
    "decode": DecodeRecord,
    "rounds": RoundsRecord,
    "requests": ServerRequest,
    "kernels": kernel_records.KernelRecord,
    "latency_27b": latency_records.LatencyRecord,
    "recorded_trees": RecordedTree,
}
ORIGINS: dict[str, type[BaseModel]] = {"decode": CellProvenance, "kernels, latency_27b, recorded_trees": Provenance}
DECODE_MODELS: list[type[BaseModel]] = [DecodeRecord, CellSettings, StackConfig, CellProvenance]
KERNEL_MODELS: list[type[BaseModel]] = [kernel_records.KernelRecord, KernelsConfig, Provenance]
LATENCY_MODELS: list[type[BaseModel]] = [latency_records.LatencyRecord, LatencyRun, Provenance]

# Types of columns that no model has; all others are numbers.
TEXT = {"baseline", "protocol", "prompt_selection", "chosen_on", "source", "what", "metric", "verdict"}
TEXT |= {"stack", "baseline_commit", "fused_commit", "measured_at", "counted_by", "drafter", "panel"}
TEXT |= {"id", "claim", "setting", "unit", "reason", "file", "mark", "column", "benchmark"}
TEXT |= {"counted_at", "depths", "kind", "token", "context", "acceptance_from", "device"}
COUNTS = {"prompts", "lossless_prompts", "degenerate_prompts", "runs", "baseline_verify_width", "left_out_rounds"}
COUNTS |= {"context_tokens", "places", "samples", "same_text_prompts", "pool_size", "counted_tokens", "repeats"}
COUNTS |= {"weaver_calls", "staged_prompts", "round", "node", "parent", "token_id", "lane"}
FLAGS = {"accepted", "projected"}
NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", datetime: "time", NoneType: "empty"}

HEAD = """# Results

Written by `python -m tfm_bench.report.dictionary`; do not edit.

- `decode.csv`: a row per repeat, prompt and arm; `gdn_verify.csv`: a row per kernel problem, arm and phase.
- `latency_27b.csv`: a row per arm and stage of a round, at real shapes with random weights.
- `example_tree.csv`: a row per node of one drafted tree, and one for the bonus token of its round.
- `tables/`: what the README shows, as CSV in full precision, Markdown and LaTeX; `figures/`: what a figure draws, in
  columns of the same names.
- `raw/`: JSON lines as measured, a file per process: `<split>.<dataset>.t<temperature x 100>.r<repeat>.jsonl`, its
  rounds line by line in `.rounds.jsonl`, or its requests to servers in `.requests.jsonl`; `kernels.jsonl`,
  `recorded_trees.jsonl`. `schema/` holds their JSON Schemas.
- `claims.csv`: the paper's claims with verdicts; `report.html`: all of it on one page.
- `smoke/`: the same of `snakemake smoke`; `expected/`: the run that the README's numbers come from.

An empty cell is a missing value; no file holds NaN or infinity. Times are milliseconds unless the name says otherwise.
"""


def dictionary_text() -> str:
    """The whole file. Raises KeyError for a name without meaning."""
    tables = _rows({file: {name: _column_type(file, name) for name in names} for file, names in TABLES.items()})
    records = _rows({file: _field_types(model) for file, model in RECORDS.items()})
    origins = _rows({file: _field_types(model) for file, model in ORIGINS.items()}, where="provenance")
    return "\n".join([HEAD, "## Columns\n", tables, "## Fields of raw records\n", records, "## provenance\n", origins])


def type_text(annotation: Any) -> str:
    """A type in words: "integer or empty", "list of number"."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(type_text, inner)))
    if origin is Annotated:
        return type_text(inner[0])
    if origin is list:
        return f"list of {type_text(inner[0])}"
    if origin is dict:
        return f"map to {type_text(inner[1])}"
    return NAMES.get(annotation, "object")


def _field_types(model: type[BaseModel]) -> dict[str, str]:
    return {name: type_text(field.annotation) for name, field in model.model_fields.items()}


def _column_type(file: str, name: str) -> str:
    """That of the record's field of this name, where the column only repeats it."""
    if name in TEXT or (name == "status" and file.startswith(("tables/", "ablation_"))):
        return "text"
    if name in FLAGS:
        return NAMES[bool]
    for model in _models_of(file):
        if name in model.model_fields:
            return type_text(model.model_fields[name].annotation)
    return "integer" if name in COUNTS else "number"


def _models_of(file: str) -> list[type[BaseModel]]:
    """Whose fields a table repeats."""
    if file.endswith("latency_27b"):
        return LATENCY_MODELS
    return KERNEL_MODELS if file.endswith("gdn_verify") and "ablation" not in file else DECODE_MODELS


def _rows(files: dict[str, dict[str, str]], where: str | None = None) -> str:
    """A line per name, type and meaning, with the files that have it. where: whose meanings, if not the file's."""
    found: dict[tuple[str, ...], list[str]] = {}
    for file, types in files.items():
        for name, kind in types.items():
            found.setdefault((name, kind, *meaning(where or file, name)), []).append(file)
    table = pd.DataFrame(
        [(f"`{name}`", kind, unit, text, ", ".join(at)) for (name, kind, unit, text), at in found.items()],
        columns=["name", "type", "unit", "meaning", "in"],
    )
    return to_markdown(table)


def main() -> None:
    """Write results/README.md below the working directory."""
    write_text(README, dictionary_text())


if __name__ == "__main__":
    main()
