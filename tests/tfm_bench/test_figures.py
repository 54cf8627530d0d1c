"""Figures: what is drawn is what the companion table holds, from zero, in one look."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.colors import to_rgb

from tests.tfm_bench.figure_files import assert_reproducible_truetype
from tfm_bench.config import METHODS
from tfm_bench.report.figures.acceptance_by_budget import figure_acceptance_by_budget, plotted_acceptance
from tfm_bench.report.figures.speedup_by_dataset import figure_speedup_by_dataset, plotted_speedups
from tfm_bench.report.style import METHOD_STYLES, measured_note

BUDGETS = [8, 16, 32, 64]
ACCEPTED = {"ar": 0, "dflash_chain": 2, "ddtree": 3, "tfm": 5}


def headline() -> pd.DataFrame:
    rows = [
        {
            **{"stack": "tiny", "dataset": dataset, "temperature": temperature, "method": method, "budget": 16},
            **{
                "expansion_width": 0,
                "variant": "default",
                "prompts": 16,
                "baseline": baseline,
                "prompt_selection": selection,
            },
            "degenerate_prompts": int(selection == "all" and dataset == "code"),
            **{"noise_low": 0.97, "noise_high": 1.02, "status": "ok"},
            **{"speedup": 1.0 + rank + (selection == "all") / 2, "speedup_low": 0.9 + rank, "speedup_high": 1.2 + rank},
        }
        for dataset, temperature, (rank, method) in itertools.product(
            ("math", "code", "all"), (0.0, 1.0), enumerate(METHODS)
        )
        for baseline, selection in (("ar", "all"), ("ddtree", "all"), ("ar", "not_degenerate"))
        if dataset == "code" or selection == "all"
    ]
    return pd.DataFrame(rows)


def decode() -> pd.DataFrame:
    arms = [("ar", 0), ("dflash_chain", 15), *itertools.product(("ddtree", "tfm"), BUDGETS)]
    places = itertools.product(("dev", "test"), ("math", "code"), (0.0, 1.0), range(2), range(5), arms)
    rows = [
        {
            **{"stack": "tiny", "split": split, "dataset": dataset, "temperature": temperature, "repeat": repeat},
            **{
                "prompt": prompt,
                "method": method,
                "budget": budget,
                "expansion_width": 0,
                "variant": "default",
                "verify_width": budget + 1,
            },
            **{"rounds": 10, "accepted_drafts_sum": 10 * ACCEPTED[method] + prompt * budget // 16},
            **{"degenerate": False, "lossless": True, "control": False, "status": "ok"},
            **{
                "dtype": "float32",
                "device": "Some CPU",
                "threads": 2,
                "torch": "2.13.0",
                "measured_at": "2026-11-30T08:00:00+00:00",
            },
        }
        for split, dataset, temperature, repeat, prompt, (method, budget) in places
    ]
    return pd.DataFrame(rows)


def test_speedup_bars_are_the_rows_of_the_companion_table():
    data = plotted_speedups(headline())
    assert len(data) == 3 * 2 * 4
    figure = figure_speedup_by_dataset(data, "note")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["T = 0", "T = 1"]
    for axes, temperature in zip(figure.axes, (0.0, 1.0), strict=True):
        shown = data[data["temperature"] == temperature]
        heights = [bar.get_height() for container in axes.containers[1::2] for bar in container]
        assert heights == list(shown.sort_values(["method"], key=lambda m: m.map(METHODS.index), kind="stable").speedup)
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] > shown["speedup_high"].max()
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["math", "code", "all"]
        assert {text.get_text() for text in axes.texts} >= {"1.00", "4.00"}


def test_a_row_without_speedup_is_marked_not_drawn_as_zero():
    table = headline()
    for dataset, status in (("code", "not lossless"), ("math", "failed: out of memory")):
        rows = (table["method"] == "tfm") & (table["dataset"] == dataset)
        table.loc[rows, ["speedup", "speedup_low", "speedup_high", "status"]] = [np.nan, np.nan, np.nan, status]
    figure = figure_speedup_by_dataset(plotted_speedups(table), "note")
    for axes in figure.axes:
        texts = [text.get_text() for text in axes.texts]
        assert texts.count("not lossless") == texts.count("failed") == 1


def test_the_noise_floor_is_a_band_around_one_behind_each_group():
    table = headline()
    table.loc[table["dataset"] == "code", ["noise_low", "noise_high"]] = np.nan
    axes = figure_speedup_by_dataset(plotted_speedups(table), "note").axes[0]
    bands = [
        c.get_paths()[0].get_extents()
        for c in axes.collections
        if isinstance(c, FillBetweenPolyCollection) and c.get_paths()
    ]
    assert [(band.y0, band.y1) for band in bands] == [(0.97, 1.02)] * 2
    assert [(band.x0 + band.x1) / 2 for band in bands] == [0.0, 2.0]


def test_acceptance_lines_are_the_rows_of_the_companion_table():
    data = plotted_acceptance(decode())
    assert set(data["method"]) == {"dflash_chain", "ddtree", "tfm"}
    assert (data["acceptance_length_low"] <= data["acceptance_length"]).all()
    assert (data["acceptance_length"] <= data["acceptance_length_high"]).all()
    figure = figure_acceptance_by_budget(data, "note")
    assert len(figure.axes) == 4
    for axes in figure.axes:
        dataset, temperature = axes.get_title(loc="left").split(", T = ")
        panel = data[(data["dataset"] == dataset) & (data["temperature"] == float(temperature))]
        lines = {line.get_label(): line for line in axes.lines}
        for method in ("ddtree", "tfm"):
            rows = panel[panel["method"] == method]
            assert list(lines[METHOD_STYLES[method].label].get_xdata()) == BUDGETS
            assert list(lines[METHOD_STYLES[method].label].get_ydata()) == list(rows["acceptance_length"])
        chain = panel.loc[panel["method"] == "dflash_chain", "acceptance_length"].item()
        assert set(lines["DFlash chain"].get_ydata()) == {chain}
        assert axes.get_ylim()[0] == 1


def test_labels_at_line_ends_do_not_overlap():
    data = plotted_acceptance(decode()).assign(acceptance_length=3.0)
    axes = figure_acceptance_by_budget(data, "note").axes[0]
    heights = sorted(text.xy[1] for text in axes.texts)
    assert len(heights) == 3
    assert np.diff(heights).min() > 0.05 * np.diff(axes.get_ylim())


def test_methods_differ_without_colour():
    assert tuple(METHOD_STYLES) == METHODS
    for distinguishing in ("colour", "marker", "line"):
        assert len({getattr(style, distinguishing) for style in METHOD_STYLES.values()}) == len(METHODS)
    greys = {m: np.dot(to_rgb(s.colour), (0.299, 0.587, 0.114)) for m, s in METHOD_STYLES.items()}
    for one, other in itertools.combinations(METHODS, 2):
        distinct_grey = abs(greys[one] - greys[other]) > 0.08
        assert distinct_grey or METHOD_STYLES[one].hatch != METHOD_STYLES[other].hatch


def test_the_note_says_device_date_n_and_interval():
    note = measured_note(decode())
    for part in (
        "2026-11-30",
        "Some CPU, 2 threads",
        "float32",
        "n = 10 test prompts × 2 repeats",
        "95 %",
        "bootstrap",
    ):
        assert part in note


def draw_speedup():
    return figure_speedup_by_dataset(plotted_speedups(headline()), measured_note(decode()))


def draw_acceptance():
    return figure_acceptance_by_budget(plotted_acceptance(decode()), measured_note(decode()))


@pytest.mark.parametrize("draw", [draw_speedup, draw_acceptance])
def test_files_are_reproducible_and_embed_truetype(tmp_path, draw):
    assert_reproducible_truetype(draw, tmp_path)
