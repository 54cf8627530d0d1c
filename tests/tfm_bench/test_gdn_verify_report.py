"""Table and figures of the kernel benchmark from a made-up results/gdn_verify.csv whose ratios are known."""

import io
import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from tfm_bench.errors import UserError
from tfm_bench.measure.kernel_records import COLUMNS as CSV_COLUMNS
from tfm_bench.measure.kernel_records import read_kernel_table
from tfm_bench.report.figures.gdn_state_memory import figure_gdn_state_memory, plotted_state_memory
from tfm_bench.report.figures.gdn_verify_latency import figure_gdn_verify_latency, plotted_latency
from tfm_bench.report.figures.gdn_verify_speedup import figure_gdn_verify_speedup, plotted_speedup
from tfm_bench.report.gdn_verify import COLUMNS, PAPER_US, kernel_note, one_problem, table_gdn_verify
from tfm_bench.report.style import ARM_STYLES, arm_style, save_figure
from tfm_bench.report.tables import to_markdown

FIXED = f"""{",".join(CSV_COLUMNS)}
CPU,torch,27b,weaver,16,1,fused,verify,2.0,1.9,2.1,530432,1e-7,0.5,ok,,,cold,9,2,float32,2026-11-20T10:00:00Z,eager
CPU,torch,27b,weaver,16,1,fused,total,2.5,2.4,2.6,527360,1e-7,0.7,ok,,fold,cold,9,2,float32,2026-11-20T10:00:00Z,eager
CPU,torch,27b,weaver,16,1,node_recurrent,verify,6.0,5,7,50331648,1e-7,4,ok,,,cold,9,2,float32,2026-11-20T10:00:00Z,eager
CPU,torch,27b,weaver,16,1,node_recurrent,total,10.0,9,11,50331648,1e-7,4,ok,,select,cold,9,2,float32,2026-11-20T10:00:00Z,eager
CPU,torch,27b,weaver,16,1,path_recurrent,verify,,,,530432,0.1,4,failed,off,,cold,0,2,float32,2026-11-20T10:00:00Z,eager
CPU,torch,27b,weaver,16,1,path_recurrent,total,,,,530432,0.1,4,failed,off,replay,cold,0,2,float32,2026-11-20T10:00:00Z,eager
CPU,triton,27b,weaver,16,1,fused,verify,,,,530432,,4,unsupported,no GPU,,cold,0,2,float32,2026-11-20T10:00:00Z,eager
CPU,torch,27b,chain,16,1,fused,verify,9.0,9,9,530432,1e-7,4,ok,,,cold,9,2,float32,2026-11-20T10:00:00Z,eager
CPU,torch,27b,weaver,16,4,fused,verify,9.0,9,9,530432,1e-7,4,ok,,,cold,9,2,float32,2026-11-20T10:00:00Z,eager
"""
SCALE = {
    "fused": 1.0,
    "node_recurrent": 4.0,
    "level_recurrent": 3.0,
    "path_recurrent": 5.0,
    "node_recurrent_scratch": 2.0,
}
NODES = [16, 32, 64, 65, 128, 256]


def kernels(caches=("cold",)) -> pd.DataFrame:
    rows = [
        {
            **{"device": "Some CPU", "implementation": implementation, "shapes": shapes, "tree": tree, "nodes": nodes},
            **{
                "batch": 1,
                "arm": arm,
                "phase": phase,
                "cache": cache,
                "state_bytes": nodes * 1000 * (1 + (arm[0] == "n")),
            },
            **{"median_ms": ms, "p20_ms": 0.9 * ms, "p80_ms": 1.2 * ms, "roofline_ms": ms / 2, "relative_error": 1e-7},
            **{
                "status": "ok",
                "reason": None,
                "commit": None if phase == "verify" else "replay",
                "runs": 9,
                "threads": 2,
            },
            **{"dtype": "float32", "measured_at": "2026-11-30T08:00:00+00:00", "launch": "eager"},
        }
        for implementation, shapes, tree, nodes, (arm, scale), phase, cache in itertools.product(
            ("torch", "compiled"),
            ("27b", "tiny"),
            ("chain", "weaver"),
            NODES,
            SCALE.items(),
            ("verify", "total"),
            caches,
        )
        for ms in [scale * nodes / 100 * (2 if phase == "total" and arm == "fused" else 1) * (1 + (cache == "cold"))]
    ]
    return pd.DataFrame(rows)[CSV_COLUMNS]


def fixed() -> pd.DataFrame:
    return read_kernel_table(io.StringIO(FIXED))


def test_the_table_has_the_papers_rows_and_ours_beside_them():
    table = table_gdn_verify(fixed())
    assert list(table.columns) == COLUMNS
    assert list(table["source"]) == ["paper"] * 4 + ["measured"]
    paper = table[table["source"] == "paper"].set_index("nodes")
    assert list(paper["baseline_verify_us"]) == [55.2, 103.9, 195.0, 408.3]
    assert list(paper["fused_verify_us"]) == [37.0, 39.0, 42.8, 57.3]
    assert paper.loc[128, "verify_ratio"] == pytest.approx(7.1, abs=0.05)
    assert paper["total_ratio"].isna().all()
    assert set(paper["device"]) == {"NVIDIA B200"}
    ours = table.iloc[-1]
    assert (ours["device"], ours["implementation"], ours["baseline"]) == ("CPU", "torch", "node_recurrent")
    assert (ours["baseline_verify_us"], ours["fused_verify_us"], ours["verify_ratio"]) == (6000.0, 2000.0, 3.0)
    assert (ours["baseline_total_us"], ours["fused_total_us"], ours["total_ratio"]) == (10000.0, 2500.0, 4.0)
    assert (ours["baseline_commit"], ours["fused_commit"]) == ("select", "fold")
    assert "| paper | NVIDIA B200 | – |" in to_markdown(table)


def test_a_table_without_right_arms_is_the_papers_alone():
    wrong = fixed().assign(status="failed", median_ms=np.nan)
    assert list(table_gdn_verify(wrong)["source"]) == ["paper"] * len(PAPER_US)


def test_nothing_to_draw_is_one_line():
    wrong = fixed().assign(status="failed")
    for plotted in (plotted_latency, plotted_speedup):
        with pytest.raises(UserError, match="no time to draw"):
            plotted(wrong)
    with pytest.raises(UserError, match="no weaver trees at batch 1"):
        plotted_latency(fixed().assign(tree="chain"))


def test_every_baseline_of_every_implementation_has_its_rows():
    ours = table_gdn_verify(kernels()).query("source == 'measured'")
    assert len(ours) == 2 * 4 * len(PAPER_US)
    assert set(ours["nodes"]) == set(PAPER_US)
    for baseline, rows in ours.groupby("baseline"):
        assert np.allclose(rows["verify_ratio"], SCALE[baseline])
        assert np.allclose(rows["total_ratio"], SCALE[baseline] / 2)


def test_cold_caches_are_shown_where_both_were_measured():
    both = one_problem(kernels(caches=("cold", "warm")))
    assert set(both["cache"]) == {"cold"}
    pd.testing.assert_frame_equal(both.reset_index(drop=True), one_problem(kernels()).reset_index(drop=True))
    warm = one_problem(kernels(caches=("warm",)))
    assert set(warm["cache"]) == {"warm"}
    assert "caches: 27b warm, tiny warm" in kernel_note(warm)


def test_latency_lines_are_the_rows_of_the_companion_table():
    data = plotted_latency(kernels())
    assert len(data) == 2 * 2 * len(NODES) * len(SCALE)
    figure = figure_gdn_verify_latency(data, "note")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["27b, torch", "tiny, torch", "27b, compiled", "tiny, compiled"]
    for axes in figure.axes:
        shapes, implementation = axes.get_title(loc="left").split(", ")
        panel = data[(data["shapes"] == shapes) & (data["implementation"] == implementation)]
        lines = {line.get_label(): line for line in axes.lines}
        for arm, rows in panel.groupby("arm"):
            assert list(lines[ARM_STYLES[arm].label].get_xdata()) == NODES
            assert list(lines[ARM_STYLES[arm].label].get_ydata()) == list(rows["median_ms"])
        limits = [tuple(line.get_ydata()) for line in axes.lines[1::2]]
        assert set(limits) == {tuple(rows["roofline_ms"]) for _, rows in panel.groupby("arm")}
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "ms" in figure.axes[0].get_ylabel()
    assert figure.axes[-1].get_xlabel() == "nodes"


def test_speedups_are_the_rows_of_the_companion_table():
    data = plotted_speedup(kernels())
    assert list(data["source"].value_counts()[["measured", "paper"]]) == [2 * 2 * 4 * len(NODES), len(PAPER_US)]
    figure = figure_gdn_verify_speedup(data, "note")
    for axes in figure.axes:
        ratios = {line.get_label(): line.get_ydata() for line in axes.lines}
        assert np.allclose(ratios["over node recurrent"], 2.0)
        assert np.allclose(ratios["over level recurrent"], 1.5)
        papers = [line for line in axes.lines if line.get_marker() == "x"]
        assert len(papers) == ("27b" in axes.get_title(loc="left"))
    assert "time of baseline / time of fused" in figure.axes[0].get_ylabel()


def test_memory_counts_each_arm_once_and_joins_what_is_alike():
    data = plotted_state_memory(kernels())
    assert len(data) == 2 * len(NODES) * len(SCALE)
    figure = figure_gdn_state_memory(data)
    for axes in figure.axes:
        labels = {line.get_label(): line.get_ydata() for line in axes.lines}
        assert set(labels) == {
            "fused = level recurrent = path recurrent",
            "node recurrent = node recurrent, states in cache",
        }
        assert list(labels["fused = level recurrent = path recurrent"]) == [n / 1000 for n in NODES]
    assert "MB" in figure.axes[0].get_ylabel()


def test_memory_is_shown_for_arms_that_were_skipped():
    table = kernels()
    table.loc[table["arm"] == "node_recurrent", "status"] = "skipped"
    assert "node_recurrent" in set(plotted_state_memory(table)["arm"])
    assert "node_recurrent" not in set(plotted_latency(table)["arm"])


def test_arms_differ_without_colour():
    for distinguishing in ("label", "colour", "marker", "line", "hatch"):
        assert len({getattr(style, distinguishing) for style in ARM_STYLES.values()}) == len(ARM_STYLES)
    assert all(len(to_rgb(style.colour)) == 3 for style in ARM_STYLES.values())
    assert arm_style("chunk_rule").label == "chunk rule"
    assert arm_style("fused") is ARM_STYLES["fused"]


def test_files_are_reproducible(tmp_path):
    contents = []
    for name in ("first", "second"):
        figure = figure_gdn_verify_speedup(plotted_speedup(kernels()), kernel_note(one_problem(kernels())))
        save_figure(figure, pdf=tmp_path / f"{name}.pdf", png=tmp_path / f"{name}.png")
        contents.append([(tmp_path / f"{name}{suffix}").read_bytes() for suffix in (".pdf", ".png")])
    assert contents[0] == contents[1]
