"""Table and figure of the drafting ablation, from made-up rounds and places whose sums are known."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.tfm_bench.arm_frames import ROUNDS, ablation_data, arm_frame
from tfm_bench.measure.statistics import Rate, gain_share, gain_share_interval, ratio_interval
from tfm_bench.report.ablations import drafting
from tfm_bench.report.dictionary import TABLES

DECODED = {
    ("dflash_chain", 15, 0, "default"): 2.0,
    ("dflash_chain", 15, 0, "chain_sampled"): 1.5,
    ("ddtree", 15, 0, "default"): 3.0,
    ("tfm", 15, 1, "default"): 4.0,
    ("tfm", 15, 1, "weaver_no_residual"): 3.0,
    ("tfm", 15, 1, "weaver_wrong_parent"): 2.0,
    ("tfm", 15, 1, "weaver_blind_to_path"): 3.5,
}
PROMPTS, DEPTHS, PLACES = 5, 15, 40


def places(arm, mean):
    """Observations of one arm, prompt by prompt: a tenth more places and drafts per prompt; the spine has half."""
    method, budget, _, variant = arm
    for prompt, depth in itertools.product(range(PROMPTS), range(1, DEPTHS + 1)):
        reached = round((PLACES + 4 * prompt) * mean / (mean + depth - 1))
        accepted = round((PLACES + 4 * prompt) * mean / (mean + depth) * 0.9)
        counts = {"reached": reached, "accepted": accepted, "spine_reached": reached, "spine_accepted": accepted // 2}
        place = {"prompt": prompt, "method": method, "variant": variant, "budget": budget, "depth": depth}
        yield SimpleNamespace(values={**place, **counts})


@pytest.fixture
def data():
    frame = arm_frame({("ar", 0, 0, "default"): (0, 5.0)} | {arm: (mean, 9.0) for arm, mean in DECODED.items()})
    # Prompts differ, and tfm from ddtree on all of them.
    more = frame["prompt"] * frame["method"].ne("ar")
    frame["accepted_drafts_sum"] += more
    frame["tokens"] += more
    probe = [record for arm, mean in DECODED.items() for record in places(arm, mean)]
    return dataclasses.replace(ablation_data(frame), probe=probe)


def of(table, variant, counted_at, depth=None, method="tfm"):
    rows = table[(table["method"] == method) & (table["variant"] == variant) & (table["counted_at"] == counted_at)]
    (row,) = rows[rows["depth"].isna() if depth is None else rows["depth"] == depth].to_dict("records")
    return row


def test_columns_and_rows(data):
    table = drafting.table(data)
    assert list(table.columns) == drafting.COLUMNS == TABLES["ablation_drafting"]
    assert len(table) == len(DECODED) * (2 + len(drafting.DEPTHS))
    assert (table["status"] == "ok").all()


def test_rounds_are_sums_over_rounds_and_shares_of_the_gain(data):
    table, total = drafting.table(data), PROMPTS * ROUNDS
    extra = sum(range(PROMPTS)) / total
    for variant, mean in (("default", 4.0), ("weaver_blind_to_path", 3.5), ("weaver_wrong_parent", 2.0)):
        row = of(table, variant, "rounds")
        assert row["accepted_drafts"] == pytest.approx(mean + extra)
        assert row["ratio_to_ddtree"] == pytest.approx((mean + extra) / (3 + extra))
        assert row["ratio_to_tfm"] == pytest.approx((mean + extra) / (4 + extra))
        assert row["gain_share"] == pytest.approx(mean - 3)
        assert row["gain_share_low"] <= row["gain_share"] <= row["gain_share_high"]
    assert np.isnan(of(table, "default", "rounds", method="dflash_chain")["gain_share"])


def test_places_are_sums_over_places(data):
    table = drafting.table(data)
    seen = pd.DataFrame([record.values for record in data.probe])
    for method, _, _, variant in DECODED:
        own = seen[(seen["method"] == method) & (seen["variant"] == variant)]
        first = own[own["depth"] == 1]
        row = of(table, variant, "places", method=method)
        assert row["accepted_drafts"] == pytest.approx(own["accepted"].sum() / first["reached"].sum())
        assert row["prompts"] == PROMPTS
        for depth in drafting.DEPTHS:
            at, row = own[own["depth"] == depth], of(table, variant, "places", depth, method)
            assert row["tree_acceptance"] == pytest.approx(at["accepted"].sum() / at["reached"].sum())
            assert row["spine_acceptance"] == pytest.approx(at["spine_accepted"].sum() / at["spine_reached"].sum())
            assert row["tree_acceptance_low"] <= row["tree_acceptance"] <= row["tree_acceptance_high"]


def test_an_arm_that_is_not_lossless_has_no_numbers_and_spoils_no_other(data):
    frame = data.decode.copy()
    frame.loc[frame["variant"] == "weaver_wrong_parent", "lossless"] = False
    table = drafting.table(dataclasses.replace(data, decode=frame))
    bad, good = of(table, "weaver_wrong_parent", "rounds"), of(table, "weaver_no_residual", "rounds")
    assert (bad["status"], good["status"]) == ("not lossless", "ok")
    assert np.isnan(bad["accepted_drafts"])
    assert np.isfinite(good["gain_share"])
    figure = drafting.figure(table, "note")
    assert "not lossless" in [text.get_text() for text in figure.axes[0].texts]


def test_the_figure_draws_the_table(data):
    table = drafting.table(data)
    figure = drafting.figure(table, "note")
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels[:3] == ["chain, sampled", "chain, argmax", "DDTree"]
    for axes, kind in zip(figure.axes[:2], ("rounds", "places"), strict=True):
        drawn = sorted(float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() not in ("None", ""))
        expected = table[table["depth"].isna() & (table["counted_at"] == kind)]["ratio_to_ddtree"]
        assert drawn == pytest.approx(sorted(expected))
        assert axes.get_xlim()[0] == 0
    for axes, column in zip(figure.axes[2:], drafting.BY_DEPTH, strict=True):
        drawn = sorted(y for line in axes.lines for y in line.get_ydata())
        assert drawn == pytest.approx(sorted(table[table["depth"].notna()][column]))
        assert axes.get_ylim() == (0, 1)


def test_a_weaver_of_an_unknown_name_is_drawn_and_missing_ones_are_named(data):
    frame = data.decode.replace({"variant": {"weaver_blind_to_path": "weaver_deep_one"}})
    probe = [
        SimpleNamespace(
            values=record.values | {"variant": record.values["variant"].replace("blind_to_path", "deep_one")}
        )
        for record in data.probe
    ]
    changed = dataclasses.replace(data, decode=frame, probe=probe)
    figure = drafting.figure(drafting.table(changed), "note")
    assert figure.axes[0].get_yticklabels()[-1].get_text() == "deep one (retrained)"
    note = drafting.note(changed)
    assert "blind to path (retrained)" in note
    assert "n = 5 test prompts" in note
    assert "no residual" not in note


def test_gain_share_is_the_gain_left_over_the_whole_gain():
    rng = np.random.default_rng(0)
    per = np.full((1, 12), 50.0)
    base = Rate(100 + 20 * rng.random((1, 12)), per)
    full, half = Rate(base.counts * 1.4, per), Rate(base.counts * 1.2, per)
    assert gain_share(half, base, full) == pytest.approx(0.5)
    assert gain_share(base, base, full) == 0
    interval = gain_share_interval(half, base, full)
    assert (interval.low, interval.high) == pytest.approx((0.5, 0.5)), "all three share every draw"
    noisy = Rate(base.counts * (1.2 + 0.1 * rng.standard_normal((1, 12))), per)
    assert gain_share_interval(noisy, base, full).low < gain_share(noisy, base, full)


def test_of_no_gain_there_are_no_shares():
    rng = np.random.default_rng(1)
    per = np.full((1, 12), 50.0)
    base, same = (Rate(100 + 20 * rng.standard_normal((1, 12)), per) for _ in range(2))
    assert ratio_interval(same, base).low < 1 < ratio_interval(same, base).high
    assert np.isnan(gain_share_interval(base, base, same).low)
    with pytest.raises(ValueError, match="not paired"):
        gain_share_interval(Rate(per[:, :3], per[:, :3]), base, same)
