"""Files that are either complete or not there."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tfm_bench.errors import UserError

BYTES_PER_MEGABYTE = 1_000_000

Model = TypeVar("Model", bound=BaseModel)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is synced to disk and renamed, on failure removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb+") as written:
            os.fsync(written.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_json_lines(path: Path, model: type[Model], kind: str) -> list[Model]:
    """One model per line. Raises UserError, one line: file, line number and what is wrong with what is not `kind`."""
    models = []
    with path.open("rb") as lines:  # a text's splitlines would also split at characters that JSON strings may hold
        for number, line in enumerate(lines, start=1):
            try:
                models.append(model.model_validate_json(line))
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise UserError(f"{path}, line {number}: not {kind} ({reason}); delete it and rerun") from None
    return models


def require_disk(path: Path, megabytes: int) -> None:
    """Raise UserError when the disk that is to hold `path` has less than `megabytes` (10^6 bytes) free."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    free = shutil.disk_usage(folder).free // BYTES_PER_MEGABYTE
    if free < megabytes:
        raise UserError(f"{path}: found {free} MB free on its disk; at least {megabytes} MB are needed")


def benchmark(path: Path) -> tuple[float, float]:
    """Seconds and peak memory (MB) of a Snakemake benchmark file; a process too short to be sampled has no memory."""
    with path.open(encoding="utf-8", newline="") as lines:
        (row,) = csv.DictReader(lines, delimiter="\t")
    return float(row["s"]), float(row["max_rss"]) if row["max_rss"][:1].isdigit() else 0.0
