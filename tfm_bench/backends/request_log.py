"""What a server answered: one JSON line per request, and the hidden file that they gather in while a cell runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tfm_bench.measure.files import read_json_lines
from tfm_bench.measure.partial import partial_path
from tfm_bench.measure.provenance import CellProvenance

NUMBERS = ("completion_tokens", "verify_steps", "finish_reason", "flush_s", "first_token_s", "total_s")


class ServerRequest(BaseModel):
    """One request, beside the DecodeRecord of the same prompt and arm: what either protocol computes its numbers from.

    completion_tokens counts the first token, which prefill draws. verify_steps: SGLang's spec_verify_ct, 0 for plain
    decoding. drafts_histogram: how many rounds accepted 0, 1, 2, ... drafts, None where the server does not say.
    Seconds: of the flush before the request, then from sending it to the first token and to the end of the answer.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1] = 1
    stack: str
    dataset: str
    split: str
    temperature: float
    repeat: int
    prompt: int
    prompt_id: str
    method: str
    budget: int
    expansion_width: int
    control: bool
    status: Literal["ok", "failed", "unsupported"]
    reason: str | None
    completion_tokens: int | None = None
    verify_steps: int | None = None
    drafts_histogram: list[int] | None = None
    finish_reason: str | None = None
    flush_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        missing = [name for name in NUMBERS if getattr(self, name) is None]
        if self.status == "ok" and missing:
            raise ValueError(f"{missing[0]}: found nothing; a request with status ok has it")
        return self

    @property
    def place(self) -> tuple[str, int, bool, int]:
        """Unique within a cell."""
        return self.method, self.budget, self.control, self.prompt


class LoggedRequest(BaseModel):
    """A request with what its record needs beside it.

    provenance: versions and device are those of the server's environment. TF32 flags are None, its own affair, and so
    is foreign_load: to this process, all that the server does is foreign.
    """

    request: ServerRequest
    output_ids: list[int]
    provenance: CellProvenance


class RequestLog:
    """First line: the key, a hash of all that the answers depend on. Then one line per request, each on the disk."""

    def __init__(self, output: Path, key: str) -> None:
        """Takes over what an earlier process left for `output` under the same key, and drops all else."""
        self.path = partial_path(output)
        self.done: dict[tuple[str, int, bool, int], LoggedRequest] = {}
        self._header = json.dumps({"key": key}).encode() + b"\n"
        if not self.path.exists():
            return
        header, *lines = self.path.read_bytes().splitlines(keepends=True) or [b""]
        if header != self._header:
            print(f"{self.path}: of other settings or code; discarded", file=sys.stderr)
            self.path.unlink()
            return
        self._keep(lines)
        print(f"{self.path}: continued after {len(self.done)} requests", file=sys.stderr)

    def append(self, logged: LoggedRequest) -> None:
        """Add a request; on return it is on the disk."""
        line = logged.model_dump_json().encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(line if self.done else self._header + line)
            file.flush()
            os.fsync(file.fileno())
        self.done[logged.request.place] = logged

    def remove(self) -> None:
        """Once the output is complete."""
        self.path.unlink(missing_ok=True)

    def _keep(self, lines: list[bytes]) -> None:
        """Reads the complete lines and cuts the file after them: a kill in mid-write leaves a torn one."""
        length = len(self._header)
        for line in lines:
            try:
                logged = LoggedRequest.model_validate_json(line)
            except ValidationError:
                break
            if not line.endswith(b"\n"):
                break
            self.done[logged.request.place] = logged
            length += len(line)
        # Without a request the next line brings the header itself.
        os.truncate(self.path, length if self.done else 0)


def requests_path(raw: Path) -> Path:
    """results/raw/cell.jsonl -> results/raw/cell.requests.jsonl"""
    return raw.with_suffix(f".requests{raw.suffix}")


def read_requests(path: Path) -> list[ServerRequest]:
    """Requests of one cell, line by line those of its records. Raises UserError naming file and line of damage."""
    return read_json_lines(path, ServerRequest, "a request")
