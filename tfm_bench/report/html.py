"""results/report.html: one file that holds all it shows, so that it reads the same offline and years later."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tfm_bench.errors import UserError
from tfm_bench.measure.files import write_text
from tfm_bench.report.claims import COLUMNS
from tfm_bench.report.html_items import Item, is_number, read_caption, read_picture, read_table, shown
from tfm_bench.report.html_origins import Origin, facts, read_origins

VERSION = 1
TEMPLATES = Path(__file__).with_name("templates")
VERDICTS = {"reproduced": "good", "direction only": "part", "contradicted": "bad"}


def html_report(items: Sequence[Item], claims: Item, output: Path) -> None:
    """Write the page: claims, then figures by category in the order of `items`, then tables.

    The caption of `claims` introduces the page. Raises UserError naming the file that cannot be shown.
    """
    every = [claims, *items]
    origins = {path: read_origins(path) for path in dict.fromkeys(path for item in every for path in item.records)}
    figures: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        if item.image is not None:
            figures.setdefault(item.category, []).append(_view(item, origins))
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    page = _environment().get_template("report.html.j2")
    text = page.render(
        claims=_view(claims, origins),
        rows=claim_rows(claims.data),
        facts=facts(origin for found in origins.values() for origin in found),
        figures=figures,
        tables=[_view(item, origins) for item in items if item.image is None],
        policy=content_policy(style, script),
        style=Markup(style),
        script=Markup(script),
    )
    write_text(output, text)


def content_policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which only this style and script act and nothing is fetched."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (style, script))
    style_hash, script_hash = (f"'sha256-{value}'" for value in hashes)
    allowed = f"img-src data:; style-src {style_hash}; script-src {script_hash}"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def claim_rows(path: Path) -> list[dict[str, str]]:
    """A mapping per claim: its columns for reading, `interval` of low and high, and the class of its verdict.

    Raises UserError naming a column that is missing.
    """
    table = read_table(path)
    missing = [column for column in COLUMNS if column not in table.columns]
    if missing:
        raise UserError(f"{path}: found no column {missing[0]!r}; its columns are {', '.join(COLUMNS)}")
    rows = [dict(zip(table.columns, (cell.value for cell in row), strict=True)) for row in table.rows]
    return [
        {name: shown(value) for name, value in row.items()}
        | {"value": row["measured"], "paper": row["paper_value"], "kind": VERDICTS.get(row["verdict"], "none")}
        | {"interval": f"{shown(row['low'])} to {shown(row['high'])}" if is_number(row["low"]) else ""}
        for row in rows
    ]


def _view(item: Item, origins: Mapping[Path, set[Origin]]) -> dict[str, Any]:
    """What the template needs of one item."""
    measured = facts(origin for path in item.records for origin in origins[path])
    when = measured.pop("measured", "")
    return {
        "item": item,
        "caption": read_caption(item.caption),
        "picture": None if item.image is None else read_picture(item.image),
        "table": read_table(item.data),
        "measured": "; ".join([when, *(f"{name} {value}" for name, value in measured.items())]),
    }


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
