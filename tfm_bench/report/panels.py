"""What figures share: a grid of panels, a line with its band, the A/A noise, a heat map of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.report.style import MethodStyle, new_figure

NOISE_COLOUR = "#999999"
DARK = 0.55  # of a colour map's range: above it, numbers are white


def dataset_panels(
    data: pd.DataFrame, note: str, draw: Callable[[Axes, pd.DataFrame], None], *, x: str, y: str
) -> tuple[Figure, list[list[Axes]]]:
    """Panels temperature × dataset, each drawn from its rows; call it in the house style. x, y: labels of the axes."""
    temperatures, datasets = sorted(data["temperature"].unique()), list(data["dataset"].unique())
    figure, panels = new_figure(len(temperatures), len(datasets), note)
    for line, temperature in zip(panels, temperatures, strict=True):
        for axes, dataset in zip(line, datasets, strict=True):
            draw(axes, data[(data["temperature"] == temperature) & (data["dataset"] == dataset)])
            axes.set_title(f"{dataset}, T = {temperature:g}", loc="left")
        line[0].set_ylabel(y)
    for axes in panels[-1]:
        axes.set_xlabel(x)
    return figure, panels


def interval_line(axes: Axes, rows: pd.DataFrame, x: str, column: str, style: MethodStyle) -> None:
    """`column` over `x` with a band from `column`_low to `column`_high; rows without a value are left out."""
    known = rows.dropna(subset=column).sort_values(x)
    axes.plot(known[x], known[column], label=style.label, **style.of_lines)
    low, high = known[f"{column}_low"], known[f"{column}_high"]
    axes.fill_between(known[x], low, high, color=style.colour, alpha=0.18, linewidth=0)


def noise_band(axes: Axes, rows: pd.DataFrame, x: str | None = None) -> None:
    """The line at 1, and around it the A/A interval: that of the first row, or over `x` that of each."""
    axes.axhline(1.0, color="black", linewidth=0.7)
    known = rows.dropna(subset=["noise_low", "noise_high"])
    if x is not None and len(known):
        known = known.drop_duplicates(x).sort_values(x)
        band = (known["noise_low"], known["noise_high"])
        axes.fill_between(known[x], *band, color=NOISE_COLOUR, alpha=0.4, linewidth=0, label="A/A noise")
    elif len(known):
        low, high = known[["noise_low", "noise_high"]].iloc[0]
        axes.axhspan(low, high, color=NOISE_COLOUR, alpha=0.4, linewidth=0, label="A/A noise")


def start_at(axes: Axes, bottom: float) -> None:
    """The y axis from `bottom`, with room for the highest marker; an empty panel gets a height of one."""
    top = float(axes.dataLim.y1)
    height = max(top - bottom, 1.0) if np.isfinite(top) else 1.0
    axes.set_ylim(bottom, bottom + 1.06 * height)


def number_map(axes: Axes, grid: pd.DataFrame, texts: pd.DataFrame, marked: Sequence[tuple[int, int]] = ()) -> None:
    """A heat map of grid [rows, columns] with a text in each cell; marked: (row, column) places that get a frame.

    The scale is that of the grid itself: shades compare cells of one map, numbers all.
    """
    values = grid.to_numpy(dtype=float)
    axes.imshow(values, aspect="auto", cmap="Blues")
    known = ~np.isnan(values)
    for row, column in np.argwhere(known):
        middle = values[known].min() + DARK * np.ptp(values[known])
        colour = "white" if values[row, column] > middle else "black"
        axes.text(column, row, texts.iat[row, column], ha="center", va="center", fontsize=6.5, color=colour)
    for row, column in marked:
        frame = [column - 0.5, column + 0.5, column + 0.5, column - 0.5, column - 0.5]
        axes.plot(frame, [row - 0.5, row - 0.5, row + 0.5, row + 0.5, row - 0.5], color="#D55E00", linewidth=1.6)
    axes.set_xticks(range(len(grid.columns)), [str(name) for name in grid.columns])
    axes.set_yticks(range(len(grid.index)), [str(name) for name in grid.index])
    axes.set_xlim(-0.5, len(grid.columns) - 0.5)
    axes.set_ylim(len(grid.index) - 0.5, -0.5)
    axes.grid(visible=False)
