"""Rows of ablations' arms: the numbers put in, intervals around them, and cells that are never mixed."""

import numpy as np
import pandas as pd
import pytest

from tests.tfm_bench.arm_frames import ROUNDS, SHARES, arm_frame
from tfm_bench.report.ablation_rows import ARM_ROW, arm_rows, decode_note, paired_ratio, staged_rows
from tfm_bench.report.arms import ArmData, arms_of

ARMS = {
    ("ar", 0, 0, "default"): (0, 10.0),
    ("ddtree", 8, 0, "default"): (1, 12.0),
    ("tfm", 8, 1, "default"): (2, 15.0),
}


def test_a_row_per_arm_holds_what_was_put_in():
    table = arm_rows(arm_frame(ARMS)).set_index("method")
    assert list(arm_rows(arm_frame(ARMS)).columns) == ARM_ROW
    assert list(table.index) == ["ar", "ddtree", "tfm"]
    assert list(table["acceptance_length"]) == [1, 2, 3]
    np.testing.assert_allclose(
        table["round_time_ms"], [12.0, 14.4, 18.0]
    )  # prompts take 0 to 40 % longer: 20 % on average
    np.testing.assert_allclose(table["speedup"], [1, 2 * 10 / 12, 3 * 10 / 15])
    np.testing.assert_allclose(table["tokens_per_second"], 1000 * table["acceptance_length"] / table["round_time_ms"])
    assert (table["round_time_ms_low"] < table["round_time_ms"]).all()
    assert (table["round_time_ms"] < table["round_time_ms_high"]).all()
    assert (table["noise_low"] < 1).all()
    assert (table["noise_high"] > 1).all()
    assert set(table["prompts"]) == {5}


def test_cells_of_other_temperatures_and_lengths_have_their_own_baseline():
    decode = arm_frame(ARMS, temperatures=[0.0, 1.0], lengths=[64, 128])
    slow = decode["decode_ms"].where(decode["prompt_tokens"] == 64, decode["decode_ms"] * 3)
    table = arm_rows(decode.assign(decode_ms=slow), by=["prompt_tokens"])
    assert len(table) == 2 * 2 * 3
    assert set(table["prompt_tokens"]) == {64, 128}
    np.testing.assert_allclose(table.loc[table["method"] == "tfm", "speedup"], 2.0)
    times = table[table["method"] == "ar"].groupby("prompt_tokens")["round_time_ms"].first()
    assert times[128] == pytest.approx(3 * times[64])


def test_further_columns_stand_at_the_end_even_if_the_first_row_lacks_them():
    table = arm_rows(arm_frame(ARMS), further=lambda arm, arms: {"own": len(arms)} if arm.method == "tfm" else {})
    assert list(table.columns) == [*ARM_ROW, "own"]
    assert list(table["own"].dropna()) == [3]


def test_a_failed_arm_keeps_its_row_without_numbers_and_says_why():
    decode = arm_frame(ARMS)
    decode.loc[(decode["method"] == "tfm") & (decode["prompt"] == 1), ["status", "reason"]] = ["failed", "no memory"]
    row = arm_rows(decode).set_index("method").loc["tfm"]
    assert row["status"] == "failed: no memory"
    assert row[["speedup", "acceptance_length", "round_time_ms", "round_time_ms_low"]].isna().all()


def test_paired_ratios_are_those_of_sums_and_empty_where_arms_may_not_be_compared():
    arms = {arm.method: arm for arm in arms_of(arm_frame(ARMS))}
    found = paired_ratio("gain", arms["tfm"], arms["ddtree"], ArmData.accepted_drafts)
    assert list(found) == ["gain", "gain_low", "gain_high"]
    assert set(found.values()) == {2.0}
    assert all(np.isnan(x) for x in paired_ratio("gain", arms["tfm"], None, ArmData.speed).values())
    lossy = arm_frame(ARMS).assign(lossless=lambda rows: rows["method"] != "tfm")
    arms = {arm.method: arm for arm in arms_of(lossy)}
    assert np.isnan(paired_ratio("gain", arms["tfm"], arms["ddtree"], ArmData.speed)["gain"])


def test_only_generations_with_stage_times_are_staged():
    arms = arms_of(arm_frame(ARMS, staged_prompts=2))
    for arm in arms:
        rows = staged_rows(arm)
        assert list(rows["prompt"]) == [0, 1]
        pd.testing.assert_series_equal(rows[list(SHARES)].sum(axis=1), rows["decode_ms"], check_names=False)
        assert set(rows["rounds"]) == {ROUNDS}


def test_the_small_print_claims_no_selection():
    note = decode_note(arm_frame(ARMS))
    assert "n = 5 test prompts" in note
    assert "loops" not in note
