"""One ablation: its records are checked, its table is made, and the figure that draws it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

import pandas as pd
from matplotlib.figure import Figure

from tfm_bench.measure.invariants import check_invariants
from tfm_bench.report.ablation_data import AblationData, read_ablation
from tfm_bench.report.style import save_figure
from tfm_bench.report.tables import write_table


class Report(Protocol):
    """A module of tfm_bench.report.ablations; see its package."""

    def table(self, data: AblationData) -> pd.DataFrame: ...

    def note(self, data: AblationData) -> str: ...

    def figure(self, table: pd.DataFrame, note: str) -> Figure: ...


def ablation_report(name: str, raw: Mapping[str, Path], output: Mapping[str, Path]) -> None:
    """raw: `decode`, `probe` or both; output: csv, markdown, latex, pdf, png. Raises UserError for damaged records."""
    if "decode" in raw:
        check_invariants([raw["decode"]])
    report = cast(Report, importlib.import_module(f"tfm_bench.report.ablations.{name}"))
    data = read_ablation(raw.get("decode"), raw.get("probe"))
    table = report.table(data)
    write_table(table, csv=output["csv"], markdown=output["markdown"], latex=output["latex"])
    save_figure(report.figure(table, report.note(data)), pdf=output["pdf"], png=output["png"])
