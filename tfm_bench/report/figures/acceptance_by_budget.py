"""Acceptance length against node budget: one line per tree method, the chain as reference."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.measure.statistics import rate_interval
from tfm_bench.report.arms import OK, arms_of, groups_of, not_degenerate
from tfm_bench.report.budget_lines import budget_lines
from tfm_bench.report.panels import dataset_panels
from tfm_bench.report.style import house_style

VERSION = 5


def plotted_acceptance(decode: pd.DataFrame) -> pd.DataFrame:
    """Acceptance length with its interval per dataset, temperature and arm of the test split.

    Without `ar`, whose length is 1, without prompts whose text is a loop, and without arms that failed or are not lossless.
    """
    rows = []
    for temperature, dataset, group in groups_of(decode[decode["split"] == "test"], pooled=False):
        for arm in arms_of(not_degenerate(group), group):
            if arm.method == "ar" or arm.status != OK:
                continue
            interval = rate_interval(arm.accepted_drafts())
            rows.append(
                {
                    "stack": group["stack"].iloc[0],
                    "dataset": dataset,
                    "temperature": temperature,
                    "method": arm.method,
                    "budget": arm.budget,
                    "expansion_width": arm.expansion_width,
                    "verify_width": arm.verify_width,
                    "prompts": arm.prompts,
                    "acceptance_length": arm.accepted_drafts().value() + 1,
                    "acceptance_length_low": interval.low + 1,
                    "acceptance_length_high": interval.high + 1,
                }
            )
    return pd.DataFrame(rows)


def figure_acceptance_by_budget(data: pd.DataFrame, note: str) -> Figure:
    """Panels temperature × dataset with log2 budgets; axes start at 1, the acceptance length without drafts."""
    with house_style():
        return dataset_panels(data, note, _panel, x="budget (draft nodes)", y="acceptance length")[0]


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    budget_lines(axes, data, "acceptance_length", bottom=1)
