"""Records: JSON lines as measured, one per (repeat, prompt, arm), and the table derived from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

import pandas as pd
from pydantic import BaseModel, ConfigDict, model_validator

from tfm_bench.backends.settings import ServerCellSettings
from tfm_bench.config import METHODS, STAGES, CellSettings, Rule
from tfm_bench.errors import UserError
from tfm_bench.measure.files import read_json_lines
from tfm_bench.measure.provenance import CellProvenance

SCHEMA_VERSION: Literal[4] = 4
VERSION = 4

Status = Literal["ok", "failed", "skipped", "unsupported"]
MEASURED = ("verify_width", "tokens", "rounds", "accepted_drafts_sum", "prefill_ms", "decode_ms")
JUDGED = ("tokens_sha256", "degenerate")
TOKEN_IDENTICAL: Rule = "sample_match"
SERVER_SAMPLER: Rule = "server_sampler"
FLAGS = ["control", "lossless", "degenerate"]
WHOLE = ["verify_width", "tokens", "rounds", "accepted_drafts_sum", "max_depth", "first_divergence"]


class DecodeRecord(BaseModel):
    """One generation. `tokens` counts what the rounds emitted: the first token comes from prefill and is not in it.

    control: the second run of `ar`, the A/A control of its cell. status: only `ok` records hold numbers, the others a
    reason. decode_ms excludes prefill and comes from a run without inner timers; stage_ms from a second run, where one
    was made. accepted_drafts and acceptance_length are means over the rounds, without and with the bonus token; None
    where no round ran. max_depth: the most drafts that one round accepted; None where a server does not say.
    lossless: whether the text is that of `ar`; None under a rule that promises no such thing. first_divergence indexes
    the emitted tokens, the first included; it is None where the text is that of `ar`. logit_gap (bfloat16, engine
    only): by how much the target, in one pass over the text before, scores the token of `ar` there above the one that
    was emitted.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Literal[4] = SCHEMA_VERSION
    prompt: int
    prompt_id: str
    prompt_tokens: int
    method: str
    budget: int
    expansion_width: int
    variant: str
    rule: Rule
    control: bool
    status: Status
    reason: str | None
    verify_width: int | None = None
    tokens: int | None = None
    rounds: int | None = None
    accepted_drafts_sum: int | None = None
    accepted_drafts: float | None = None
    acceptance_length: float | None = None
    max_depth: int | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    stage_ms: dict[str, float] | None = None
    tokens_sha256: str | None = None
    lossless: bool | None = None
    first_divergence: int | None = None
    logit_gap: float | None = None
    degenerate: bool | None = None
    gdn_implementation: str
    weaver_implementation: str
    checkpoint_sha256: str
    prompts_sha256: str
    settings: CellSettings | ServerCellSettings
    provenance: CellProvenance

    @model_validator(mode="after")
    def _check(self) -> Self:
        needed = (*MEASURED, *JUDGED, *(["lossless"] if self.rule == TOKEN_IDENTICAL else []))
        missing = [name for name in needed if getattr(self, name) is None]
        if self.status == "ok" and missing:
            raise ValueError(f"{missing[0]}: found nothing; a record with status ok has it")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"reason: found nothing; a record with status {self.status} says why")
        return self


def read_records(path: Path) -> list[DecodeRecord]:
    """Records of one cell. Raises UserError naming file and line of what is not a record."""
    return read_json_lines(path, DecodeRecord, "a record")


def decode_table(paths: Iterable[Path]) -> pd.DataFrame:
    """One row per record, in a fixed order. Counts are sums over the rounds of a generation; times in milliseconds."""
    rows = [_row(record) for path in paths for record in read_records(path)]
    if not rows:
        raise UserError("results: no record found in the raw files; delete them and rerun")
    frame = pd.DataFrame(rows)
    keys = [
        "split",
        "dataset",
        "temperature",
        "repeat",
        "prompt",
        "method_rank",
        "budget",
        "expansion_width",
        "variant",
        "control",
    ]
    ranked = frame.assign(method_rank=frame["method"].map(METHODS.index))
    return _typed(ranked.sort_values(keys, ignore_index=True).drop(columns="method_rank"))


def read_decode_table(path: Path) -> pd.DataFrame:
    """results/decode.csv with its types; empty cells are missing values."""
    return _typed(pd.read_csv(path, keep_default_na=False, na_values=[""]))


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers stay whole and flags stay flags where a record that is not ok leaves a gap."""
    gaps = [column for column in WHOLE if table[column].isna().any()]
    return table.astype(dict.fromkeys(gaps, "Int64") | dict.fromkeys(FLAGS, "boolean"))


def _row(record: DecodeRecord) -> dict[str, object]:
    settings, provenance = record.settings, record.provenance
    stages = {f"{stage}_ms": (record.stage_ms or {}).get(stage) for stage in (*STAGES, "other")}
    return {
        "stack": settings.stack.name,
        "repeat": settings.repeat,
        "split": settings.split,
        "dataset": settings.dataset,
        "temperature": settings.temperature,
        **_columns(record, "prompt", "prompt_tokens", "method", "budget", "expansion_width", "variant", "rule"),
        **_columns(record, "control", "status", "reason"),
        **_columns(record, "verify_width", "tokens", "rounds", "accepted_drafts_sum"),
        **_columns(record, "accepted_drafts", "acceptance_length", "max_depth", "prefill_ms", "decode_ms"),
        **stages,
        **_columns(record, "tokens_sha256", "lossless", "first_divergence", "logit_gap", "degenerate"),
        **_columns(record, "gdn_implementation", "weaver_implementation"),
        "dtype": settings.stack.dtype,
        "device": provenance.device,
        "threads": provenance.threads,
        "torch": provenance.versions["torch"],
        "measured_at": provenance.started_at.isoformat(),
    }


def _columns(record: DecodeRecord, *names: str) -> dict[str, object]:
    return {name: getattr(record, name) for name in names}
