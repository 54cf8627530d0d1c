"""Figures of speed, noise and stages: the numbers that were put in, drawn where they belong."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from tests.tfm_bench.decode_rows import ARMS, ROUNDS, decode_rows
from tests.tfm_bench.figure_files import assert_reproducible_truetype
from tfm_bench.report.arms import noise_floor
from tfm_bench.report.figures.noise_floor import figure_noise_floor, plotted_noise
from tfm_bench.report.figures.speedup_by_budget import figure_speedup_by_budget, plotted_speedups
from tfm_bench.report.figures.stage_times import PARTS, figure_stage_times, plotted_stages, stages_note
from tfm_bench.report.speedup import table_headline
from tfm_bench.report.stage_times import STAGE_COLUMNS, table_stage_times
from tfm_bench.report.style import METHOD_STYLES, measured_note


def test_the_speedup_lines_are_the_speeds_that_were_put_in():
    data = plotted_speedups(decode_rows())
    assert len(data) == 2 * 2 * (len(ARMS) - 1)
    for row in data.itertuples():
        accepted, _, test_ms = ARMS[row.method, row.budget, row.expansion_width]
        assert row.speedup == pytest.approx((accepted + 1) * ARMS["ar", 0, 0][2] / test_ms)
        assert row.speedup_low <= row.speedup <= row.speedup_high
    figure = figure_speedup_by_budget(data, "note")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"{dataset}, T = {t}" for t in (0, 1) for dataset in ("math", "code")
    ]
    for axes in figure.axes:
        dataset, temperature = axes.get_title(loc="left").split(", T = ")
        panel = data[(data["dataset"] == dataset) & (data["temperature"] == float(temperature))]
        for method in ("ddtree", "tfm"):
            (line,) = (line for line in axes.lines if line.get_label() == METHOD_STYLES[method].label)
            rows = panel[panel["method"] == method]
            assert (list(line.get_xdata()), list(line.get_ydata())) == (list(rows["budget"]), list(rows["speedup"]))
        (band,) = (patch for patch in axes.patches if isinstance(patch, Rectangle))
        assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx(
            (panel["noise_low"].iloc[0], panel["noise_high"].iloc[0])
        )
        assert axes.get_ylim()[0] == 0


def test_what_may_claim_no_speedup_is_not_drawn():
    decode = decode_rows()
    arm = (decode["method"] == "tfm") & (decode["budget"] == 64) & (decode["dataset"] == "math")
    decode.loc[arm & (decode["prompt"] == 2), "lossless"] = False
    loops = (decode["dataset"] == "code") & (decode["prompt"] == 1)
    decode.loc[loops & (decode["method"] == "ddtree"), "degenerate"] = True
    data = plotted_speedups(decode)
    assert set(data.loc[(data["dataset"] == "math") & (data["method"] == "tfm"), "budget"]) == {8}
    assert set(data.loc[data["dataset"] == "code", "prompts"]) == {3}
    decode.loc[decode["dataset"] == "code", "degenerate"] = True
    assert set(plotted_speedups(decode)["dataset"]) == {"math"}


def test_the_dots_are_the_control_over_the_other_run():
    decode = decode_rows()
    data = plotted_noise(decode)
    dots, boxes = data[data["prompt"].notna()], data[data["prompt"].isna()]
    assert len(dots) == 2 * 2 * 2 * 4
    # decode_rows: the control takes 2 % longer in repeat 0 and as much less in repeat 1
    assert dots["speed_ratio"].to_numpy() == pytest.approx(1.02 ** (2 * dots["repeat"].to_numpy(dtype=float) - 1))
    assert list(boxes["dataset"]) == ["math", "code", "all"] * 2
    test = decode[decode["split"] == "test"]
    for box in boxes.itertuples():
        group = test[test["temperature"] == box.temperature]
        group = group if box.dataset == "all" else group[group["dataset"] == box.dataset]
        interval = noise_floor(group)
        assert (box.noise_low, box.noise_high) == (interval.low, interval.high)
        times = group[group["method"] == "ar"].groupby("control")["decode_ms"].sum()
        assert box.speed_ratio == pytest.approx(times[False] / times[True])
    axes = figure_noise_floor(data, "note").axes[0]
    drawn = [y for line in axes.lines if str(line.get_label()).startswith("process") for y in line.get_ydata()]
    assert sorted(drawn) == sorted(dots.loc[dots["temperature"] == 0, "speed_ratio"])
    low, high = boxes[["noise_low", "noise_high"]].iloc[0]
    assert axes.get_xticklabels()[0].get_text() == f"math\n[{low:.3f}, {high:.3f}]"


def test_without_a_control_or_with_loops_only_there_are_no_dots():
    decode = decode_rows()
    assert plotted_noise(decode[~decode["control"]]).empty
    decode.loc[decode["dataset"] == "math", "degenerate"] = True
    assert set(plotted_noise(decode)["dataset"]) == {"code", "all"}


def staged_decode() -> pd.DataFrame:
    """Stages of 1 to 6 ms a round."""
    decode = decode_rows()
    for milliseconds, column in enumerate(STAGE_COLUMNS, start=1):
        decode.loc[decode[column].notna(), column] = milliseconds * ROUNDS
    return decode


def test_the_stages_of_a_bar_sum_to_the_staged_round():
    decode = staged_decode()
    data = plotted_stages(table_stage_times(decode), table_headline(decode))
    # decode_rows: on dev the chain is faster at 15, DDTree at 64 and TfM at 8
    assert set(data[["method", "budget"]].itertuples(index=False, name=None)) == {
        ("ar", 0), ("dflash_chain", 15), ("ddtree", 64), ("tfm", 8),
    }  # fmt: skip
    assert (data["staged_round_ms"] == 21).all()
    assert (data["verify_share"] == 3 / 21).all()
    figure = figure_stage_times(data, "note")
    for axes in figure.axes:
        bars = np.array([[(bar.get_x(), bar.get_width()) for bar in stack] for stack in axes.containers])
        assert bars[:, :, 1].tolist() == [[part] * 4 for part in range(1, 1 + len(PARTS))]
        assert bars[:, :, 0].tolist() == [[sum(range(1, part))] * 4 for part in range(1, 1 + len(PARTS))]
        assert [text.get_text() for text in axes.texts] == ["verify 14%"] * 4
        (markers,) = axes.lines
        rows = data[data["temperature"] == float(axes.get_title(loc="left").removeprefix("T = "))]
        assert list(markers.get_xdata()) == list(rows["round_time_ms"])
        assert axes.get_xlim()[0] == 0
    assert "n = 8 test prompts of all datasets" in stages_note(decode)


def draw_speedup(decode):
    data = plotted_speedups(decode)
    return lambda: figure_speedup_by_budget(data, measured_note(decode))


def draw_noise(decode):
    data = plotted_noise(decode)
    return lambda: figure_noise_floor(data, measured_note(decode))


def draw_stages(decode):
    data = plotted_stages(table_stage_times(decode), table_headline(decode))
    return lambda: figure_stage_times(data, stages_note(decode))


@pytest.mark.parametrize("draw", [draw_speedup, draw_noise, draw_stages])
def test_files_are_reproducible_and_embed_truetype(tmp_path, draw):
    assert_reproducible_truetype(draw(decode_rows()), tmp_path)
