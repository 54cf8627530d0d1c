"""Table and figure of the pool ablation, from made-up rounds and ranks whose sums are known."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.tfm_bench.arm_frames import ablation_data, arm_frame
from tfm_bench.report.ablations import pool
from tfm_bench.report.dictionary import TABLES

ACCEPTED = {8: 2.0, 64: 3.0, 512: 3.5}


@pytest.fixture
def data():
    arms = {("tfm", 64, 4, f"pool_{size}"): (accepted, 9.0) for size, accepted in ACCEPTED.items()}
    frame = arm_frame({("ar", 0, 0, "default"): (0, 5.0)} | arms)
    probe = [
        SimpleNamespace(values={"prompt": prompt, "depth": depth, "pool_size": size, "tokens": 40, "outside": outside})
        for prompt, depth, size in itertools.product(range(5), (1, 2, 4, 5, 9), ACCEPTED)
        for outside in [0 if size == 512 else (prompt + depth) * 8 // size]
        if (prompt, depth) != (3, 9)  # a prompt that never came that deep
    ]
    return dataclasses.replace(ablation_data(frame), probe=probe)


def test_acceptance_is_over_that_of_the_largest_pool(data):
    table = pool.table(data)
    assert list(table.columns) == pool.COLUMNS == TABLES["ablation_pool"]
    arms = table[table["depths"].isna()]
    assert arms["pool_size"].tolist() == list(ACCEPTED)
    assert arms["acceptance_length"].tolist() == pytest.approx([3, 4, 4.5])
    assert arms["acceptance_ratio"].tolist() == pytest.approx([3 / 4.5, 4 / 4.5, 1])
    assert set(arms["budget"]) == {64}


def test_shares_are_sums_over_prompts_and_depths(data):
    table = pool.table(data)
    seen = pd.DataFrame([record.values for record in data.probe])
    ranges = {"all": range(1, 10), "1": [1], "2-4": range(2, 5), "5+": range(5, 10)}
    shares = table[table["depths"].notna()]
    assert len(shares) == len(ranges) * len(ACCEPTED)
    for (_, row), (depths, size) in zip(shares.iterrows(), itertools.product(ranges, ACCEPTED), strict=True):
        own = seen[seen["depth"].isin(ranges[depths]) & (seen["pool_size"] == size)]
        assert (row["depths"], row["pool_size"], row["counted_tokens"]) == (depths, size, own["tokens"].sum())
        assert row["outside_share"] == pytest.approx(own["outside"].sum() / own["tokens"].sum())
        assert row["outside_share_low"] <= row["outside_share"] <= row["outside_share_high"]
    assert shares.loc[shares["pool_size"] == 512, "outside_share"].eq(0).all()


def test_without_the_largest_pool_there_is_nothing_to_compare_with(data):
    frame = data.decode.copy()
    frame.loc[frame["variant"] == "pool_512", "lossless"] = False
    arms = pool.table(dataclasses.replace(data, decode=frame)).query("depths.isna()")
    assert arms["acceptance_ratio"].isna().all()
    assert arms["acceptance_length"].isna().tolist() == [False, False, True]
    assert arms["status"].tolist() == ["ok", "ok", "not lossless"]


def test_the_figure_draws_the_table(data):
    table = pool.table(data)
    left, right = pool.figure(table, "note").axes
    (line,) = left.lines
    assert list(line.get_ydata()) == table[table["depths"].isna()]["acceptance_ratio"].tolist()
    assert list(line.get_xdata()) == list(ACCEPTED)
    assert "1 is 4.50 tokens" in left.get_title(loc="left")
    drawn = [y for line in right.lines for y in line.get_ydata()]
    assert drawn == table[table["depths"].notna()]["outside_share"].tolist()
    for axes in (left, right):
        assert axes.get_ylim()[0] == 0
        assert axes.get_xscale() == "log"
    assert not np.isnan(drawn).any()


def test_the_note_says_how_many_prompts(data):
    assert "n = 5 test prompts × 1 repeats" in pool.note(data)
