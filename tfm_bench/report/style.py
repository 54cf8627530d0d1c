"""One look for all figures: a method or arm has the same colour, marker, line everywhere, and reads in grey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from tfm_bench.measure.files import atomic_write

DOUBLE_COLUMN_INCHES = 7.0
PANEL_HEIGHT_INCHES = 2.4
NOTE_SHARE = 0.35
PNG_DPI = 200

RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "font.size": 8,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}


@dataclass(frozen=True)
class MethodStyle:
    """Colours from Okabe and Ito; marker, line and hatch carry the method where colour is lost."""

    label: str
    colour: str
    marker: str
    line: str | tuple[int, tuple[int, ...]]
    hatch: str

    @property
    def of_lines(self) -> dict[str, Any]:
        """Arguments of Axes.plot, without the label."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


METHOD_STYLES = {
    "ar": MethodStyle("AR", "#999999", "s", ":", ""),
    "dflash_chain": MethodStyle("DFlash chain", "#0072B2", "^", "--", "////"),
    "ddtree": MethodStyle("DDTree", "#E69F00", "o", "-.", "...."),
    "tfm": MethodStyle("DFlash-TfM", "#D55E00", "D", "-", ""),
}

ARM_STYLES = {
    "fused": MethodStyle("fused", "#D55E00", "D", "-", ""),
    "node_recurrent": MethodStyle("node recurrent", "#0072B2", "o", "--", "////"),
    "node_recurrent_scratch": MethodStyle("node recurrent, states in cache", "#56B4E9", "s", (0, (1, 1)), "...."),
    "level_recurrent": MethodStyle("level recurrent", "#009E73", "^", "-.", "xxxx"),
    "path_recurrent": MethodStyle("path recurrent", "#CC79A7", "v", (0, (5, 1, 1, 1, 1, 1)), "\\\\"),
}
OTHER_ARM = MethodStyle("other", "#999999", "x", ":", "")


def arm_style(arm: str) -> MethodStyle:
    """Style of an arm of the kernel benchmark; one without a style of its own is drawn grey, under its name."""
    return ARM_STYLES.get(arm) or replace(OTHER_ARM, label=arm.replace("_", " "))


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save inside it: some settings act when an artist is made, others when the file is written."""
    with mpl.rc_context(RC):
        yield


def new_figure(
    rows: int, columns: int, note: str, panel_height: float = PANEL_HEIGHT_INCHES
) -> tuple[Figure, list[list[Axes]]]:
    """A double-column figure of panels; `note` (device, date, n, interval) stands in small print below them."""
    height = rows * panel_height + NOTE_SHARE
    figure = Figure(figsize=(DOUBLE_COLUMN_INCHES, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, NOTE_SHARE / height, 1, 1 - NOTE_SHARE / height))  # type: ignore[union-attr, call-arg]
    figure.text(0.01, 0.01, note, fontsize=6, color="#444444", va="bottom")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def origin_note(rows: pd.DataFrame) -> str:
    """Date, device, dtype and stack of rows of decode.csv."""
    devices = " + ".join(f"{device}, {threads} threads" for device, threads in _distinct(rows, "device", "threads"))
    date = str(rows["measured_at"].max())[:10]
    return f"Measured {date} on {devices}, {'/'.join(rows['dtype'].unique())}; stack {'/'.join(rows['stack'].unique())}"


def measured_note(decode: pd.DataFrame) -> str:
    """Device, dtype, date, n and interval type of the reported split: what a reader needs beside a number."""
    test = decode[decode["split"] == "test"]
    prompts = len(test[["dataset", "prompt"]].drop_duplicates())
    return (
        f"{origin_note(test)}; "
        f"n = {prompts} test prompts × {test['repeat'].nunique()} repeats, less prompts whose text loops.\n"
        "Whiskers and bands: 95 % percentile intervals, paired bootstrap over repeats and prompts, 10,000 draws."
    )


def label_lines(axes: Axes, ends: Sequence[tuple[float, float, str]]) -> None:
    """Write each method's name at the end (x, y) of its line, in its colour, moved apart where two would overlap."""
    low, high = axes.get_ylim()
    gap, floor = (high - low) * 0.08, low
    for x, y, method in sorted(ends, key=lambda end: end[1]):
        at = max(y, floor)
        floor = at + gap
        style = METHOD_STYLES[method]
        axes.annotate(
            style.label, (x, at), xytext=(6, 0), textcoords="offset points", color=style.colour, va="center", fontsize=7
        )


def log2_nodes(axes: Axes, nodes: pd.Series) -> None:
    """A log2 axis for the nodes of a tree, marked at the powers of two among them (at all, where there is none)."""
    shown = sorted({int(n) for n in nodes})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([n for n in shown if n & (n - 1) == 0] or shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))


def figure_legend(figure: Figure, panels: Sequence[Sequence[Axes]]) -> None:
    """One legend above all panels, each label once."""
    entries: dict[str, Artist] = {}
    for axes in (axes for line in panels for axes in line):
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    columns = min(len(entries), 3)
    figure.legend(
        list(entries.values()), list(entries), loc="outside upper center", ncols=columns, handlelength=3.5, fontsize=7
    )


def save_figure(figure: Figure, *, pdf: Path, png: Path) -> None:
    """Write both files atomically; the PDF embeds TrueType fonts and carries no date."""
    with house_style(), atomic_write(pdf) as partial:
        figure.savefig(partial, format="pdf", metadata={"CreationDate": None})
    with house_style(), atomic_write(png) as partial:
        figure.savefig(partial, format="png", dpi=PNG_DPI)


def _distinct(frame: pd.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return list(frame[list(columns)].drop_duplicates().itertuples(index=False, name=None))
