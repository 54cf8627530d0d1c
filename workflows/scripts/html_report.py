"""The report: one page that works offline."""

from pathlib import Path
from typing import Any

from _entry import entry

from tfm_bench.report.html import html_report
from tfm_bench.report.html_items import Item


def item(entry: dict[str, Any]) -> Item:
    """An item of the report from the strings in params."""
    paths = {key: Path(entry[key]) for key in ("caption", "data", "image") if key in entry}
    return Item(**entry | paths | {"records": tuple(map(Path, entry["records"]))})


with entry(snakemake.log[0]):
    html_report(
        [item(entry) for entry in snakemake.params.shown], item(snakemake.params.claims), Path(snakemake.output[0])
    )
