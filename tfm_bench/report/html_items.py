"""What report.html shows of one figure or table: caption, picture and numbers, each read from its file."""

from __future__ import annotations

import base64
import csv
import hashlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from docutils.core import publish_doctree, publish_parts
from docutils.utils import SystemMessage
from markupsafe import Markup

from tfm_bench.errors import UserError
from tfm_bench.report.style import PNG_DPI

SCREEN_DPI = 128  # a third larger than on paper, where the small print below the panels is meant to be read
PNG_HEAD = b"\x89PNG\r\n\x1a\n"
# A caption reads no file and holds no HTML; a mistake in it is an error, at level 2 as a warning already.
CAPTION_SETTINGS = {
    **{"file_insertion_enabled": False, "raw_enabled": False, "_disable_config": True},
    **{"report_level": 5, "halt_level": 2, "initial_header_level": 4, "input_encoding": "unicode"},
}


@dataclass(frozen=True)
class Item:
    """A figure or a table, by its files. image: None for a table; records: raw files that its numbers come from."""

    name: str
    category: str
    caption: Path
    data: Path
    command: str
    records: tuple[Path, ...]
    image: Path | None = None

    @property
    def title(self) -> str:
        """The name in words: `gdn_state_memory` is "GDN state memory"."""
        words = self.name.removeprefix("ablation_").replace("_", " ").replace("gdn", "GDN")
        return words[0].upper() + words[1:]

    @property
    def anchor(self) -> str:
        """Unique in the page: a table may have the name of a figure."""
        return f"{'table' if self.image is None else 'figure'}-{self.name}"


class Cell(NamedTuple):
    """A value as it is shown and as it is sorted; both are empty where it is missing."""

    text: str
    value: str


class Table(NamedTuple):
    """A CSV file: its columns, whether all values of a column are numbers, its rows, and the hash of the file."""

    columns: list[str]
    numeric: list[bool]
    rows: list[list[Cell]]
    sha256: str


class Picture(NamedTuple):
    """A PNG as a data URI, with its size in CSS pixels."""

    uri: str
    width: int
    height: int


class Caption(NamedTuple):
    """A caption as HTML, and its first sentence as text."""

    html: Markup
    sentence: str


def read_caption(path: Path) -> Caption:
    """Render reStructuredText. Raises UserError naming file and line of a mistake in it."""
    text = path.read_text(encoding="utf-8").replace(" %", "\N{NO-BREAK SPACE}%")
    try:
        tree = publish_doctree(text, source_path=str(path), settings_overrides=CAPTION_SETTINGS)
        parts = publish_parts(text, str(path), writer="html5", settings_overrides=CAPTION_SETTINGS)
    except SystemMessage as error:
        raise UserError(f"{' '.join(str(error).split())}; a caption is plain reStructuredText") from None
    sentence = " ".join(tree.astext().split()).partition(". ")[0].rstrip(".")
    return Caption(Markup(parts["fragment"]), sentence)


def read_picture(path: Path) -> Picture:
    """Raises UserError for a file that is no PNG."""
    data = path.read_bytes()
    if not data.startswith(PNG_HEAD):
        raise UserError(f"{path}: found no PNG; delete it and rerun")
    width, height = (round(side * SCREEN_DPI / PNG_DPI) for side in struct.unpack(">II", data[16:24]))
    return Picture(f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}", width, height)


def read_table(path: Path) -> Table:
    """Raises UserError for a file without columns, and for a row that is longer or shorter than they are."""
    data = path.read_bytes()
    columns, *rows = csv.reader(data.decode("utf-8").splitlines(keepends=True)) if data else [[]]
    odd = [number for number, row in enumerate(rows, start=1) if len(row) != len(columns)]
    if not columns or odd:
        found = f"row {odd[0]} with {len(rows[odd[0] - 1])} values" if odd else "nothing"
        raise UserError(
            f"{path}: found {found}; a table has columns, and a value for each in every row; delete and rerun"
        )
    numeric = [all(is_number(row[place]) for row in rows if row[place]) for place in range(len(columns))]
    cells = [[Cell(shown(value), value) for value in row] for row in rows]
    return Table(columns, numeric, cells, hashlib.sha256(data).hexdigest())


def is_number(text: str) -> bool:
    """Whether a cell is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def shown(text: str) -> str:
    """A cell for reading: fractions to four digits, but never less than their whole part; all else as it stands."""
    if ("." not in text and "e" not in text) or not is_number(text):
        return text
    value = float(text)
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"
