"""The ablation of trees that stop by themselves: variant, cost curve, table and figure."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.tfm_bench.tiny_stack import random_stack
from tfm_bench.ablations import AUTO, ablation_points, auto_arms, probe_settings
from tfm_bench.config import load_config, read_yaml
from tfm_bench.engine import Arm, generate
from tfm_bench.errors import UserError
from tfm_bench.measure import round_times
from tfm_bench.measure.cells import ablation_cells
from tfm_bench.measure.invariants import check_invariants
from tfm_bench.measure.probe_records import ablation_probe
from tfm_bench.measure.round_times import RoundTimes, measure_round_times, tree_sizes
from tfm_bench.models.target import Target
from tfm_bench.report.ablation_data import read_ablation
from tfm_bench.report.ablations import auto_budget as report
from tfm_bench.variants import variant_of

CONFIG = Path(__file__).parents[2] / "config" / "default.yaml"
ARMS = [Arm("ddtree", budget=12), Arm("tfm", budget=12, expansion_width=3)]


def small_config():
    config = read_yaml(CONFIG)
    config["stack"]["threads"] = 1
    config["ablations"].update({"prompts": 2, "max_new_tokens": 10, "auto_budget": {"budgets": [4, 8]}})
    return load_config(config)


@pytest.fixture
def steep(monkeypatch):
    """Costs that make small trees pay, and count how often they are measured."""
    measured = []

    def costs(stack, arm):
        measured.append(arm)
        return RoundTimes([1, arm.budget], [[10.0], [10.0 + 0.4 * arm.budget]], arm.budget)

    # Not by its dotted name: the package holds the function of that name in place of the module.
    monkeypatch.setattr(sys.modules["tfm_bench.variants.auto"], "measure_round_times", costs)
    return measured


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.method)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_plain_decoding(steep, arm, temperature):
    stack, options = random_stack(), {"temperature": temperature, "seed": 3, "max_new_tokens": 40}
    plain = generate(stack, [1, 2, 3], Arm("ar"), **options)
    found = generate(variant_of(stack, AUTO), [1, 2, 3], arm, **options)
    assert found.tokens == plain.tokens
    widths = {done.verify_width for done in found.rounds}
    assert max(widths) <= arm.budget + 1
    assert min(widths) < arm.budget + 1


class Stepped(Target):
    """As a target with graphs, which has one for each width."""

    width_step = 4


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.method)
def test_where_widths_are_recorded_there_are_few(steep, arm):
    stack, options = random_stack(), {"temperature": 1.0, "seed": 3, "max_new_tokens": 40}
    target = copy.copy(stack.target)
    target.__class__ = Stepped
    found = generate(variant_of(replace(stack, target=target), AUTO), [1, 2, 3], arm, **options)
    assert found.tokens == generate(stack, [1, 2, 3], Arm("ar"), **options).tokens
    widths = {done.verify_width for done in found.rounds}
    assert widths <= {1, 5, 9, 13}
    assert len(widths) > 1


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.method)
def test_trees_begin_as_those_of_the_whole_budget(steep, arm):
    """Of the same rounds: both write the same text, but their rounds part; so every tree is built anew, whole."""
    stack = random_stack()
    whole, seen = stack.builders[arm.method], []

    def observe(draft, tree, _output, _outcome):
        full = whole(stack, arm, draft)
        seen.append(tree.size)
        assert tree.tokens.tolist() == full.tokens[: tree.size].tolist()
        assert tree.parents.tolist() == full.parents[: tree.size].tolist()

    generate(variant_of(stack, AUTO), [1, 2, 3], arm, temperature=1.0, seed=0, max_new_tokens=24, observer=observe)
    assert len(set(seen)) > 1


def test_costs_are_measured_once_per_arm_with_fixed_budgets(steep):
    other = variant_of(random_stack(), AUTO)
    for _ in range(2):
        for arm in ARMS:
            generate(other, [1, 2, 3], arm, temperature=0.0, seed=0, max_new_tokens=8)
    assert steep == ARMS


def test_the_stopping_rule_has_one_name():
    with pytest.raises(UserError, match="found 'auto_joy'; accepted is auto_theta"):
        variant_of(random_stack(), "auto_joy")


@pytest.mark.parametrize(
    ("budget", "step", "sizes"), [(64, 4, [4, 8, 16, 32, 64]), (15, 1, [1, 2, 4, 8, 15]), (3, 4, [3])]
)
def test_tree_sizes(budget, step, sizes):
    assert tree_sizes(budget, step) == sizes


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.method)
def test_rounds_of_every_size_are_timed(monkeypatch, arm):
    """On trees of the size that is asked for, after every width that growth can stop at has been seen once."""
    widths = []
    original = round_times.generate

    def watched(*args, **options):
        done = original(*args, **options)
        widths.extend({one.verify_width for one in done.rounds})
        return done

    monkeypatch.setattr(round_times, "generate", watched)
    times = measure_round_times(random_stack(), arm)
    assert times.drafts == tree_sizes(12, max(1, arm.expansion_width))
    step = max(1, arm.expansion_width)
    assert sorted(set(widths)) == [size + 1 for size in range(step, 13, step)]
    assert all(len(samples) >= 2 and min(samples) > 0 for samples in times.samples_ms)
    costs = times.costs()
    assert len(costs) == 13
    assert all(after >= before - 1e-9 for before, after in pairwise(costs))


def test_points_are_the_splits():
    config = small_config()
    points = ablation_points(config, "auto_budget")
    assert [settings.split for settings in points.values()] == ["dev", "test"]
    for settings in points.values():
        arms = [(arm.method, arm.budget, arm.variant) for arm in settings.arms]
        assert arms[:4] == [
            ("ddtree", 4, "default"),
            ("tfm", 4, "default"),
            ("ddtree", 8, "default"),
            ("tfm", 8, "default"),
        ]
        assert arms[4:] == [("ddtree", 8, AUTO), ("tfm", 8, AUTO)]
    assert [arm.expansion_width for arm in auto_arms(config)] == [0, 1]


def test_table_and_figure_of_a_real_run(tmp_path):
    config = small_config()
    ablation_cells(ablation_points(config, "auto_budget"), tmp_path / "cells.jsonl")
    ablation_probe(probe_settings(config, "auto_budget"), tmp_path / "probe.jsonl")
    check_invariants([tmp_path / "cells.jsonl"])
    data = read_ablation(tmp_path / "cells.jsonl", tmp_path / "probe.jsonl")
    assert data.decode["lossless"].all()
    table = report.table(data)
    assert list(table.columns) == report.COLUMNS
    arms, curve = table[table["speedup"].notna()], table[table["fitted_ms"].notna()]
    assert len(arms) + len(curve) == len(table)
    assert len(arms) == 2 * 3
    assert sorted(set(curve["draft_nodes"])) == [1, 2, 4, 8]
    for method, rows in arms.groupby("method"):
        (chosen,) = rows[rows["chosen_on"] == "dev"]["budget"]
        dev = data.decode[(data.decode["split"] == "dev") & (data.decode["variant"] == "default")]
        sums = dev[dev["method"] == method].groupby("budget")[["tokens", "decode_ms"]].sum()
        assert chosen == (sums["tokens"] / sums["decode_ms"]).astype(float).idxmax()
        own = rows[(rows["budget"] == chosen) & (rows["variant"] == "default")]
        np.testing.assert_allclose(own["best_fixed_ratio"], 1.0)
        auto = rows[rows["variant"] == AUTO]
        np.testing.assert_allclose(
            auto["best_fixed_ratio"], auto["tokens_per_second"].item() / own["tokens_per_second"].item()
        )
        assert (
            rows.loc[rows["variant"] == "default", "draft_nodes"] == rows.loc[rows["variant"] == "default", "budget"]
        ).all()
    figure = report.figure(table, report.note(data))
    assert len(figure.axes) == 4
