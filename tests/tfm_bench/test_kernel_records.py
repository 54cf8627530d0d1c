"""The kernel benchmark from settings to table: what is measured, and what is written down."""

import json

import pytest
import torch

from kernels.gdn_tree import TORCH, Implementation
from tests.tfm_bench.tiny_kernels import DEFAULTS, registry, settings_for
from tfm_bench.config import KernelSettings, load_config
from tfm_bench.errors import UserError
from tfm_bench.kernel_config import KernelCase
from tfm_bench.measure import kernels
from tfm_bench.measure.kernel_problems import SHAPES
from tfm_bench.measure.kernel_records import COLUMNS, KernelRecord, kernel_table, read_kernel_records
from tfm_bench.measure.roofline import Limits


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Runs kernel_cell with made-up limits and the allocator left alone; returns the records."""

    def measure(settings: KernelSettings, available=None) -> list[KernelRecord]:
        limits = Limits(1e10, 2e10, 1e11)
        monkeypatch.setattr(kernels, "measure_limits", lambda *_: limits)
        monkeypatch.setattr(kernels, "keep_freed_memory", lambda: False)
        (tmp_path / "trees.jsonl").touch()
        kernels.kernel_cell(
            settings, tmp_path / "trees.jsonl", tmp_path / "out" / "kernels.jsonl", available or registry()
        )
        return read_kernel_records(tmp_path / "out" / "kernels.jsonl")

    yield measure
    torch.set_num_threads(1)


def wrong(**arguments):
    result = TORCH.verify["fused"](**arguments)
    result.outputs[0, 3, 2] *= 1.001
    return result


def test_a_wrong_arm_has_no_time(measured):
    grid = {"shapes": ["tiny"], "trees": ["star"], "nodes": [5], "batches": [1]}
    records = measured(settings_for(grids=[grid]), registry(fused=wrong))
    fused = [record for record in records if record.arm == "fused"]
    assert [record.phase for record in fused] == ["verify", "commit_replay", "commit_fold", "total", "total"]
    assert all(record.status == "failed" and record.reason and not record.samples_ms for record in fused)
    assert all(record.samples_ms for record in records if record.arm != "fused")
    rows = kernel_table(records)
    assert rows.loc[rows["arm"] == "fused", ["median_ms", "p20_ms", "p80_ms"]].isna().all(axis=None)
    assert set(rows.loc[rows["arm"] == "fused", "status"]) == {"failed"}


def test_what_is_not_installed_says_why(measured):
    available = registry() | {"triton": Implementation("triton", {}, {}, None, "needs a GPU")}
    del available["torch"].verify["level_recurrent"]
    records = measured(settings_for(implementations=["torch", "triton", "sglang"]), available)
    reasons = {(record.implementation, record.arm): record.reason for record in records if record.status != "ok"}
    assert reasons == {
        ("torch", "level_recurrent"): "torch has no level_recurrent",
        ("triton", "fused"): "needs a GPU",
        ("triton", "node_recurrent"): "needs a GPU",
        ("sglang", "node_recurrent"): "sglang is not installed",
    }
    assert {record.status for record in records} == {"ok", "unsupported"}


def test_everything_is_checked_before_anything_is_timed(measured, monkeypatch):
    order = []
    judged, timed = kernels._judge_case, kernels._time_case
    monkeypatch.setattr(kernels, "_judge_case", lambda *a: order.append("check") or judged(*a))
    monkeypatch.setattr(kernels, "_time_case", lambda *a: order.append("time") or timed(*a))
    records = measured(settings_for())
    assert order == ["check"] * 8 + ["time"] * 8
    assert len(records) == 8 * (5 + 3 + 3 + 5)
    assert {(record.tree, record.nodes, record.batch) for record in records} == {
        (tree, nodes, batch) for tree in ("chain", "star") for nodes in (5, 6) for batch in (1, 2)
    }
    assert all(2 <= len(record.samples_ms) <= 3 for record in records)


def test_records_say_what_they_depend_on(measured):
    settings = settings_for()
    record = next(r for r in measured(settings) if (r.arm, r.phase, r.nodes) == ("node_recurrent", "total", 6))
    assert record.settings == settings
    assert record.provenance.threads == 1
    assert record.provenance.versions["torch"][0].isdigit()
    assert (record.commit, record.path_nodes, record.depth, record.layers) == ("select", 3, 5, 9)
    assert (record.cache, record.allocator) == ("warm", "system")
    assert record.state_bytes == 6 * SHAPES["tiny"].state_bytes
    assert record.floor.milliseconds == pytest.approx(record.floor.bytes / record.floor.cached_bytes_per_second * 1e3)
    assert 0 < record.relative_error < 2e-6


def test_the_error_of_a_phase_is_that_of_what_it_leaves():
    errors = {"verify": 3e-7, "replay": 1e-7, "fold": 5e-7}
    assert kernels._error_of(errors, "verify", None) == 3e-7
    assert kernels._error_of(errors, "commit_replay", "replay") == 1e-7
    assert kernels._error_of(errors, "total", "replay") == 3e-7
    assert kernels._error_of(errors, "total", "fold") == 5e-7
    assert kernels._error_of({"verify": 3e-7}, "total", "select") is None


@pytest.mark.parametrize(
    ("shapes", "batch", "layers", "cache"),
    [("27b", 1, 13, "cold"), ("qwen35-4b", 1, 20, "cold"), ("27b", 16, 1, "cold"), ("tiny", 1, 9, "warm")],
)
def test_states_rotate_until_they_exceed_the_caches(shapes, batch, layers, cache, monkeypatch):
    monkeypatch.setattr(kernels, "measure_limits", lambda *_: Limits(1.0, 1.0, 1.0))
    monkeypatch.setattr(kernels, "keep_freed_memory", lambda: True)
    bench = kernels._make_bench(settings_for(cold_megabytes=40), [], registry())
    case = KernelCase(shapes, "chain", 16, batch)
    assert (bench.layers(case), bench.caches(case)) == (layers, (cache,))


def test_the_table_has_exactly_the_promised_columns(measured):
    table = kernel_table(measured(settings_for()))
    assert ",".join(COLUMNS) == (
        "device,implementation,shapes,tree,nodes,batch,arm,phase,median_ms,p20_ms,p80_ms,state_bytes,relative_error,"
        "roofline_ms,status,reason,commit,cache,runs,threads,dtype,measured_at,launch"
    )
    assert list(table.columns) == COLUMNS
    assert len(table) == 8 * (4 + 3 + 3 + 4)
    assert (table["p20_ms"] <= table["median_ms"]).all()
    assert (table["median_ms"] <= table["p80_ms"]).all()


def test_the_total_is_that_of_the_faster_commit(measured):
    records = [r for r in measured(settings_for()) if (r.arm, r.tree, r.nodes, r.batch) == ("fused", "star", 6, 2)]
    commits = {"commit_replay": [3.0, 4.0, 5.0], "commit_fold": [1.0, 2.0, 30.0], "verify": [7.0]}
    totals = {"replay": [10.0], "fold": [11.0]}
    changed = [r.model_copy(update={"samples_ms": commits.get(r.phase) or totals[r.commit]}) for r in records]
    table = kernel_table(changed).set_index("phase")
    assert table.loc["total", ["commit", "median_ms"]].tolist() == ["fold", 11.0]
    assert table.loc["commit_fold", ["median_ms", "p80_ms", "runs"]].tolist() == pytest.approx([2.0, 18.8, 3])


def test_a_record_holds_no_nan_and_no_time_without_being_right(measured, tmp_path):
    record = json.loads(measured(settings_for())[0].model_dump_json())
    KernelRecord.model_validate(record)
    for change in (
        {"samples_ms": [1.0, float("nan")]},
        {"relative_error": float("nan")},
        {"floor": record["floor"] | {"milliseconds": float("inf")}},
        {"status": "failed", "reason": "wrong"},
        {"samples_ms": []},
        {"reason": "none"},
    ):
        with pytest.raises(ValueError, match="validation error"):
            KernelRecord.model_validate(record | change)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(json.dumps(record) + "\n{}\n")
    with pytest.raises(UserError, match=r"damaged\.jsonl, line 2: not a record"):
        read_kernel_records(damaged)


def test_a_failure_while_measuring_leaves_no_file(measured, monkeypatch, tmp_path):
    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(kernels, "_time_case", fails)
    with pytest.raises(MemoryError):
        measured(settings_for())
    assert not list(tmp_path.glob("out/*"))


def test_the_shipped_configuration_covers_the_grid_of_the_issue():
    cases = load_config(DEFAULTS).kernels.cases()
    assert len(set(cases)) == len(cases)
    assert {case.nodes for case in cases} == {16, 32, 64, 65, 128, 256, 512}
    assert {case.tree for case in cases} == {"chain", "star", "ddtree", "weaver"}
    assert {case.shapes for case in cases} == set(SHAPES)
    assert {case.batch for case in cases} == {1, 4, 16}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dtype": "int8"}, "kernels.dtype: found 'int8'"),
        ({"most_runs": 1}, "config: kernels.most_runs: found 1; least_runs (5) or more is accepted"),
        ({"grids": [{"shapes": ["27b"], "trees": ["oak"], "nodes": [16], "batches": [1]}]}, "'oak'"),
        ({"grids": [{"shapes": ["27b"], "trees": ["star"], "nodes": [513], "batches": [1]}]}, "513"),
        ({"layers": 3}, "kernels.layers: unknown key"),
    ],
)
def test_mistakes_in_the_configuration_are_one_line(change, expected):
    with pytest.raises(UserError, match=r"^config: ") as caught:
        load_config(DEFAULTS | {"kernels": DEFAULTS["kernels"] | change})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
