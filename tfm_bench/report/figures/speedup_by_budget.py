"""Speedup over plain decoding against node budget: one line per method, and the noise of the machine around 1."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.measure.statistics import ratio, ratio_interval
from tfm_bench.report.arms import OK, arms_of, groups_of, noise_floor, not_degenerate, status_of_pair
from tfm_bench.report.budget_lines import budget_lines
from tfm_bench.report.panels import dataset_panels
from tfm_bench.report.style import house_style

VERSION = 1
COLUMNS = [
    *["stack", "dataset", "temperature", "method", "budget", "expansion_width", "verify_width", "prompts"],
    *["speedup", "speedup_low", "speedup_high", "noise_low", "noise_high"],
]
NOTE = "\nLine at 1: AR. Grey: that interval for AR over AR, measured twice in every process (A/A)."


def plotted_speedups(decode: pd.DataFrame) -> pd.DataFrame:
    """Speedup over `ar` with its interval per dataset, temperature and arm of the test split.

    Without prompts whose text is a loop, and without arms that may claim no speedup: they failed, are not lossless or
    ran on another machine than `ar`.
    """
    rows = []
    for temperature, dataset, whole in groups_of(decode[decode["split"] == "test"], pooled=False):
        group = not_degenerate(whole)
        arms, noise = arms_of(group, whole), noise_floor(group)
        baselines = [arm for arm in arms if arm.method == "ar"]
        for baseline, arm in ((baseline, arm) for baseline in baselines for arm in arms if arm is not baseline):
            if status_of_pair(arm, baseline) != OK:
                continue
            interval = ratio_interval(arm.speed(), baseline.speed())
            place = [arm.rows["stack"].iloc[0], dataset, temperature, arm.method, arm.budget, arm.expansion_width]
            numbers = [ratio(arm.speed(), baseline.speed()), interval.low, interval.high, noise.low, noise.high]
            rows.append([*place, arm.verify_width, arm.prompts, *numbers])
    return pd.DataFrame(rows, columns=COLUMNS)


def figure_speedup_by_budget(data: pd.DataFrame, note: str) -> Figure:
    """Panels temperature × dataset with log2 budgets; axes start at 0, each panel on its own scale."""
    with house_style():
        return dataset_panels(data, note + NOTE, _panel, x="budget (draft nodes)", y="speedup over AR")[0]


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    for low, high in data[["noise_low", "noise_high"]].drop_duplicates().dropna().itertuples(index=False):
        axes.axhspan(low, high, color="#999999", alpha=0.4, linewidth=0)
    axes.axhline(1.0, color="black", linewidth=0.7)
    if len(data):
        budget_lines(axes, data, "speedup", bottom=0)
