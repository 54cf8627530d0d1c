"""The noise of the machine: plain decoding against itself, prompt by prompt (A/A)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.report.arms import ALL_DATASETS, OK, groups_of, noise_floor, not_degenerate
from tfm_bench.report.style import figure_legend, house_style, new_figure

VERSION = 1
COLUMNS = ["stack", "dataset", "temperature", "repeat", "prompt", "speed_ratio", "noise_low", "noise_high"]
RUN = ["dataset", "repeat", "prompt"]
MARKERS = "osD^v"
SPREAD = 0.56
NOTE = "\nDots: a prompt in one process, the control run of AR over the other. Boxes: what speedups are held against."


def plotted_noise(decode: pd.DataFrame) -> pd.DataFrame:
    """Per dataset and temperature of the test split its interval, then a row for each prompt of each repeat.

    speed_ratio: tokens per second of the control over those of the other run of `ar`; in the row of the interval,
    without repeat and prompt, that of their sums. "all" pools the datasets and has its interval alone. Without prompts
    whose text is a loop.
    """
    parts = []
    for temperature, dataset, whole in groups_of(decode[decode["split"] == "test"], pooled=True):
        group = not_degenerate(whole)
        runs, noise = _both_runs(group), noise_floor(group)
        if runs.empty:
            continue
        of_all = {"speed_ratio": _ratio(runs.sum()), "noise_low": noise.low, "noise_high": noise.high}
        single = runs.assign(speed_ratio=_ratio(runs)).reset_index() if dataset != ALL_DATASETS else pd.DataFrame()
        rows = pd.concat([pd.DataFrame([of_all]), single], ignore_index=True)
        parts.append(rows.assign(stack=group["stack"].iloc[0], dataset=dataset, temperature=temperature))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return table.reindex(columns=COLUMNS).astype({"repeat": "Int64", "prompt": "Int64"})


def _both_runs(group: pd.DataFrame) -> pd.DataFrame:
    """Tokens and milliseconds of the two runs of `ar`, by RUN; only where both gave numbers."""
    plain = group[(group["method"] == "ar") & (group["status"] == OK)]
    control = plain["control"].astype(bool)
    one, other = (
        rows.set_index(RUN)[["tokens", "decode_ms"]].astype(float) for rows in (plain[control], plain[~control])
    )
    return one.join(other, how="inner", suffixes=("_control", "_other"))


def _ratio(runs: pd.DataFrame | pd.Series) -> pd.Series | float:
    """Speed of the control over that of the other run."""
    return runs["tokens_control"] / runs["decode_ms_control"] / (runs["tokens_other"] / runs["decode_ms_other"])


def figure_noise_floor(data: pd.DataFrame, note: str) -> Figure:
    """A panel per temperature, all on one scale: dots over datasets, one marker per repeat."""
    temperatures = sorted(data["temperature"].unique())
    with house_style():
        figure, panels = new_figure(len(temperatures), 1, note + NOTE)
        for (axes,), temperature in zip(panels, temperatures, strict=True):
            axes.sharey(panels[0][0])
            _panel(axes, data[data["temperature"] == temperature])
            axes.set_title(f"T = {temperature:g}", loc="left")
            axes.set_ylabel("AR over AR (speed)")
        figure_legend(figure, panels)
    return figure


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    axes.axhline(1.0, color="black", linewidth=0.7)
    whole = data[data["prompt"].isna()].reset_index(drop=True)
    for place, row in enumerate(whole.to_dict("records")):
        _interval(axes, place, row)
        _dots(axes, place, data[data["prompt"].notna() & (data["dataset"] == row["dataset"])])
    axes.set_xticks(range(len(whole)), [_tick(row) for row in whole.to_dict("records")])
    axes.set_xlim(-0.6, len(whole) - 0.4)
    axes.grid(visible=False, axis="x")


def _dots(axes: Axes, place: int, rows: pd.DataFrame) -> None:
    """Repeats side by side, prompts in their order from left to right."""
    repeats = sorted(rows["repeat"].unique())
    width = SPREAD / max(len(repeats), 1)
    for rank, repeat in enumerate(repeats):
        dots = rows[rows["repeat"] == repeat]
        steps = (np.arange(len(dots)) + 0.5) / len(dots) * width * 0.85
        axes.plot(
            place - SPREAD / 2 + rank * width + steps,
            dots["speed_ratio"],
            color="#0072B2" if rank % 2 == 0 else "#D55E00",
            marker=MARKERS[rank % len(MARKERS)],
            markersize=2.5,
            linestyle="",
            label=f"process {repeat}",
        )


def _interval(axes: Axes, place: int, row: dict[str, Any]) -> None:
    """A grey box behind the dots where there is an interval, and a dashed line at the ratio of all."""
    ends = [place - SPREAD / 2 - 0.03, place + SPREAD / 2 + 0.03]
    low, high = row["noise_low"], row["noise_high"]
    if not np.isnan(low):
        axes.fill_between(ends, low, high, color="#999999", alpha=0.4, linewidth=0, label="A/A interval")
    axes.plot(ends, [row["speed_ratio"]] * 2, color="#444444", linewidth=1.0, linestyle="--", label="all prompts")


def _tick(row: dict[str, Any]) -> str:
    """A dataset and its interval in figures, under the axis, where no dot can lie."""
    if np.isnan(row["noise_low"]):
        return str(row["dataset"])
    return f"{row['dataset']}\n[{row['noise_low']:.3f}, {row['noise_high']:.3f}]"
