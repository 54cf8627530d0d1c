"""A draft tree of a real round, drawn: tokens, probabilities and the path that was accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.report.style import DOUBLE_COLUMN_INCHES, METHOD_STYLES, house_style, new_figure

VERSION = 1
LANE_INCHES = 0.34
AXIS_INCHES = 0.6
CHARACTER_INCHES = 0.062  # of a token, in the font of the boxes
DASHES = (0, (2, 1))
ACCEPTED, OTHER = METHOD_STYLES["tfm"].colour, "#777777"


def plotted_tree(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the example with the lane that each is drawn in, from 0 at the top.

    A node stands in the lane of its best-scored child, so that a lane is what the drafter holds most likely from where
    the lane begins.
    """
    lanes = dict(_lanes(table))
    return table.assign(lane=table["node"].map(lanes))


def _lanes(table: pd.DataFrame) -> Iterator[tuple[int, int]]:
    """(node, lane), depth first, best-scored children before others and the bonus token last."""
    ranked = table.sort_values("edge_probability", ascending=False, kind="stable", na_position="last")
    children = {parent: list(nodes) for parent, nodes in ranked.groupby("parent")["node"]}
    waiting, lane = [(0, 0)], 0
    while waiting:
        node, at = waiting.pop()
        at = lane = at if at >= 0 else lane + 1
        yield node, at
        below = children.get(node, [])
        # -1: a lane of its own, below all that was placed before; the first child comes off the stack first.
        waiting += [*((child, -1) for child in reversed(below[1:])), *((child, at) for child in below[:1])]


def tree_note(data: pd.DataFrame) -> str:
    """Where the tree comes from, what stands under the tokens, and the text before it."""
    row = data.iloc[0]
    return (
        f"Measured {str(row['measured_at'])[:10]} on {row['device']}, {row['threads']} threads, {row['dtype']}; stack "
        f"{row['stack']}, {row['dataset']} {row['split']} prompt {row['prompt_id']}, T = {row['temperature']:g}, "
        f"round {row['round']}, budget {row['budget']}; n = 1.\n"
        "Below each token, in %: the drafter's probability | the target's, both given its path. Thick: accepted. "
        f"Dashed: bonus token.\nText before: …{row['context']}"
    )


def figure_example_tree(data: pd.DataFrame, note: str) -> Figure:
    """Left to right by depth, the drafter's first choice in the top lane."""
    lanes, columns = int(data["lane"].max()) + 1, int(data["depth"].max()) + 1
    with house_style():
        figure, ((axes,),) = new_figure(1, 1, note, panel_height=lanes * LANE_INCHES + AXIS_INCHES)
        characters = int(0.8 * DOUBLE_COLUMN_INCHES / columns / CHARACTER_INCHES)
        places = data.set_index("node")[["depth", "lane"]]
        for row in data.to_dict("records"):
            if row["parent"] >= 0:
                _edge(axes, places.loc[row["parent"]], row)
            _box(axes, row, characters)
        axes.set_xlim(-0.5, columns - 0.5)
        axes.set_ylim(lanes - 0.35, -0.5)
        axes.set_xticks(range(columns))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False)
        axes.set_xlabel("depth (drafts after the anchor)")
    return figure


def _edge(axes: Axes, parent: pd.Series, row: dict[str, Any]) -> None:
    """Along the parent's lane, down between the columns, along the child's: no line crosses a box."""
    x, y = row["depth"], row["lane"]
    bend = float(parent["depth"]) + 0.5
    axes.plot(
        [parent["depth"], bend, bend, x],
        [parent["lane"], parent["lane"], y, y],
        color=ACCEPTED if row["accepted"] else OTHER,
        linewidth=2.4 if row["accepted"] else 0.7,
        linestyle=DASHES if row["kind"] == "bonus" else "-",
        solid_joinstyle="miter",
        zorder=2.5 if row["accepted"] else 2,
    )


def _box(axes: Axes, row: dict[str, Any], characters: int) -> None:
    token, kept = str(row["token"]), bool(row["accepted"])
    shown = token if len(token) <= characters else token[: characters - 1] + "…"
    box = {
        "boxstyle": "round,pad=0.25",
        "facecolor": "white",
        "edgecolor": ACCEPTED if kept else OTHER,
        "linewidth": 1.2 if kept else 0.6,
        "linestyle": DASHES if row["kind"] == "bonus" else "-",
    }
    place = (row["depth"], row["lane"])
    # Tokens hold dollar signs, which would otherwise start a formula.
    style: dict[str, Any] = {"ha": "center", "parse_math": False, "zorder": 3}
    axes.text(*place, shown, va="center", fontsize=7, fontweight="bold" if kept else "normal", bbox=box, **style)
    below: dict[str, Any] = {"xytext": (0, -7.5), "textcoords": "offset points", "va": "top"}
    axes.annotate(_below(row), place, fontsize=5.5, color="#333333", **below, **style)


def _below(row: dict[str, Any]) -> str:
    if row["kind"] == "anchor":
        return "anchor"
    target = _percent(row["target_probability"])
    return f"bonus | {target}" if row["kind"] == "bonus" else f"{_percent(row['edge_probability'])} | {target}"


def _percent(probability: object) -> str:
    """In whole per cent; what rounds to 0 is no nothing."""
    percent = 100 * float(probability)  # type: ignore[arg-type]
    return f"{percent:.0f}" if percent >= 0.5 else "<1"
