"""Acceptance by depth of drafter and Weaver against what a factorised drafter could reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from tfm_bench.measure.probe_records import probe_table
from tfm_bench.measure.probes.ceiling import TEMPERATURE
from tfm_bench.measure.statistics import Array, Interval, Rate, rate_interval
from tfm_bench.report.ablation_data import AblationData, probe_note
from tfm_bench.report.style import METHOD_STYLES, MethodStyle, figure_legend, house_style, new_figure

VERSION = 1
COLUMNS = [
    *["stack", "dataset", "temperature", "depth", "drafter", "places", "samples"],
    *["acceptance", "acceptance_low", "acceptance_high", "acceptance_same_samples"],
    *["above_ceiling", "above_ceiling_low", "above_ceiling_high"],
    *["above_best_factorised", "above_best_factorised_low", "above_best_factorised_high"],
]
TICKS = 9  # that find room below a panel
BOUNDS = ("ceiling", "best_factorised")
_CHAIN, _TFM = METHOD_STYLES["dflash_chain"], METHOD_STYLES["tfm"]
STYLES = {
    "best_factorised": MethodStyle("best factorised", "#000000", "", "-", ""),
    "ceiling": MethodStyle("oracle marginal (ceiling)", "#009E73", "s", (0, (1, 1)), ""),
    "ceiling_argmax": MethodStyle("its argmax", "#009E73", "s", (0, (1, 1)), ""),
    "dflash": MethodStyle("DFlash marginal", _CHAIN.colour, _CHAIN.marker, _CHAIN.line, ""),
    "dflash_argmax": MethodStyle("its argmax", _CHAIN.colour, _CHAIN.marker, _CHAIN.line, ""),
    "weaver": MethodStyle("Weaver", _TFM.colour, _TFM.marker, _TFM.line, ""),
    "weaver_argmax": MethodStyle("its argmax", _TFM.colour, _TFM.marker, _TFM.line, ""),
}
PANELS = {
    "sampled from": ["best_factorised", "ceiling", "dflash", "weaver"],
    "its likeliest token": ["best_factorised", "ceiling_argmax", "dflash_argmax", "weaver_argmax"],
}


def table(data: AblationData) -> pd.DataFrame:
    """A row per dataset, depth and drafter: mean over places, intervals from a bootstrap over places.

    above_ceiling and above_best_factorised are paired differences, place by place, from the estimate of the bound that
    is too high (fitted and judged on the same samples): what passes it passes the bound.
    """
    settings = data.probe[0].settings
    origin = {"stack": settings.stack.name, "temperature": TEMPERATURE}
    rows = []
    for (dataset, depth), at_depth in probe_table(data.probe).groupby(["dataset", "depth"], sort=False):
        by_place = at_depth.pivot(index="place", columns="drafter")
        accepted, same, samples = (by_place[name] for name in ("acceptance", "acceptance_same_samples", "samples"))
        for drafter in STYLES:
            found = accepted[drafter].to_numpy()
            row = {**origin, "dataset": dataset, "depth": depth, "drafter": drafter, "places": len(found)}
            row |= {"samples": int(samples[drafter].sum()), **_with_interval("acceptance", found)}
            row["acceptance_same_samples"] = float(same[drafter].mean())
            for bound in BOUNDS:
                row |= _with_interval(f"above_{bound}", found - same[bound].to_numpy())
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def note(data: AblationData) -> str:
    """Small print of the figure."""
    found, ceiling = probe_table(data.probe), data.probe[0].settings.ablations.ceiling
    places = found.groupby("dataset", sort=False)["place"].nunique()
    oracle = found[found["drafter"] == "ceiling"]
    gaps = (oracle["acceptance_same_samples"] - oracle["acceptance"]).groupby(oracle["dataset"], sort=False).mean()
    what = (
        f"n = {_listed(places, 'd')} places, T = {TEMPERATURE:g}, {ceiling.samples} samples each.\n"
        "Bands: 95 % percentile intervals, bootstrap over places, 10,000 draws.\n"
        "Oracles: fitted on half of the samples, judged on the others; on the same samples the ceiling is higher by "
        f"{_listed(gaps, '.4f')}."
    )
    return probe_note(data.probe, what)


def figure(table: pd.DataFrame, note: str) -> Figure:
    """By dataset: acceptance of sampling, of the likeliest token, and what Weaver has above the two bounds."""
    depths, datasets = int(table["depth"].max()), list(table["dataset"].unique())
    with house_style():
        figure, panels = new_figure(len(datasets), len(PANELS) + 1, note)
        for line, dataset in zip(panels, datasets, strict=True):
            _of_dataset(line, table[table["dataset"] == dataset])
            line[0].set_ylabel(f"{dataset}: acceptance")
            for axes in line:
                axes.xaxis.set_major_locator(FixedLocator(range(1, depths + 1, 1 + depths // TICKS)))
        for axes in panels[-1]:
            axes.set_xlabel("depth")
        figure_legend(figure, [line[: len(PANELS)] for line in panels])
    return figure


def _of_dataset(line: Sequence[Axes], rows: pd.DataFrame) -> None:
    for axes, (title, drafters) in zip(line, PANELS.items(), strict=False):
        for drafter in drafters:
            label = STYLES[drafter.removesuffix("_argmax")].label
            _line(axes, rows[rows["drafter"] == drafter], "acceptance", STYLES[drafter], label)
        axes.set_title(title, loc="left")
        axes.set_ylim(0, 1.02)
    _differences(line[-1], rows[rows["drafter"] == "weaver"])


def _differences(axes: Axes, weaver: pd.DataFrame) -> None:
    """Paired differences of Weaver from the two bounds; above 0 no factorised drafter gets."""
    for bound in BOUNDS:
        _line(axes, weaver, f"above_{bound}", STYLES[bound], STYLES[bound].label)
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set_title("Weaver less the bound", loc="left")


def _line(axes: Axes, rows: pd.DataFrame, column: str, style: MethodStyle, label: str) -> None:
    axes.plot(rows["depth"], rows[column], label=label, **style.of_lines)
    low, high = rows[f"{column}_low"], rows[f"{column}_high"]
    axes.fill_between(rows["depth"], low, high, color=style.colour, alpha=0.15, linewidth=0)


def _listed(values: pd.Series, form: str) -> str:
    """A value per dataset, in words."""
    return ", ".join(f"{value:{form}} ({dataset})" for dataset, value in values.items())


def _with_interval(name: str, values: Array) -> dict[str, float]:
    interval = _mean_interval(values)
    return {name: float(values.mean()), f"{name}_low": interval.low, f"{name}_high": interval.high}


def _mean_interval(values: Array) -> Interval:
    """Of the mean over places."""
    return rate_interval(Rate(values[None], np.ones_like(values)[None]))
