"""The companion of a raw file: what every round of every generation did, one JSON line per record."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from tfm_bench.measure.files import read_json_lines


class RoundsRecord(BaseModel):
    """The rounds of one DecodeRecord, in order; the lists are empty where its status is not ok.

    accepted: drafts that the round emitted; a stop id or max_new_tokens may cut the last round. verify_width: rows that
    the target computed. depth: of the deepest drafted node. spine: drafts that the tree's spine alone, from the anchor
    always the best-scored child, would have had accepted. stage_ms: milliseconds of each stage, from the staged run.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    prompt: int
    method: str
    budget: int
    expansion_width: int
    variant: str
    control: bool
    accepted: list[int]
    verify_width: list[int]
    depth: list[int]
    spine: list[int]
    stage_ms: dict[str, list[float]] | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        lists: list[list[int] | list[float]] = [self.verify_width, self.depth, self.spine]
        lists += (self.stage_ms or {}).values()
        if any(len(values) != len(self.accepted) for values in lists):
            raise ValueError("every list has one entry per round")
        return self


def rounds_path(raw: Path) -> Path:
    """results/raw/cell.jsonl -> results/raw/cell.rounds.jsonl"""
    return raw.with_suffix(f".rounds{raw.suffix}")


def read_rounds(path: Path) -> list[RoundsRecord]:
    """Rounds of one cell, line by line those of its records. Raises UserError naming file and line of a damaged one."""
    return read_json_lines(path, RoundsRecord, "a record of rounds")
