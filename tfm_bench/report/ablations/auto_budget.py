"""Trees that stop by themselves against fixed budgets, and the cost curves that they stop by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.ablations import AUTO
from tfm_bench.config import DEFAULT_VARIANT, TREE_METHODS
from tfm_bench.measure.probe_records import probe_table
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import CELL, arm_rows, decode_note, paired_ratio
from tfm_bench.report.arms import OK, ArmData, arms_of
from tfm_bench.report.panels import interval_line, noise_band
from tfm_bench.report.style import METHOD_STYLES, MethodStyle, figure_legend, house_style, log2_nodes, new_figure

VERSION = 1
DEV, TEST = "dev", "test"
NODES = ["draft_nodes", "draft_nodes_p20", "draft_nodes_p80"]
CURVE = ["round_ms_median", "round_ms_p20", "round_ms_p80", "fitted_ms"]
RATIO = ["best_fixed_ratio", "best_fixed_ratio_low", "best_fixed_ratio_high"]
COLUMNS = [
    *[*CELL, "method", "budget", "expansion_width", "variant", *NODES, "prompts", "repeats"],
    *["acceptance_length", "acceptance_length_low", "acceptance_length_high"],
    *["round_time_ms", "round_time_ms_low", "round_time_ms_high", "tokens_per_second"],
    *["speedup", "speedup_low", "speedup_high", "noise_low", "noise_high"],
    *["chosen_on", *RATIO, "rounds", *CURVE, "degenerate_prompts", "status"],
]
AUTO_STYLE = MethodStyle("stops by itself", "#000000", "*", "", "")
CHOSEN_STYLE = MethodStyle("best fixed budget on dev", "#000000", "o", "", "")


def table(data: AblationData) -> pd.DataFrame:
    """A row per tree arm on the test prompts, and one per method and size of tree of the measured cost curves.

    chosen_on marks the fixed budget that was fastest on dev; best_fixed_ratio is an arm's speed over that of this
    budget, paired by prompt. draft_nodes of an arm: drafts per round, mean and percentiles over rounds.
    """
    splits = {split: rows for split, rows in data.decode.groupby("split")}
    best = _best_fixed(splits[DEV]) if DEV in splits else {}
    sizes = _draft_nodes(data)

    def further(arm: ArmData, arms: list[ArmData]) -> dict[str, Any]:
        chosen = next((one for one in arms if _key(one) == (arm.method, best.get(arm.method), DEFAULT_VARIANT)), None)
        own = sizes.get((arm.method, arm.budget, arm.variant), [0])
        percentiles = np.percentile(own, [20, 80])
        nodes = dict(zip(NODES, (float(np.mean(own)), *map(float, percentiles)), strict=True))
        mark = {"chosen_on": DEV if chosen is arm else None, "rounds": len(own)}
        return nodes | mark | paired_ratio(RATIO[0], arm, chosen, ArmData.speed)

    arms = arm_rows(splits[TEST], further=further)
    place = {column: arms[column].iloc[0] for column in CELL}
    curve = probe_table(data.probe).assign(**place, variant=AUTO, status=OK)
    drawn = [arms[arms["method"].isin(TREE_METHODS)].dropna(axis=1, how="all"), curve]
    return pd.concat(drawn, ignore_index=True).reindex(columns=COLUMNS)


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals."""
    return decode_note(data.decode)


def figure(table: pd.DataFrame, note: str) -> Figure:
    """Panels per tree method: speedup over the size of trees, and the cost curve below."""
    arms, curve = table[table["fitted_ms"].isna()], table[table["fitted_ms"].notna()]
    methods = list(arms["method"].unique())
    with house_style():
        drawn, (top, bottom) = new_figure(2, len(methods), note)
        for method, above, below in zip(methods, top, bottom, strict=True):
            style = METHOD_STYLES[method]
            _speedup(above, arms[arms["method"] == method], style)
            _curve(below, curve[curve["method"] == method], style)
            above.set_title(style.label, loc="left")
            below.set_xlabel("drafts per round")
        top[0].set_ylabel("speedup over AR")
        bottom[0].set_ylabel("time of a round (ms), medians")
        figure_legend(drawn, [top, bottom])
    return drawn


def _key(arm: ArmData) -> tuple[str, int, str]:
    return arm.method, arm.budget, arm.variant


def _best_fixed(dev: pd.DataFrame) -> dict[str, int]:
    """Per method the fixed budget with the most tokens per second."""
    best: dict[str, ArmData] = {}
    for arm in arms_of(dev):
        if arm.method not in TREE_METHODS or arm.variant != DEFAULT_VARIANT or arm.status != OK:
            continue
        if arm.method not in best or arm.speed().value() > best[arm.method].speed().value():
            best[arm.method] = arm
    return {method: arm.budget for method, arm in best.items()}


def _draft_nodes(data: AblationData) -> dict[tuple[str, int, str], list[int]]:
    """Drafts of each round of the test prompts, by (method, budget, variant).

    Rounds do not say their split; they stand cell by cell, repeat after repeat and in each of them dev before test.
    """
    cells = sorted({(repeat, split) for repeat, split in zip(data.decode["repeat"], data.decode["split"], strict=True)})
    each = len(data.rounds) // len(cells)
    sizes: dict[tuple[str, int, str], list[int]] = {}
    for index, (_, split) in enumerate(cells):
        for record in data.rounds[index * each : (index + 1) * each]:
            if split == TEST and not record.control:
                own = sizes.setdefault((record.method, record.budget, record.variant), [])
                own += [width - 1 for width in record.verify_width]
    return {key: own for key, own in sizes.items() if own}


def _speedup(axes: Axes, rows: pd.DataFrame, style: MethodStyle) -> None:
    fixed, auto = (rows[(rows["variant"] == AUTO) == stops] for stops in (False, True))
    noise_band(axes, rows)
    interval_line(axes, fixed, "draft_nodes", "speedup", style)
    chosen = fixed[fixed["chosen_on"] == DEV]
    ring = {"markersize": 9, "markerfacecolor": "none", "linestyle": ""}
    look: dict[str, Any] = {"color": CHOSEN_STYLE.colour, "marker": CHOSEN_STYLE.marker, **ring}
    axes.plot(chosen["draft_nodes"], chosen["speedup"], label=CHOSEN_STYLE.label, **look)
    _whiskers(axes, auto, ("draft_nodes", "speedup"), (("p20", "p80"), ("low", "high")), AUTO_STYLE, 8)
    log2_nodes(axes, fixed["budget"])
    axes.set_ylim(bottom=0)


def _curve(axes: Axes, rows: pd.DataFrame, style: MethodStyle) -> None:
    medians = rows.rename(columns={f"round_ms_{end}": f"round_ms_median_{end}" for end in ("p20", "p80")})
    shown = MethodStyle("_", style.colour, style.marker, "", "")
    _whiskers(axes, medians, ("draft_nodes", "round_ms_median"), (None, ("p20", "p80")), shown, 4)
    axes.plot(rows["draft_nodes"], rows["fitted_ms"], color="black", linewidth=0.9, label="convex fit of the medians")
    log2_nodes(axes, rows["draft_nodes"])
    axes.set_ylim(bottom=0)


def _whiskers(
    axes: Axes,
    rows: pd.DataFrame,
    columns: tuple[str, str],
    ends: tuple[tuple[str, str] | None, tuple[str, str] | None],
    style: MethodStyle,
    size: int,
) -> None:
    """Marks at two columns; ends: suffixes of the columns that hold the ends of level and upright whiskers."""
    reach: dict[str, Any] = {}
    for name, column, pair in zip(("xerr", "yerr"), columns, ends, strict=True):
        if pair is not None:
            low, high = (rows[f"{column}_{end}"] for end in pair)
            reach[name] = [(rows[column] - low).clip(lower=0), (high - rows[column]).clip(lower=0)]
    look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": "", "markersize": size}
    axes.errorbar(rows[columns[0]], rows[columns[1]], **reach, **look, elinewidth=1.0, label=style.label)
