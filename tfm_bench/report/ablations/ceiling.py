"""Acceptance by depth of drafter and Weaver against what a factorised drafter could reach."""

from __future__ import annotations

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
    """A row per depth and drafter: mean over places, intervals from a bootstrap over places.

    above_ceiling and above_best_factorised are paired differences, place by place, from the estimate of the bound that
    is too high (fitted and judged on the same samples): what passes it passes the bound.
    """
    settings = data.probe[0].settings
    origin = {"stack": settings.stack.name, "dataset": settings.ablations.dataset, "temperature": TEMPERATURE}
    rows = []
    for depth, at_depth in probe_table(data.probe).groupby("depth"):
        by_place = at_depth.pivot(index="place", columns="drafter")
        accepted, same, samples = (by_place[name] for name in ("acceptance", "acceptance_same_samples", "samples"))
        for drafter in STYLES:
            found = accepted[drafter].to_numpy()
            row = {**origin, "depth": depth, "drafter": drafter, "places": len(found)}
            row |= {"samples": int(samples[drafter].sum()), **_with_interval("acceptance", found)}
            row["acceptance_same_samples"] = float(same[drafter].mean())
            for bound in BOUNDS:
                row |= _with_interval(f"above_{bound}", found - same[bound].to_numpy())
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def note(data: AblationData) -> str:
    """Small print of the figure."""
    found, settings = probe_table(data.probe), data.probe[0].settings
    split = found[found["drafter"] == "ceiling"]
    gap = (split["acceptance_same_samples"] - split["acceptance"]).mean()
    places, texts = found["place"].nunique(), found["prompt_id"].nunique()
    what = (
        f"n = {places} places in {texts} texts of {settings.ablations.dataset}, T = {TEMPERATURE:g}, "
        f"{settings.ablations.ceiling.samples} samples each.\n"
        "Bands: 95 % percentile intervals, bootstrap over places, 10,000 draws.\n"
        "Oracles: fitted on half of the samples, judged on the others; on the same samples the ceiling is "
        f"{gap:.4f} higher."
    )
    return probe_note(data.probe, what)


def figure(table: pd.DataFrame, note: str) -> Figure:
    """Acceptance of sampling, acceptance of the likeliest token, and what Weaver has above the two bounds."""
    depths = int(table["depth"].max())
    with house_style():
        figure, panels = new_figure(1, len(PANELS) + 1, note)
        for axes, (title, drafters) in zip(panels[0], PANELS.items(), strict=False):
            for drafter in drafters:
                rows = table[table["drafter"] == drafter]
                _line(axes, rows, "acceptance", STYLES[drafter], STYLES[drafter.removesuffix("_argmax")].label)
            axes.set_title(title, loc="left")
            axes.set_ylim(0, 1.02)
        panels[0][0].set_ylabel("acceptance")
        _differences(panels[0][-1], table[table["drafter"] == "weaver"])
        for axes in panels[0]:
            axes.set_xlabel("depth")
            axes.xaxis.set_major_locator(FixedLocator(range(1, depths + 1, 1 + depths // TICKS)))
        figure_legend(figure, [panels[0][: len(PANELS)]])
    return figure


def _differences(axes: Axes, weaver: pd.DataFrame) -> None:
    """Paired differences of Weaver from the two bounds; above 0 no factorised drafter gets."""
    for bound in BOUNDS:
        _line(axes, weaver, f"above_{bound}", STYLES[bound], STYLES[bound].label)
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set_title("Weaver less the bound", loc="left")
    axes.set_ylabel("difference of acceptance")


def _line(axes: Axes, rows: pd.DataFrame, column: str, style: MethodStyle, label: str) -> None:
    axes.plot(rows["depth"], rows[column], label=label, **style.of_lines)
    low, high = rows[f"{column}_low"], rows[f"{column}_high"]
    axes.fill_between(rows["depth"], low, high, color=style.colour, alpha=0.15, linewidth=0)


def _with_interval(name: str, values: Array) -> dict[str, float]:
    interval = _mean_interval(values)
    return {name: float(values.mean()), f"{name}_low": interval.low, f"{name}_high": interval.high}


def _mean_interval(values: Array) -> Interval:
    """Of the mean over places."""
    return rate_interval(Rate(values[None], np.ones_like(values)[None]))
