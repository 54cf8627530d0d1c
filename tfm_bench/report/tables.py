"""One table, three files: CSV in full precision, Markdown and booktabs LaTeX for reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tfm_bench.measure.files import write_text

VERSION = 1
DECIMALS = {"temperature": 1, "tokens_per_second": 1}
DASH = "–"
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    DASH: "--",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def write_table(table: pd.DataFrame, *, csv: Path, markdown: Path, latex: Path) -> None:
    """Write the table three times, each file atomically. Missing values are empty in CSV, a dash elsewhere."""
    write_text(csv, table.to_csv(index=False, lineterminator="\n"))
    write_text(markdown, to_markdown(table))
    write_text(latex, to_latex(table))


def to_markdown(table: pd.DataFrame) -> str:
    """Pipe table with the column names as they stand in the CSV; numbers to the right."""
    rules = ["---:" if numeric else "---" for numeric in _numeric(table)]
    rows = [list(table.columns), rules, *_cells(table)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def to_latex(table: pd.DataFrame) -> str:
    """A booktabs tabular, without float or caption, to be \\input; needs the package booktabs."""
    columns = "".join("r" if numeric else "l" for numeric in _numeric(table))
    header, *body = [" & ".join(map(escape_latex, row)) + r" \\" for row in [list(table.columns), *_cells(table)]]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def escape_latex(text: str) -> str:
    """Text in which no character has a meaning to LaTeX; the dash for missing values becomes an en dash."""
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)


def format_cell(column: str, value: object) -> str:
    """A value for reading: two decimals unless DECIMALS says otherwise; a dash where it is missing."""
    if pd.isna(value):
        return DASH
    if isinstance(value, float):
        return f"{value:.{DECIMALS.get(column, 2)}f}"
    return str(value)


def _cells(table: pd.DataFrame) -> list[list[str]]:
    return [
        [format_cell(column, value) for column, value in zip(table.columns, row, strict=True)]
        for row in table.itertuples(index=False, name=None)
    ]


def _numeric(table: pd.DataFrame) -> Sequence[bool]:
    return [pd.api.types.is_numeric_dtype(dtype) for dtype in table.dtypes]
