"""Cells of the ablations that vary an arm, a temperature or a length: which arms they decode, and what for."""

import itertools
from math import ceil

import pytest

from tests.tfm_bench.fake_cells import ROOT, settings_for
from tfm_bench.ablations import CELLS, ablation_points
from tfm_bench.config import load_config, read_yaml
from tfm_bench.measure.records import read_records

BLOCK = 16


@pytest.fixture
def config():
    return load_config(read_yaml(ROOT / "config" / "default.yaml"))


def arms(cells, settings):
    return [(arm.method, arm.budget, arm.expansion_width, arm.variant) for arm in cells.cell_arms(settings, BLOCK)]


def test_budget_has_a_chain_of_equal_width_beside_every_tree_up_to_the_block(cells, config):
    points = CELLS["budget"](config)
    assert [point.temperature for point in points.values()] == config.ablations.budget.temperatures
    for settings in points.values():
        found = arms(cells, settings)
        budgets = {m: [b for method, b, *_ in found if method == m] for m in ("dflash_chain", "ddtree", "tfm")}
        assert budgets["ddtree"] == budgets["tfm"] == config.ablations.budget.budgets
        assert budgets["dflash_chain"] == [*(b for b in budgets["tfm"] if b < BLOCK - 1), BLOCK - 1]
        assert found[0] == ("ar", 0, 0, "default")


def test_width_is_the_product_of_budgets_and_widths(cells, config):
    (settings,) = CELLS["width"](config).values()
    ablation = config.ablations.width
    grid = [("tfm", b, w, "default") for b, w in itertools.product(ablation.budgets, ablation.widths)]
    assert arms(cells, settings) == [("ar", 0, 0, "default"), *grid]
    assert all(("tfm", b, ceil(b / 16), "default") in grid for b in ablation.budgets)


def test_gdn_verify_has_torch_with_every_method_at_the_largest_budget(cells, config):
    (settings,) = CELLS["gdn_verify"](config).values()
    found = arms(cells, settings)[1:]
    methods = ("fused", "node_recurrent", "level_recurrent", "path_recurrent")
    largest = max(config.ablations.budgets)
    assert {variant for _, budget, _, variant in found if budget == largest} >= {f"gdn_torch_{m}" for m in methods}
    assert {(budget, variant) for _, budget, _, variant in found if "torch" not in variant} == {
        (b, f"gdn_{m}") for b in config.ablations.budgets for m in methods if m != "level_recurrent"
    }
    assert len(found) == len(set(found))


def test_points_of_one_ablation_differ_in_what_it_varies_alone(config):
    for ablation, field in (("temperature", "temperature"), ("context", "prompt_tokens")):
        points = [point.model_dump() for point in ablation_points(config, ablation).values()]
        varied = [point.pop(field) for point in points]
        assert len(set(varied)) == len(varied) > 1
        assert all(point == points[0] for point in points)


def test_only_ablations_that_report_stages_pay_for_them(config):
    staged = {name for name, cells in CELLS.items() if any(point.staged for point in cells(config).values())}
    assert staged == {"gdn_verify", "context"}


def test_a_cell_that_is_not_staged_measures_no_stages(cells, stack_folder):
    cells.decode_cell(settings_for(stack_folder).model_copy(update={"staged": False}), stack_folder / "cell.jsonl")
    assert cells.calls
    assert not any(call.staged for call in cells.calls)
    assert all(record.stage_ms is None for record in read_records(stack_folder / "cell.jsonl"))
