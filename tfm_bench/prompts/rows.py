"""Rows of the files that prompts are published in: JSON lines (also gzipped), JSON, parquet and CSV."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tfm_bench.errors import UserError

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".txt", ".gz", ".json", ".parquet", ".csv")


class Identified(Protocol):
    """Anything with an id that is unique in its file."""

    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=Identified)


def read_items(file: Path, convert: Callable[[int, Any], Item]) -> list[Item]:
    """Every row of a file, converted. `convert` is given its number (from 1; in JSON lines, of the line) and the row.

    Raises UserError, one line with file and number: an unreadable file, a row that `convert` fails on, an id that
    comes twice, no row at all.
    """
    items: dict[str, Item] = {}
    for number, row in numbered_rows(file):
        try:
            item = convert(number, row)
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(f"{file}:{number}: found a line that is no prompt ({error!r})") from None
        if item.id in items:
            raise UserError(f"{file}:{number}: found id {item.id!r} a second time; ids are unique")
        items[item.id] = item
    if not items:
        raise UserError(f"{file}: found no prompts; accepted is one JSON object a line")
    return list(items.values())


def numbered_rows(file: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Any]]:
    """Number and content of each row, in the file's order; the format follows from the suffix.

    columns: of parquet and CSV, only these are read. CSV cells are text as it stands. Raises UserError for a file of
    another kind, one that cannot be read and a line that is no JSON.
    """
    if file.suffix in (".parquet", ".csv"):
        return enumerate(_table(file, columns), start=1)
    if file.suffix == ".json":
        return enumerate(_json_list(file), start=1)
    if file.suffix in SUFFIXES:
        return _json_lines(file)
    raise UserError(f"{file}: found a file of an unknown kind; accepted are {', '.join(SUFFIXES)}")


def _table(file: Path, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    import pandas as pd

    wanted = None if columns is None else list(columns)
    try:
        if file.suffix == ".csv":
            frame = pd.read_csv(file, usecols=wanted, dtype=str, keep_default_na=False)
        else:
            frame = pd.read_parquet(file, columns=wanted, engine="pyarrow")
    except (OSError, ValueError) as error:  # pyarrow's and pandas' errors on content are ValueErrors
        raise UserError(f"{file}: found a file that cannot be read ({' '.join(str(error).split())})") from None
    return frame.to_dict("records")


def _json_list(file: Path) -> list[Any]:
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: found a file that cannot be read ({error})") from None
    if not isinstance(loaded, list):
        raise UserError(f"{file}: found {type(loaded).__name__}; accepted is a list of objects")
    return loaded


def _json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}:{number}: found a line that is no prompt ({error!r})") from None
        yield number, row


def _lines(file: Path) -> list[str]:
    try:
        content = file.read_bytes()
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{file}: found a file that cannot be read ({error})") from None
    # Not splitlines(): JSON strings may hold U+2028 and its like as they are.
    return text.split("\n")
