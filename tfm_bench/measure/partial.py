"""What a cell has measured so far, in a hidden file beside its output: a kill loses the running prompt at most."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tfm_bench.measure.provenance import REPOSITORY
from tfm_bench.measure.records import DecodeRecord
from tfm_bench.measure.rounds import RoundsRecord
from tfm_bench.models.checkpoints import file_sha256

SOURCES = (".py", ".cpp", ".h")


class PromptResult(BaseModel):
    """Everything that one prompt gave: a record and its rounds per run."""

    records: list[DecodeRecord]
    rounds: list[RoundsRecord]


def hash_of(settings: dict[str, Any]) -> str:
    """One hash over a JSON mapping; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def sources_sha256(repository: Path = REPOSITORY) -> str:
    """One hash over names and contents of the sources of kernels/ and tfm_bench/."""
    files = (file for package in ("kernels", "tfm_bench") for file in (repository / package).rglob("*"))
    return hash_of({str(file.relative_to(repository)): file_sha256(file) for file in files if file.suffix in SOURCES})


class PartialFile:
    """First line: the key, a hash of everything that the records depend on. Then one line per complete prompt."""

    def __init__(self, output: Path, key: str) -> None:
        """Takes over what an earlier process left for `output` under the same key, and drops all else."""
        self.path = partial_path(output)
        self.prompts: list[PromptResult] = []
        self._header = json.dumps({"key": key}).encode() + b"\n"
        if not self.path.exists():
            return
        header, *lines = self.path.read_bytes().splitlines(keepends=True) or [b""]
        if header != self._header:
            print(f"{self.path}: of other settings or code; discarded", file=sys.stderr)
            self.path.unlink()
            return
        self._keep(lines)
        print(f"{self.path}: continued after {len(self.prompts)} prompts", file=sys.stderr)

    def append(self, result: PromptResult) -> None:
        """Add a prompt; on return it is on the disk."""
        line = result.model_dump_json().encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(line if self.prompts else self._header + line)
            file.flush()
            os.fsync(file.fileno())
        self.prompts.append(result)

    def remove(self) -> None:
        """Once the output is complete."""
        self.path.unlink(missing_ok=True)

    def _keep(self, lines: list[bytes]) -> None:
        """Reads the complete lines and cuts the file after them: a kill in mid-write leaves a torn one."""
        length = len(self._header)
        for line in lines:
            try:
                result = PromptResult.model_validate_json(line)
            except ValidationError:
                break
            if not line.endswith(b"\n"):
                break
            self.prompts.append(result)
            length += len(line)
        # Without a prompt the next line brings the header itself.
        os.truncate(self.path, length if self.prompts else 0)


def partial_path(output: Path) -> Path:
    """Hidden, and no output of a rule: Snakemake deletes incomplete outputs."""
    return output.with_name(f".{output.name}.partial")
