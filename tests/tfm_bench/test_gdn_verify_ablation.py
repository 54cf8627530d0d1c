"""The ablation of Gated-DeltaNet verification: like compared with like, shares from the staged runs alone."""

import numpy as np
import pandas as pd
import pytest

from tests.tfm_bench.arm_frames import SHARES, ablation_data, arm_frame
from tfm_bench.report.ablations import gdn_verify
from tfm_bench.report.style import ARM_STYLES

AR = {("ar", 0, 0, "default"): (0, 4.0)}
# Milliseconds per round; all accept 3 drafts.
OWN = {"fused": 8.0, "node_recurrent": 10.0, "path_recurrent": 12.0}
TORCH = {"torch_fused": 16.0, "torch_level_recurrent": 20.0, "torch_node_recurrent": 32.0}


def data(implementation="torch", **options):
    arms = {("tfm", b, 1, f"gdn_{name}"): (3, ms + b / 64) for b in (15, 64) for name, ms in OWN.items()}
    arms |= {("tfm", 64, 1, f"gdn_{name}"): (3, ms) for name, ms in TORCH.items()}
    named = {variant: implementation for *_, variant in arms if "torch" in variant}
    return ablation_data(arm_frame(AR | arms, implementations=named, **options))


def test_each_row_says_who_verified_and_is_compared_with_its_like():
    table = gdn_verify.table(data())
    assert list(table.columns) == gdn_verify.COLUMNS
    assert len(table) == 2 * 3 + 3
    rows = table.set_index(["gdn_implementation", "budget", "gdn_verify"])
    assert rows.loc[("compiled", 15, "node_recurrent"), "fused_speedup"] == pytest.approx(
        (10 + 15 / 64) / (8 + 15 / 64)
    )
    assert rows.loc[("torch", 64, "level_recurrent"), "fused_speedup"] == pytest.approx(20 / 16)
    assert rows.loc[("torch", 64, "node_recurrent"), "fused_speedup"] == pytest.approx(32 / 16)
    assert (rows.xs("fused", level="gdn_verify")["fused_speedup"] == 1).all()
    assert ("compiled", 64, "level_recurrent") not in rows.index


def test_all_arms_have_a_speedup_over_the_one_ar():
    """Another implementation is what is compared here, and no mixture of machines."""
    table = gdn_verify.table(data())
    assert set(table["status"]) == {"ok"}
    rows = table.set_index(["gdn_implementation", "budget", "gdn_verify"])
    assert rows.loc[("torch", 64, "fused"), "speedup"] == pytest.approx(4 * 4 / 16)
    assert (table["speedup_low"] <= table["speedup"] + 1e-9).all()


def test_a_mixture_of_machines_is_still_one():
    mixed = data()
    mixed.decode.loc[mixed.decode["variant"] == "gdn_fused", "device"] = "Other CPU"
    rows = gdn_verify.table(mixed).set_index(["gdn_implementation", "budget", "gdn_verify"])
    assert rows.loc[("compiled", 64, "fused"), "status"] == "mixed hardware: device"
    assert np.isnan(rows.loc[("compiled", 64, "node_recurrent"), "fused_speedup"])


def test_stages_are_per_round_of_the_staged_prompts():
    table = gdn_verify.table(data(staged_prompts=2))
    row = table[(table["gdn_implementation"] == "torch") & (table["gdn_verify"] == "fused")].iloc[0]
    staged = 16 * (1.0 + 1.1) / 2  # the two staged prompts take 0 and 10 % longer
    assert row["staged_prompts"] == 2
    assert row["staged_round_ms"] == pytest.approx(staged)
    assert row["verify_ms"] == pytest.approx(SHARES["verify_ms"] * staged)
    assert row["verify_share"] == pytest.approx(SHARES["verify_ms"])
    assert row["commit_share"] == pytest.approx(SHARES["commit_ms"])
    assert row["commit_share_low"] == pytest.approx(row["commit_share_high"])


def test_nothing_staged_leaves_the_columns_empty_and_the_figure_whole():
    table = gdn_verify.table(data(staged_prompts=0))
    assert list(table.columns) == gdn_verify.COLUMNS
    assert table[["verify_ms", "verify_share", "staged_prompts"]].isna().all(axis=None)
    assert table["speedup"].notna().all()
    gdn_verify.figure(table, "note")


def test_where_torch_is_the_fastest_no_arm_stands_twice():
    plain = data()
    plain.decode["gdn_implementation"] = "torch"
    table = gdn_verify.table(plain)
    assert not table.duplicated(gdn_verify.ARM).any()
    assert len(table) == 2 * 3 + 1  # only level_recurrent is not among the stack's own arms


def test_bars_sum_to_the_staged_round_and_dots_are_the_ratios():
    table = gdn_verify.table(data())
    panels = np.array(gdn_verify.figure(table, gdn_verify.note(data())).axes).reshape(3, 3)
    groups = table.groupby(["gdn_implementation", "budget"], sort=False)
    assert [axes.get_title(loc="left") for axes in panels[0]] == [f"{who}, budget {b}" for who, b in groups.groups]
    for column, (_, rows) in enumerate(groups):
        stages, speeds, gains = panels[:, column]
        heights = [[bar.get_height() for bar in container] for container in stages.containers]
        np.testing.assert_allclose(np.sum(heights, axis=0), rows["staged_round_ms"])
        np.testing.assert_allclose(heights[0], rows["verify_ms"])
        assert [x.get_ydata()[0] for x in speeds.lines if len(x.get_ydata()) == 1] == list(rows["speedup"])
        others = rows[rows["gdn_verify"] != "fused"]
        assert [x.get_ydata()[0] for x in gains.lines if len(x.get_ydata()) == 1] == list(others["fused_speedup"])
        names = [ARM_STYLES[method].label.removesuffix(" recurrent") for method in rows["gdn_verify"]]
        assert [tick.get_text() for tick in stages.get_xticklabels()] == names
    assert all(axes.get_ylim()[0] == 0 for axes in panels.flat)


def test_the_note_counts_staged_prompts():
    assert "Stages: 2 prompts" in gdn_verify.note(data(staged_prompts=2))


def test_processes_that_ran_other_kernels_of_their_own_are_a_mixture():
    first = data().decode
    second = first.assign(repeat=1, gdn_implementation="torch")
    both = ablation_data(pd.concat([first, second], ignore_index=True))
    assert set(gdn_verify.table(both)["status"]) == {"mixed hardware: gdn_implementation"}
