"""Parts of a Markdown file that are made from data and kept between two markers."""

from __future__ import annotations


def with_section(text: str, name: str, section: str) -> str:
    """`text` with the part between the markers of `name` replaced. Raises ValueError when a marker is missing."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"README lacks {begin} or {end}")
    return f"{head}{begin}\n\n{section}\n{end}{tail}"
