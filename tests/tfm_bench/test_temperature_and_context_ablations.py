"""The temperature and context ablations: ratios at equal budgets, verification over a step of AR at its length."""

import numpy as np
import pytest

from tests.tfm_bench.arm_frames import SHARES, ablation_data, arm_frame
from tfm_bench.report.ablations import context, temperature
from tfm_bench.report.style import METHOD_STYLES

ARMS = {
    ("ar", 0, 0, "default"): (0, 4.0),
    ("dflash_chain", 15, 0, "default"): (1, 8.0),
    ("ddtree", 15, 0, "default"): (1.5, 9.0),
    ("ddtree", 64, 0, "default"): (2, 14.0),
    ("tfm", 15, 1, "default"): (3, 10.0),
    ("tfm", 64, 4, "default"): (5, 16.0),
}
TEMPERATURES, LENGTHS = (0.0, 0.7, 1.3), (64, 512, 2048)


def temperature_data():
    return ablation_data(arm_frame(ARMS, temperatures=TEMPERATURES))


def context_data():
    """AR and the trees slow down with the length, the trees four times as much."""
    decode = arm_frame({arm: numbers for arm, numbers in ARMS.items() if arm[1] <= 15}, lengths=LENGTHS)
    doublings = np.log2(decode["prompt_tokens"] / 64)
    factor = 1 + doublings * np.where(decode["method"] == "ar", 0.05, 0.2)
    times = ["decode_ms", *SHARES]
    return ablation_data(decode.assign(**{name: decode[name] * factor for name in times}))


def test_ratios_are_at_equal_budgets_and_only_of_tfm():
    table = temperature.table(temperature_data())
    assert list(table.columns) == temperature.COLUMNS
    assert len(table) == len(TEMPERATURES) * len(ARMS)
    rows = table[table["temperature"] == 0.7].set_index(["method", "budget"])
    assert rows.loc[("tfm", 15), "drafts_over_ddtree"] == pytest.approx(2.0)
    assert rows.loc[("tfm", 15), "drafts_over_chain"] == pytest.approx(3.0)
    assert rows.loc[("tfm", 64), "drafts_over_ddtree"] == pytest.approx(2.5)
    assert np.isnan(rows.loc[("tfm", 64), "drafts_over_chain"])
    assert table.loc[table["method"] != "tfm", ["drafts_over_ddtree", "drafts_over_chain"]].isna().all(axis=None)
    known = table["drafts_over_ddtree"].notna()
    assert table.loc[known, ["drafts_over_ddtree_low", "drafts_over_ddtree_high"]].notna().all(axis=None)


def test_each_column_of_panels_has_one_budget_and_the_chain():
    table = temperature.table(temperature_data())
    panels = np.array(temperature.figure(table, temperature.note(temperature_data())).axes).reshape(3, 2)
    assert [axes.get_title(loc="left") for axes in panels[0]] == ["budget 15", "budget 64, chain 15"]
    for place, budget in enumerate((15, 64)):
        for row, column in enumerate(("acceptance_length", "speedup")):
            lines = {line.get_label(): list(line.get_ydata()) for line in panels[row, place].lines}
            for method, of_method in (("dflash_chain", 15), ("ddtree", budget), ("tfm", budget)):
                own = table[(table["method"] == method) & (table["budget"] == of_method)]
                assert lines[METHOD_STYLES[method].label] == list(own[column])
    gains = {line.get_label(): list(line.get_ydata()) for line in panels[2, 1].lines}
    assert gains["DDTree"] == list(table.query("method == 'tfm' and budget == 64")["drafts_over_ddtree"])
    assert gains["DFlash chain"] == []
    assert all(axes.get_ylim()[0] == (1 if row == 0 else 0) for row, line in enumerate(panels) for axes in line)


def test_nothing_leaves_its_panel():
    table = temperature.table(temperature_data())
    panels = np.array(temperature.figure(table, "note").axes).reshape(3, 2)
    for axes in panels.flat:
        highest = max(np.max(line.get_ydata()) for line in axes.lines if len(line.get_ydata()))
        assert axes.get_ylim()[1] > highest


def test_a_length_is_compared_with_ar_of_its_own_length():
    table = context.table(context_data())
    assert list(table.columns) == context.COLUMNS
    assert len(table) == len(LENGTHS) * 4
    for doublings, length in ((0, 64), (3, 512), (5, 2048)):
        rows = table[table["prompt_tokens"] == length].set_index("method")
        ar, tree = 4 * (1 + 0.05 * doublings), 10 * (1 + 0.2 * doublings)
        assert rows.loc["ar", "speedup"] == 1
        assert rows.loc["tfm", "speedup"] == pytest.approx(4 * ar / tree)
        assert rows.loc["tfm", "verify_over_ar_step"] == pytest.approx(SHARES["verify_ms"] * tree / ar)
        assert rows.loc["ar", "verify_over_ar_step"] == pytest.approx(SHARES["verify_ms"])
        assert rows.loc["tfm", "verify_ms"] == pytest.approx(SHARES["verify_ms"] * tree * 1.1)  # prompts 0 to 2


def test_stage_times_are_paired_with_those_of_ar_of_the_same_prompts():
    """Where the staged run of one arm did something else, its prompt drops out on both sides."""
    data = context_data()
    gone = (data.decode["method"] == "tfm") & (data.decode["prompt"] == 2)
    data.decode.loc[gone, list(SHARES)] = np.nan
    table = context.table(data)
    row = table[(table["method"] == "tfm") & (table["prompt_tokens"] == 64)].iloc[0]
    assert row["staged_prompts"] == 2
    assert row["verify_over_ar_step"] == pytest.approx(SHARES["verify_ms"] * 10 / 4)
    assert set(table.loc[table["method"] == "ddtree", "staged_prompts"]) == {3}


def test_without_staged_runs_only_their_panel_is_empty():
    data = context_data()
    data.decode[list(SHARES)] = np.nan
    table = context.table(data)
    assert table[["verify_ms", "verify_over_ar_step"]].isna().all(axis=None)
    assert table["speedup"].notna().all()
    context.figure(table, "note")


def test_context_lines_are_the_rows():
    table = context.table(context_data())
    figure = context.figure(table, context.note(context_data()))
    columns = ("acceptance_length", "round_time_ms", "verify_over_ar_step", "speedup")
    for axes, column in zip(figure.axes, columns, strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        shown = {"ar", "dflash_chain", "ddtree", "tfm"} - (
            {"ar"} if column in ("acceptance_length", "speedup") else set()
        )
        for method in shown:
            line = lines[METHOD_STYLES[method].label]
            own = table[table["method"] == method]
            assert list(line.get_xdata()) == list(LENGTHS)
            assert list(line.get_ydata()) == list(own[column])
        assert METHOD_STYLES["ar"].label in lines or "ar" not in shown
        assert axes.get_ylim()[0] == (1 if column == "acceptance_length" else 0)
