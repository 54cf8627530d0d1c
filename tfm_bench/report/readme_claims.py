"""The README's table of claims."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tfm_bench.report.tables import DASH, to_markdown


def claims_section(claims: pd.DataFrame) -> str:
    """A line per claim: the paper's value, what was measured with its interval, and the verdict."""
    rows = claims.to_dict("records")
    shown = {
        "claim": [row["claim"] for row in rows],
        "paper": [_number(row["paper_value"]) for row in rows],
        "here": [_measured(row) for row in rows],
        "unit": [row["unit"] for row in rows],
        "verdict": [row["verdict"] for row in rows],
    }
    return to_markdown(pd.DataFrame(shown))


def _measured(row: dict[Any, Any]) -> str:
    if pd.isna(row["low"]):
        return _number(row["measured"])
    return f"{_number(row['measured'])} [{_number(row['low'])}, {_number(row['high'])}]"


def _number(value: float) -> str:
    return DASH if pd.isna(value) else f"{value:.2f}"
