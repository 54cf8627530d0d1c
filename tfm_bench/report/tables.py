"""One table, three files: CSV in full precision, Markdown and booktabs LaTeX for reading, the best in bold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tfm_bench.measure.files import write_text

VERSION = 2
DECIMALS = {"temperature": 1, "tokens_per_second": 1}
DASH = "–"
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    DASH: "--",
    **{"×": r"$\times$", "−": "$-$", "≤": r"$\le$", "≥": r"$\ge$", "→": r"$\to$", "µ": r"\textmu{}", "…": r"\dots{}"},
    **{"⌈": r"$\lceil$", "⌉": r"$\rceil$", "τ": r"$\tau$", "θ": r"$\theta$", "Σ": r"$\Sigma$", "√": r"$\surd$"},
    "£": r"\pounds{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


@dataclass(frozen=True)
class Best:
    """The largest `column` among rows that agree in `by` is bold, where its interval lies above those of all others.

    The interval is `<column>_low`, `<column>_high`. Rows without a value do not compete; a value without an interval
    leaves the question open, so nothing in its group is bold; nor is a row that has no other beside it.
    """

    column: str
    by: tuple[str, ...]

    def rows(self, table: pd.DataFrame) -> set[int]:
        """Places of the rows, from 0, whose value is bold."""
        ranked = table.reset_index(drop=True).dropna(subset=self.column).sort_values(self.column, ascending=False)
        groups = [rows for _, rows in ranked.groupby(list(self.by)) if len(rows) > 1]
        low, high = f"{self.column}_low", f"{self.column}_high"
        return {
            int(rows.index[0])
            for rows in groups
            if rows[[low, high]].notna().all(axis=None) and rows[low].iloc[0] > rows[high].iloc[1:].max()
        }


def write_table(table: pd.DataFrame, *, csv: Path, markdown: Path, latex: Path, best: Best | None = None) -> None:
    """Write the table three times, each file atomically. Missing values are empty in CSV, a dash elsewhere."""
    write_text(csv, table.to_csv(index=False, lineterminator="\n"))
    write_text(markdown, to_markdown(table, best))
    write_text(latex, to_latex(table, best))


def to_markdown(table: pd.DataFrame, best: Best | None = None) -> str:
    """Pipe table with the column names as they stand in the CSV; numbers to the right."""
    rules = ["---:" if numeric else "---" for numeric in _numeric(table)]
    body = _cells(table, best, escape=lambda cell: cell.replace("|", "\\|"), bold="**{}**")
    return "".join("| " + " | ".join(row) + " |\n" for row in [list(table.columns), rules, *body])


def to_latex(table: pd.DataFrame, best: Best | None = None) -> str:
    """A booktabs tabular, without float or caption, to be \\input; needs the package booktabs."""
    columns = "".join("r" if numeric else "l" for numeric in _numeric(table))
    cells = _cells(table, best, escape=escape_latex, bold=r"\textbf{{{}}}")
    header, *body = [" & ".join(row) + r" \\" for row in [[*map(escape_latex, table.columns)], *cells]]
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


def _cells(table: pd.DataFrame, best: Best | None, *, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Every cell as text; bold: the format of the best ones."""
    rows = [
        [escape(format_cell(column, value)) for column, value in zip(table.columns, row, strict=True)]
        for row in table.itertuples(index=False, name=None)
    ]
    if best is not None:
        place = list(table.columns).index(best.column)
        for row in best.rows(table):
            rows[row][place] = bold.format(rows[row][place])
    return rows


def _numeric(table: pd.DataFrame) -> Sequence[bool]:
    return [pd.api.types.is_numeric_dtype(dtype) for dtype in table.dtypes]
