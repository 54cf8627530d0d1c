"""Where and when the numbers of report.html were measured, from the records that they come from."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfm_bench.errors import UserError

SHORT_COMMIT = 12


class Origin(NamedTuple):
    """What one record says of its measuring; empty where it does not say."""

    date: str
    stack: str
    dataset: str
    temperature: str
    device: str
    threads: str
    dtype: str
    torch: str
    commit: str


def read_origins(path: Path) -> set[Origin]:
    """Origins of raw records (JSON lines), or of a measured CSV file with columns of their names.

    Raises UserError naming the file when a record has no time.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows: Iterable[Mapping[str, Any]] = map(_flat, file) if path.suffix == ".jsonl" else csv.DictReader(file)
        try:
            return {_origin(row) for row in rows}
        except (KeyError, json.JSONDecodeError) as error:
            raise UserError(f"{path}: found a record without origin ({error}); delete it and rerun") from None


def facts(origins: Iterable[Origin]) -> dict[str, str]:
    """Name -> every value of it, without those that no record has; the first and the last day of the dates."""
    known = list(origins)
    values = {name: sorted({getattr(origin, name) for origin in known} - {""}) for name in Origin._fields}
    days = values.pop("date")
    measured = {"measured": " to ".join(dict.fromkeys((days[0], days[-1])))} if days else {}
    return measured | {name: ", ".join(found) for name, found in values.items() if found}


def _flat(line: str) -> dict[str, Any]:
    """A raw record with what stands in its provenance and settings on one level."""
    record = json.loads(line)
    settings = record["settings"]
    stack = settings.get("stack") or settings.get("kernels") or {}
    asked = {key: settings.get(key) for key in ("dataset", "temperature")}
    return asked | {"stack": stack.get("name"), "dtype": stack.get("dtype")} | record["provenance"]


def _origin(row: Mapping[str, Any]) -> Origin:
    """Cells say when they finished, all others when they were measured."""
    commit = str(row.get("commit") or "")[:SHORT_COMMIT]
    changed = " with uncommitted changes" if commit and row.get("dirty") else ""
    torch = row.get("torch") or row.get("versions", {}).get("torch")
    time = row["measured_at"] if "measured_at" in row else row["finished_at"]
    asked = (row.get("stack"), row.get("dataset"), row.get("temperature"))
    known = (str(time)[:10], *asked, row["device"], row["threads"], row.get("dtype"), torch, commit + changed)
    return Origin._make("" if value is None else str(value) for value in known)
