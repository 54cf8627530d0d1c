"""Records: JSON lines as measured, one per (repeat, prompt, arm), and the table derived from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, ValidationError

from tfm_bench.config import METHODS, STAGES, CellSettings
from tfm_bench.errors import UserError
from tfm_bench.measure.provenance import Provenance

SCHEMA_VERSION = 2
VERSION = 2


class DecodeRecord(BaseModel):
    """One generation. `tokens` counts what the rounds emitted: the first token comes from prefill and is not in it.

    accepted: per round, tokens emitted less one; a stop id or max_new_tokens may cut the last round. decode_ms excludes
    prefill and comes from a run without inner timers; stage_ms from a second run, where one was made.
    first_divergence indexes the emitted tokens, the first included; it is None where the text is that of `ar`.
    """

    schema_version: int = SCHEMA_VERSION
    prompt: int
    prompt_id: str
    method: str
    budget: int
    expansion_width: int
    verify_width: int
    tokens: int
    accepted: list[int]
    prefill_ms: float
    decode_ms: float
    stage_ms: dict[str, float] | None
    tokens_sha256: str
    lossless: bool
    first_divergence: int | None
    degenerate: bool
    gdn_implementation: str
    weaver_implementation: str
    checkpoint_sha256: str
    prompts_sha256: str
    settings: CellSettings
    provenance: Provenance


def read_records(path: Path) -> list[DecodeRecord]:
    """Records of one cell. Raises UserError naming file and line of what is not a record."""
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(DecodeRecord.model_validate_json(line))
        except ValidationError as error:
            raise UserError(
                f"{path}, line {number}: not a record ({error.errors()[0]['msg']}); delete it and rerun"
            ) from None
    return records


def decode_table(paths: Iterable[Path]) -> pd.DataFrame:
    """One row per record, in a fixed order. Counts are sums over the rounds of a generation; times in milliseconds."""
    rows = [_row(record) for path in paths for record in read_records(path)]
    if not rows:
        raise UserError("results: no record found in the raw files; delete them and rerun")
    frame = pd.DataFrame(rows)
    keys = ["split", "dataset", "temperature", "repeat", "prompt", "method_rank", "budget", "expansion_width"]
    ranked = frame.assign(method_rank=frame["method"].map(METHODS.index))
    return ranked.sort_values(keys, ignore_index=True).drop(columns="method_rank")


def read_decode_table(path: Path) -> pd.DataFrame:
    """results/decode.csv with its types; empty cells are missing values."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def _row(record: DecodeRecord) -> dict[str, object]:
    settings, provenance = record.settings, record.provenance
    stages = {f"{stage}_ms": (record.stage_ms or {}).get(stage) for stage in (*STAGES, "other")}
    return {
        "stack": settings.stack.name,
        "repeat": settings.repeat,
        "split": settings.split,
        "dataset": settings.dataset,
        "temperature": settings.temperature,
        **record.model_dump(include={"prompt", "method", "budget", "expansion_width", "verify_width", "tokens"}),
        "rounds": len(record.accepted),
        "accepted_drafts_sum": sum(record.accepted),
        **record.model_dump(include={"decode_ms", "prefill_ms"}),
        **stages,
        **record.model_dump(include={"tokens_sha256", "lossless", "first_divergence", "degenerate"}),
        **record.model_dump(include={"gdn_implementation", "weaver_implementation"}),
        "dtype": settings.stack.dtype,
        "device": provenance.device,
        "threads": provenance.threads,
        "measured_at": provenance.measured_at.isoformat(),
    }
