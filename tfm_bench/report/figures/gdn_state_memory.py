"""What a layer keeps from verification to its commit: a state per node, or the rows to make one from."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfm_bench.measure.files import BYTES_PER_MEGABYTE
from tfm_bench.report.gdn_verify import BATCH, one_problem
from tfm_bench.report.style import arm_style, figure_legend, house_style, log2_nodes, new_figure

VERSION = 1
COLUMNS = ["shapes", "nodes", "batch", "dtype", "arm", "state_bytes", "megabytes"]
NOTE = (
    "Counted, not measured: one layer, batch {batch}, inputs in {dtype}, states in float32; the committed state itself is "
    "left out.\nArms that store no states keep k, v, g and beta of all nodes for replay."
)


def plotted_state_memory(kernels: pd.DataFrame) -> pd.DataFrame:
    """Bytes by shapes, nodes and arm, the same in every implementation."""
    rows = one_problem(kernels)
    rows = rows[(rows["phase"] == "verify") & rows["state_bytes"].notna()]
    counted = rows.drop_duplicates(["shapes", "nodes", "arm"])
    return counted.assign(megabytes=counted["state_bytes"] / BYTES_PER_MEGABYTE)[COLUMNS].reset_index(drop=True)


def figure_gdn_state_memory(data: pd.DataFrame) -> Figure:
    """One panel per shapes, log-log: megabytes per layer against nodes. Arms that keep the same share a line."""
    shapes = list(data["shapes"].unique())
    note = NOTE.format(batch=BATCH, dtype="/".join(data["dtype"].unique()))
    with house_style():
        figure, (panels,) = new_figure(1, len(shapes), note)
        for axes, shape in zip(panels, shapes, strict=True):
            _panel(axes, data[data["shapes"] == shape])
            axes.set_title(shape, loc="left")
            axes.set_xlabel("nodes")
        panels[0].set_ylabel("kept until commit (MB per layer)")
        figure_legend(figure, [panels])
    return figure


def _panel(axes: Axes, data: pd.DataFrame) -> None:
    wide = data.pivot(index="nodes", columns="arm", values="megabytes")[list(data["arm"].unique())]
    alike: dict[tuple[float, ...], list[str]] = {}
    for arm in wide.columns:
        alike.setdefault(tuple(wide[arm]), []).append(arm)
    for values, arms in alike.items():
        style = arm_style(arms[0])
        label = " = ".join(arm_style(arm).label for arm in arms)
        axes.plot(wide.index, values, label=label, **style.of_lines)
    axes.set_yscale("log")
    log2_nodes(axes, data["nodes"])
