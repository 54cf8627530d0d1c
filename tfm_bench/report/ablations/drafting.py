"""Where Weaver's gain comes from: chains, DDTree and DFlash-TfM beside Weavers that lack or misread an input."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.config import DEFAULT_VARIANT
from tfm_bench.measure.probe_records import probe_table
from tfm_bench.measure.statistics import (
    Rate,
    gain_share,
    gain_share_interval,
    rate_interval,
    ratio,
    ratio_interval,
)
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablation_rows import CELL, with_interval
from tfm_bench.report.arms import OK, ArmData, arms_of
from tfm_bench.report.style import METHOD_STYLES, MethodStyle, figure_legend, house_style, new_figure, origin_note

VERSION = 1
DEPTHS = range(1, 9)
MEASURES = ["accepted_drafts", "ratio_to_ddtree", "ratio_to_tfm", "gain_share", "spine_acceptance", "tree_acceptance"]
BY_DEPTH = MEASURES[-2:]
ARM = ["method", "variant", "budget"]
COLUMNS = [
    *[*CELL, *ARM, "counted_at", "depth", "prompts", "repeats"],
    *[f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")],
    "status",
]
# By variant, or by method where there is none; from what guesses blindly to what sees everything.
STYLES = {
    "chain_sampled": MethodStyle("chain, sampled", "#56B4E9", "v", ":", ""),
    "dflash_chain": replace(METHOD_STYLES["dflash_chain"], label="chain, argmax"),
    "ddtree": METHOD_STYLES["ddtree"],
    "weaver_no_residual": MethodStyle("no residual", "#000000", "x", ":", ""),
    "weaver_blind_to_path": MethodStyle("blind to path (retrained)", "#000000", "+", "--", ""),
    "weaver_wrong_parent": MethodStyle("wrong parents", "#CC79A7", "s", "-.", ""),
    "weaver_no_target_hidden": MethodStyle("no target hidden (retrained)", "#009E73", "^", "--", ""),
    "weaver_mixed_loss": MethodStyle("mixed loss (retrained)", "#999999", "P", ":", ""),
    "tfm": METHOD_STYLES["tfm"],
}
TITLES = {
    "rounds": "rounds of decoding",
    "places": "every place of the same text",
    "spine_acceptance": "best-scored child alone",
    "tree_acceptance": "any draft of the tree",
}


def table(data: AblationData) -> pd.DataFrame:
    """Per arm a row for the rounds of decoding, one for the places of the text, and one per depth of those places.

    Ratios and gain_share are paired by prompt; gain_share is that of `ddtree` to `tfm`, of trees alone.
    """
    rows: list[dict[str, Any]] = []
    for _, cell in data.decode.groupby(CELL, sort=True):
        of_cell = {column: cell[column].iloc[0] for column in CELL}
        arms = {_name(arm.method, arm.variant): arm for arm in arms_of(cell) if arm.method != "ar"}
        decoded = {name: arm.accepted_drafts() for name, arm in arms.items() if arm.status == OK}
        for name in sorted(arms, key=_rank):
            compared = _compared(name, decoded) if name in decoded else {}
            rows.append({**of_cell, **_of_arm(arms[name]), **compared})
        rows += [{**of_cell, **row} for row in _of_places(probe_table(data.probe))]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"depth": "Int64"})


def note(data: AblationData) -> str:
    """Small print: device, date, n and intervals, and what the stack has no Weaver for."""
    prompts, repeats = (data.decode[column].nunique() for column in ("prompt", "repeat"))
    probed = probe_table(data.probe)["prompt"].nunique()
    missing = [name for name in STYLES if name.startswith("weaver_") and name not in set(data.decode["variant"])]
    without = f" Not in this stack: {', '.join(STYLES[name].label for name in missing)}." if missing else ""
    return (
        f"{origin_note(data.decode)}; n = {prompts} test prompts × {repeats} repeats in decoding, "
        f"all places of the text of {probed} prompts.\n"
        f"Whiskers: 95 % percentile intervals, paired bootstrap over prompts, 10,000 draws.{without}"
    )


def figure(table: pd.DataFrame, note: str) -> Figure:
    """Above, accepted drafts over those of DDTree, in decoding and per place; below, acceptance by depth of places."""
    overall, by_depth = table[table["depth"].isna()], table[table["depth"].notna()]
    names = _names(overall)
    with house_style():
        drawn, panels = new_figure(2, 2, note)
        for axes, kind in zip(panels[0], ("rounds", "places"), strict=True):
            _arms_panel(axes, overall[overall["counted_at"] == kind], names)
            axes.set_xlabel("accepted drafts / those of DDTree")
            axes.set_title(TITLES[kind], loc="left")
        panels[0][1].set_yticklabels([])
        for axes, column in zip(panels[1], BY_DEPTH, strict=True):
            _depth_panel(axes, by_depth, column)
            axes.set_title(TITLES[column], loc="left")
        panels[1][0].set_ylabel("accepted, given those above")
        figure_legend(drawn, panels[1:])
    return drawn


def _name(method: str, variant: str) -> str:
    return method if variant == DEFAULT_VARIANT else variant


def _names(rows: pd.DataFrame) -> list[str]:
    """Arms of a table in the order of STYLES."""
    return sorted({_name(*pair) for pair in zip(rows["method"], rows["variant"], strict=True)}, key=_rank)


def _rank(name: str) -> int:
    return [*STYLES].index(name) if name in STYLES else len(STYLES)


def _style(name: str) -> MethodStyle:
    """A Weaver that someone trained for a question of their own is drawn grey, under its name."""
    label = name.removeprefix("weaver_").replace("_", " ")
    return STYLES.get(name) or MethodStyle(f"{label} (retrained)", "#666666", "d", "--", "")


def _of_arm(arm: ArmData) -> dict[str, Any]:
    drafted = {"method": arm.method, "variant": arm.variant, "budget": arm.budget, "counted_at": "rounds"}
    return {**drafted, "prompts": arm.prompts, "repeats": int(arm.rows["repeat"].nunique()), "status": arm.status}


def _of_places(seen: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of the probe: over all depths together, then one per depth and arm."""
    by_arm = {_name(method, variant): rows for (method, variant), rows in seen.groupby(["method", "variant"])}
    accepted = {name: _per_place(rows) for name, rows in by_arm.items()}
    found = []
    for name in sorted(by_arm, key=_rank):
        rows = by_arm[name]
        place = {
            **rows[ARM].iloc[0].to_dict(),
            "counted_at": "places",
            "prompts": len(set(rows["prompt"])),
            "repeats": 1,
            "status": OK,
        }
        found.append({**place, **_compared(name, accepted)})
        found += [{**place, "depth": depth, **_at_depth(rows[rows["depth"] == depth])} for depth in DEPTHS]
    return found


def _per_place(rows: pd.DataFrame) -> Rate:
    """Drafts accepted per place: a tree has as many accepted as depths where it has one."""
    accepted = rows.groupby("prompt")["accepted"].sum()
    return _rate(accepted, rows[rows["depth"] == 1].set_index("prompt")["reached"].reindex(accepted.index))


def _at_depth(rows: pd.DataFrame) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, kind in zip(BY_DEPTH, ("spine_", ""), strict=True):
        rate = _rate(rows[f"{kind}accepted"], rows[f"{kind}reached"])
        found |= with_interval(name, rate.value(), *astuple(rate_interval(rate)))
    return found


def _rate(counts: pd.Series, per: pd.Series) -> Rate:
    """[1, P] of one repeat."""
    return Rate(*(x.to_numpy(dtype=float)[None] for x in (counts, per)))


def _compared(name: str, accepted: dict[str, Rate]) -> dict[str, float]:
    """Accepted drafts of an arm, beside those of `ddtree` and `tfm` where these have numbers."""
    own = accepted[name]
    found = with_interval("accepted_drafts", own.value(), *astuple(rate_interval(own)))
    for other in ("ddtree", "tfm"):
        if other in accepted:
            pair = own, accepted[other]
            found |= with_interval(f"ratio_to_{other}", ratio(*pair), *astuple(ratio_interval(*pair)))
    if name.startswith(("weaver_", "tfm")) and {"ddtree", "tfm"} <= accepted.keys():
        parts = own, accepted["ddtree"], accepted["tfm"]
        found |= with_interval("gain_share", gain_share(*parts), *astuple(gain_share_interval(*parts)))
    return found


def _arms_panel(axes: Axes, rows: pd.DataFrame, names: list[str]) -> None:
    """Ratios with whiskers, the arms from above in the order of `names`; beside them accepted drafts and gain_share."""
    widest = rows[["ratio_to_ddtree", "ratio_to_ddtree_high"]].max(axis=None)
    for row in rows.itertuples(index=False):
        name = _name(str(row.method), str(row.variant))
        place, style = names.index(name), _style(name)
        if math.isnan(row.ratio_to_ddtree):
            axes.text(0, place, str(row.status).split(":")[0], fontsize=6, va="center")
            continue
        axes.hlines(place, row.ratio_to_ddtree_low, row.ratio_to_ddtree_high, color=style.colour, linewidth=1)
        axes.plot(row.ratio_to_ddtree, place, color=style.colour, marker=style.marker, linestyle="")
        # Where tfm gains nothing beyond chance there are no shares of it.
        share = "" if math.isnan(row.gain_share_low) else f", {row.gain_share:.0%} of the gain"
        axes.text(1.06 * widest, place, f"{row.accepted_drafts:.2f}{share}", fontsize=6, va="center")
    axes.axvline(1.0, color="black", linewidth=0.7, zorder=0)
    axes.set_yticks(range(len(names)), [_style(name).label for name in names], fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.75 * widest)
    axes.grid(visible=False, axis="y")


def _depth_panel(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    names = _names(rows)
    of_row = [_name(*pair) for pair in zip(rows["method"], rows["variant"], strict=True)]
    for place, name in enumerate(names):
        own, style = rows[[found == name for found in of_row]], _style(name)
        x = own["depth"].astype(float) + (place - len(names) / 2) * 0.07  # side by side, so that whiskers stay apart
        axes.vlines(x, own[f"{column}_low"], own[f"{column}_high"], color=style.colour, linewidth=0.5)
        axes.plot(x, own[column], label=style.label, linewidth=0.8, markersize=3, **style.of_lines)
    axes.set_xticks(list(DEPTHS))
    axes.set_ylim(0, 1)
    axes.set_xlabel("depth")
