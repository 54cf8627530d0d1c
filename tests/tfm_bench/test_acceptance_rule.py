"""The ablation of acceptance rules: variants, the exact distances of its probe, its table and figure."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tfm_bench.test_sample_match import ToyModel
from tests.tfm_bench.test_traversal import CONTEXT, emitted_law, random_tree
from tests.tfm_bench.tiny_stack import random_stack, shipped_stack
from tfm_bench.ablations import ablation_points, probe_settings
from tfm_bench.config import load_config, read_yaml
from tfm_bench.engine import Arm, generate
from tfm_bench.errors import UserError
from tfm_bench.measure.cells import ablation_cells
from tfm_bench.measure.probe_records import ablation_probe
from tfm_bench.measure.probes import acceptance_rule as probe
from tfm_bench.report.ablation_data import read_ablation
from tfm_bench.report.ablations import acceptance_rule as report
from tfm_bench.variants import variant_of
from tfm_bench.verification.rules import TRAVERSAL_SAMPLERS
from tfm_bench.verification.traversal import EXACT, FIXED_ORDER, NO_RESIDUAL, TargetRows

CONFIG = Path(__file__).parents[2] / "config" / "default.yaml"


def small_config(**ablations):
    config = read_yaml(CONFIG)
    config["stack"]["threads"] = 1
    config["ablations"].update({"prompts": 2, "max_new_tokens": 12, "budgets": [6], **ablations})
    return load_config(config)


def half_distance(one: dict, other: dict) -> float:
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2


@settings(max_examples=20)
@given(nodes=st.integers(1, 6), seed=st.integers(0, 2**16), sampler=st.sampled_from([EXACT, FIXED_ORDER, NO_RESIDUAL]))
def test_distances_are_those_of_whole_texts(nodes, seed, sampler):
    """Against the law of every text, written out to its last token."""
    model, tree = ToyModel(3, seed), random_tree(3, nodes, seed)
    length = int(tree.depths[: tree.size].max()) + 1
    if length > 4:
        return
    found = probe.enumerate_sampler(tree, TargetRows(tree, model.verify(tree, CONTEXT), 1.0), sampler)
    law, expected = emitted_law(model, tree, 1.0, sampler, length), model.law(CONTEXT, length, 1.0)
    assert found.text_variation == pytest.approx(half_distance(law, expected), abs=1e-10)
    first, own = Counter(), Counter()
    for text, probability in law.items():
        first[text[0]] += probability
    for text, probability in expected.items():
        own[text[0]] += probability
    assert found.first_token_variation == pytest.approx(half_distance(first, own), abs=1e-10)


def test_too_many_outcomes_give_no_result(monkeypatch):
    model, tree = ToyModel(3), random_tree(3, 6, 1)
    rows = TargetRows(tree, model.verify(tree, CONTEXT), 1.0)
    whole = probe.enumerate_sampler(tree, rows, EXACT)
    monkeypatch.setattr(probe, "MOST_OUTCOMES", whole.outcomes)
    assert probe.enumerate_sampler(tree, rows, EXACT) == whole
    monkeypatch.setattr(probe, "MOST_OUTCOMES", whole.outcomes - 1)
    assert probe.enumerate_sampler(tree, rows, EXACT)[1:] == (None, None, None)


@pytest.mark.parametrize("rule", TRAVERSAL_SAMPLERS)
@pytest.mark.parametrize("method", ["ddtree", "tfm"])
def test_variants_decode_by_their_rule(rule, method):
    """At temperature 0 the text of plain decoding; above it a text of its own, the same on every run."""
    stack = random_stack()
    other = variant_of(stack, f"rule_{rule}")
    arm, options = Arm(method, budget=6, expansion_width=2), {"seed": 3, "max_new_tokens": 24}
    assert other.rule.name == rule
    plain = generate(stack, [1, 2, 3], Arm("ar"), temperature=0.0, **options).tokens
    assert generate(other, [1, 2, 3], arm, temperature=0.0, **options).tokens == plain
    texts = [generate(other, [1, 2, 3], arm, temperature=1.0, **options).tokens for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 24


def test_a_rule_that_there_is_not_is_an_error():
    with pytest.raises(UserError, match="rule: found 'joy'; accepted are sample_match, traversal, "):
        variant_of(random_stack(), "rule_joy")


def test_arms_are_both_methods_under_every_rule():
    (settings,) = ablation_points(small_config(budgets=[6, 9]), "acceptance_rule").values()
    arms = [(arm.method, arm.budget, arm.variant) for arm in settings.arms]
    assert len(arms) == len(set(arms)) == 2 * 2 * (1 + len(TRAVERSAL_SAMPLERS))
    for name in {arm.variant for arm in settings.arms}:
        variant_of(random_stack(), name)


def test_temperature_zero_has_no_law():
    config = small_config(temperature=0.0)
    with pytest.raises(UserError, match=r"ablations\.temperature: found 0"):
        list(probe.probe(random_stack(), probe_settings(config, "acceptance_rule")))


def measured(folder: Path):
    """Cells and probe of two prompts of the shipped stack."""
    config = small_config()
    ablation_cells(ablation_points(config, "acceptance_rule"), folder / "cells.jsonl")
    ablation_probe(probe_settings(config, "acceptance_rule"), folder / "probe.jsonl")
    return read_ablation(folder / "cells.jsonl", folder / "probe.jsonl")


def test_table_and_figure_of_a_real_run(tmp_path):
    data = measured(tmp_path)
    table = report.table(data)
    assert list(table.columns) == report.COLUMNS
    decoded, enumerated = (table[table["counted_by"] == kind] for kind in (report.DECODING, report.ENUMERATION))
    assert len(decoded) == 2 * 4
    assert len(enumerated) == 2 * 3
    assert (table["status"] == "ok").all()
    exact = enumerated[enumerated["rule"] == "traversal"]
    assert exact[["text_variation", "first_token_variation", "accepted_drafts_gain"]].abs().to_numpy().max() < 1e-9
    others = enumerated[enumerated["rule"] != "traversal"]
    assert (others["text_variation"] >= others["first_token_variation"] - 1e-12).all()
    assert others["text_variation"].max() > 1e-4
    matched = decoded[(decoded["rule"] == "sample_match") & (decoded["method"] == "tfm")]
    rows = data.decode[(data.decode["variant"] == "default") & (data.decode["method"] == "tfm")]
    mean = rows["accepted_drafts_sum"].sum() / rows["rounds"].sum()
    np.testing.assert_allclose(matched["accepted_drafts"], float(mean))
    figure = report.figure(table, report.note(data))
    assert len(figure.axes) == 4
    assert "paired" not in report.note(data)


def test_rounds_that_were_not_enumerated_are_counted():
    rows = {"prompt": [0, 0, 1], "accepted_drafts": [1.0, None, 2.0], "matched_drafts": [1.0, 1.0, 1.5]}
    rows |= {"text_variation": [0.1, None, 0.3], "first_token_variation": [0.0, None, 0.1]}
    row = report._enumerated(pd.DataFrame(rows))
    assert (row["rounds"], row["left_out_rounds"], row["prompts"]) == (2, 1, 2)
    assert row["text_variation"] == pytest.approx(0.2)
    assert row["accepted_drafts_gain"] == pytest.approx(0.25)
    assert row["text_variation_low"] < 0.2 < row["text_variation_high"]


def test_the_probe_follows_the_stack_it_is_given():
    found = list(probe.probe(shipped_stack(), probe_settings(small_config(), "acceptance_rule")))
    assert {(row["method"], row["rule"]) for row in found} == {
        (method, rule) for method in ("ddtree", "tfm") for rule in TRAVERSAL_SAMPLERS
    }
    rounds = Counter((row["prompt"], row["method"], row["round"]) for row in found)
    assert set(rounds.values()) == {3}
    assert {row["budget"] for row in found} == {probe.BUDGET}


def test_rules_are_compared_on_the_same_rounds():
    place = {"prompt": [0, 0, 0, 0], "method": ["tfm"] * 4, "round": [0, 0, 1, 1]}
    seen = pd.DataFrame({**place, "rule": ["a", "b", "a", "b"], "accepted_drafts": [1.0, None, 2.0, 3.0]})
    assert report.with_all_rules(seen)["accepted_drafts"].isna().tolist() == [True, True, False, False]
