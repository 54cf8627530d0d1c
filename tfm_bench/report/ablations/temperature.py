"""Every method over temperatures: acceptance, speedup, and accepted drafts of `tfm` over the others'."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import ARM_ROW, arm_rows, decode_note, paired_ratio
from tfm_bench.report.arms import OK, ArmData
from tfm_bench.report.panels import interval_line, noise_band, start_at
from tfm_bench.report.style import METHOD_STYLES, figure_legend, house_style, new_figure

VERSION = 1
# Accepted drafts of `tfm` over those of another method with as many nodes.
RATIOS = {"drafts_over_ddtree": "ddtree", "drafts_over_chain": "dflash_chain"}
COLUMNS = [
    *[name for name in ARM_ROW if name not in ("prompt_tokens", "variant", "status")],
    *[f"{name}{end}" for name in RATIOS for end in ("", "_low", "_high")],
    "status",
]
ROWS = (("acceptance_length", "acceptance length", 1), ("speedup", "speedup over AR", 0))


def table(data: AblationData) -> pd.DataFrame:
    """A row per temperature, method and budget; those of `tfm` with their ratios to arms of the same budget, if any."""
    return arm_rows(data.decode, further=_ratios)[COLUMNS]


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals."""
    return f"{decode_note(data.decode)} Grey: A/A, AR over AR."


def figure(table: pd.DataFrame, note: str) -> Figure:
    """A column per budget of the trees; the chain is in each, at the largest budget up to it."""
    shown = table[table["status"] == OK]
    budgets = sorted(shown.loc[shown["method"] == "tfm", "budget"].unique())
    with house_style():
        drawn, panels = new_figure(len(ROWS) + 1, len(budgets), note)
        for place, budget in enumerate(budgets):
            rows = _of_budget(shown, budget)
            for line, (column, _, bottom) in zip(panels, ROWS, strict=False):
                _methods(line[place], rows, column, bottom)
            _gains(panels[-1][place], rows[rows["method"] == "tfm"])
            panels[0][place].set_title(_title(rows, budget), loc="left")
            panels[-1][place].set_xlabel("temperature")
        for line, label in zip(
            panels,
            [*(label for _, label, _ in ROWS), "accepted drafts of DFlash-TfM\nover those of the method"],
            strict=True,
        ):
            line[0].set_ylabel(label)
        figure_legend(drawn, panels)
    return drawn


def _ratios(arm: ArmData, arms: list[ArmData]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, method in RATIOS.items():
        same = [a for a in arms if arm.method == "tfm" and (a.method, a.budget) == (method, arm.budget)]
        found |= paired_ratio(name, arm, same[0] if same else None, ArmData.accepted_drafts)
    return found


def _of_budget(rows: pd.DataFrame, budget: int) -> pd.DataFrame:
    """Trees of this budget, and the chain of the largest budget up to it."""
    chains = rows[(rows["method"] == "dflash_chain") & (rows["budget"] <= budget)]
    trees = rows[rows["method"].isin(["ddtree", "tfm"]) & (rows["budget"] == budget)]
    return pd.concat([chains[chains["budget"] == chains["budget"].max()], trees])


def _title(rows: pd.DataFrame, budget: int) -> str:
    chain = rows.loc[rows["method"] == "dflash_chain", "budget"]
    return f"budget {budget}" + (f", chain {chain.iloc[0]}" if len(chain) and chain.iloc[0] != budget else "")


def _methods(axes: Axes, rows: pd.DataFrame, column: str, bottom: float) -> None:
    if column == "speedup":
        noise_band(axes, rows, "temperature")
    for method, own in rows.groupby("method", sort=False):
        interval_line(axes, own, "temperature", column, METHOD_STYLES[str(method)])
    axes.set_xticks(rows["temperature"].unique())
    start_at(axes, bottom)


def _gains(axes: Axes, rows: pd.DataFrame) -> None:
    """Each ratio in the look of the method that it is a ratio to."""
    axes.axhline(1.0, color="black", linewidth=0.7)
    for name, method in RATIOS.items():
        interval_line(axes, rows, "temperature", name, METHOD_STYLES[method])
    axes.set_xticks(rows["temperature"].unique())
    start_at(axes, 0)
