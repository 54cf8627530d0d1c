"""What the budget and width ablations draw is what their tables hold, and the tables hold what was put in."""

import itertools
from math import ceil

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from tests.tfm_bench.arm_frames import ablation_data, arm_frame
from tfm_bench.report.ablations import budget, width
from tfm_bench.report.style import METHOD_STYLES

BUDGETS, WIDTHS = (4, 8, 32, 64), (1, 2, 4)
AR = {("ar", 0, 0, "default"): (0, 4.0)}
CHAINS = {("dflash_chain", b, 0, "default"): (1 + b / 20, 6 + b / 10) for b in (4, 8, 15)}
TREES = {
    (method, b, int(method == "tfm"), "default"): (b**0.5 + gain, 7 + b / 10)
    for (method, gain), b in itertools.product((("ddtree", 0), ("tfm", 0.5)), BUDGETS)
}


def budget_data():
    return ablation_data(arm_frame(AR | CHAINS | TREES, temperatures=[0.0, 1.0]))


def width_data():
    """Acceptance length 8, 7, 6 at widths 1, 2, 4, whatever the budget; round times fall with the width."""
    arms = {("tfm", b, w, "default"): (8 - (1, 2, 4).index(w) - 1, b / 10 + 8 / w) for b in (32, 64) for w in WIDTHS}
    return ablation_data(arm_frame(AR | arms))


def test_budget_table_holds_every_arm_at_both_temperatures():
    table = budget.table(budget_data())
    assert list(table.columns) == budget.COLUMNS
    assert len(table) == 2 * (1 + 3 + 2 * len(BUDGETS))
    row = table.query("method == 'tfm' and budget == 64 and temperature == 1").iloc[0]
    assert row["acceptance_length"] == pytest.approx(9.5)
    assert row["speedup"] == pytest.approx(9.5 * 4.0 / 13.4)
    chains = table[table["method"] == "dflash_chain"]
    assert sorted(chains["budget"].unique()) == [4, 8, 15]


def test_budget_lines_are_the_rows_and_the_chain_goes_on_level():
    table = budget.table(budget_data())
    figure = budget.figure(table, budget.note(budget_data()))
    panels = np.array(figure.axes).reshape(3, 2)
    for (row, (column, _, bottom)), (place, temperature) in itertools.product(
        enumerate(budget.ROWS), enumerate((0.0, 1.0))
    ):
        axes = panels[row, place]
        assert axes.get_xscale() == "log"
        assert axes.get_ylim()[0] == bottom
        rows = table[table["temperature"] == temperature]
        drawn = {(tuple(line.get_xdata()), tuple(line.get_ydata())) for line in axes.lines}
        for method in ("ddtree", "tfm"):
            own = rows[rows["method"] == method]
            assert (tuple(own["budget"]), tuple(own[column])) in drawn
        chain = rows[rows["method"] == "dflash_chain"]
        assert (tuple(chain["budget"]), tuple(chain[column])) in drawn
        assert ((15, 64), (chain[column].iloc[-1],) * 2) in drawn


def test_only_speedup_panels_have_the_noise_band_and_only_times_the_line_of_ar():
    table = budget.table(budget_data())
    panels = np.array(budget.figure(table, "note").axes).reshape(3, 2)
    low, high = table[["noise_low", "noise_high"]].iloc[0]
    for row in range(3):
        bands = [p for p in panels[row, 0].patches if p.get_y() == pytest.approx(low)]
        assert len(bands) == (row == 2)
        assert all(band.get_height() == pytest.approx(high - low) for band in bands)
        grey = [x for x in panels[row, 0].lines if to_rgba(x.get_color()) == to_rgba(METHOD_STYLES["ar"].colour)]
        assert [set(x.get_ydata()) for x in grey] == [{table["round_time_ms"].iloc[0]}] * (row == 1)


def test_an_arm_that_lost_its_text_is_in_the_table_and_not_in_the_figure():
    decode = arm_frame(AR | CHAINS | TREES)
    decode["lossless"] = ~((decode["method"] == "tfm") & (decode["prompt"] == 2))
    table = budget.table(ablation_data(decode))
    assert set(table.loc[table["method"] == "tfm", "status"]) == {"not lossless"}
    axes = budget.figure(table, "note").axes[0]
    assert {text.get_text() for text in axes.texts} == {"DDTree", "DFlash chain"}


def test_width_table_compares_with_width_1_of_the_same_budget():
    table = width.table(width_data())
    assert list(table.columns) == width.COLUMNS
    assert len(table) == 2 * len(WIDTHS)
    for row in table.itertuples():
        assert row.weaver_calls == ceil(row.budget / row.expansion_width)
        expected = {1: 1.0, 2: 7 / 8, 4: 6 / 8}[row.expansion_width]
        assert row.acceptance_ratio == pytest.approx(expected)
        assert row.acceptance_ratio_low == pytest.approx(expected)
        assert row.acceptance_length == pytest.approx(8 * expected)


def test_without_width_1_there_is_no_ratio_but_all_else():
    data = width_data()
    table = width.table(ablation_data(data.decode[data.decode["expansion_width"] != 1]))
    assert table["acceptance_ratio"].isna().all()
    assert table["acceptance_length"].notna().all()
    width.figure(table, "note")


def test_every_cell_of_the_maps_shows_its_number_and_the_default_width_is_framed():
    table = width.table(width_data())
    lengths, calls, ratios, times = width.figure(table, width.note(width_data())).axes
    grids = {"acceptance_length": lengths, "weaver_calls": calls, "acceptance_ratio": ratios, "round_time_ms": times}
    decimals = dict(zip(grids, (2, 0, 2, 1), strict=True))
    for column, axes in grids.items():
        shown = {tuple(text.get_position()): text.get_text().split("\n")[0] for text in axes.texts}
        assert len(shown) == len(table)
        for row in table.to_dict("records"):
            place = (WIDTHS.index(row["expansion_width"]), (32, 64).index(row["budget"]))
            assert shown[place] == f"{row[column]:.{decimals[column]}f}"
        # ⌈32/16⌉ = 2 and ⌈64/16⌉ = 4
        centres = {
            (np.mean(sorted(set(line.get_xdata()))), np.mean(sorted(set(line.get_ydata())))) for line in axes.lines
        }
        assert centres == {(1, 0), (2, 1)}
    assert ratios.texts[1].get_text().split("\n")[1].startswith("[")
