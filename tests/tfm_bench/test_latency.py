"""The latency benchmark from settings to figure, on a tiny stack of the 27B stack's form."""

import json
from contextlib import nullcontext

import pandas as pd
import pytest
import torch

from kernels.gdn_tree.structure import TreeStructure
from tests.tfm_bench.tiny_kernels import DEFAULTS
from tfm_bench.config import latency_settings, load_config
from tfm_bench.engine import Arm
from tfm_bench.errors import UserError
from tfm_bench.latency_config import HORIZON
from tfm_bench.measure import latency
from tfm_bench.measure.latency_records import COLUMNS, latency_table, read_latency_records, read_latency_table
from tfm_bench.random_stack import SIZES, all_layers, drafter_config, random_stack, target_config
from tfm_bench.report.figures.latency_27b import figure_latency_27b, latency_note, plotted_latency
from tfm_bench.report.latency import PARTS, table_latency

SMALL = {
    **{"shapes": "tiny", "layers": 4, "dtype": "float32", "budgets": [3, 20], "expansion_widths": [1, 4]},
    **{"context": 8, "accepted": 2, "rounds": 3, "repeats": 2},
}


def settings_for(**changes):
    section = DEFAULTS["latency"] | SMALL | changes
    return latency_settings(load_config(DEFAULTS | {"latency": section})).model_copy(update={"threads": 1})


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("latency") / "latency_27b.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "device_lock", nullcontext)  # times do not matter here
        latency.latency_cell(settings_for(), path)
    return path


@pytest.fixture(scope="module")
def table(raw, tmp_path_factory):
    """As a later process reads it."""
    path = tmp_path_factory.mktemp("table") / "latency_27b.csv"
    latency_table(read_latency_records(raw)).to_csv(path, index=False)
    return read_latency_table(path)


def decode_rows():
    """One arm at two temperatures, plain decoding at one of them, and rows that must not count."""
    row = {"stack": "tiny", "split": "test", "status": "ok", "control": False, "expansion_width": 0}
    chain = row | {"method": "dflash_chain", "budget": 15}
    tree = row | {"method": "tfm", "budget": 20, "expansion_width": 2, "temperature": 1.0}
    return pd.DataFrame(
        [
            chain | {"temperature": 0.0, "tokens": 30, "rounds": 10},
            chain | {"temperature": 1.0, "tokens": 20, "rounds": 10},
            chain | {"temperature": 1.0, "tokens": 10, "rounds": 5},
            chain | {"temperature": 1.0, "tokens": 900, "rounds": 1, "split": "dev"},
            chain | {"temperature": 1.0, "tokens": 900, "rounds": 1, "status": "failed"},
            tree | {"tokens": 40, "rounds": 10},
            row | {"method": "ar", "budget": 0, "temperature": 1.0, "tokens": 7, "rounds": 7},
            row | {"method": "ar", "budget": 0, "temperature": 1.0, "tokens": 900, "rounds": 1, "control": True},
        ]
    )


def test_every_arm_has_every_stage_as_often_as_configured(raw):
    records = read_latency_records(raw)
    arms = list(dict.fromkeys((r.method, r.budget, r.expansion_width, r.gdn_verify) for r in records))
    assert arms == [
        ("ar", 0, 0, "fused"),
        ("dflash_chain", 15, 0, "fused"),
        ("ddtree", 3, 0, "fused"),
        ("ddtree", 20, 0, "fused"),
        ("tfm", 3, 1, "fused"),  # ceil(3 / 16) and 1 are one arm; 4 is wider than the budget
        ("tfm", 3, 1, "node_recurrent"),
        ("tfm", 20, 2, "fused"),
        ("tfm", 20, 2, "node_recurrent"),
        ("tfm", 20, 1, "fused"),
        ("tfm", 20, 4, "fused"),
    ]
    assert len(records) == len(arms) * len(latency.STAGES)
    for record in records:
        assert len(record.samples_ms) == (2 if record.stage == "round" else 2 * 3)
        assert record.accepted_drafts == (0 if record.method == "ar" else 2)
        assert record.verify_width == record.budget + 1
        drafting = record.stage in ("draft", "tree") and record.method == "ar"
        assert all(time == 0 if drafting else time > 0 for time in record.samples_ms)


def test_rounds_accept_what_is_configured_and_trees_have_the_made_up_shape(monkeypatch):
    settings = settings_for().latency
    stack = random_stack("tiny", layers=4, dtype=torch.float32, device=torch.device("cpu"))
    seen = []
    verify = type(stack.target).verify
    monkeypatch.setattr(
        type(stack.target), "verify", lambda self, state, tree: seen.append(tree) or verify(self, state, tree)
    )
    arm = latency.LatencyArm(Arm("tfm", budget=20, expansion_width=2), "node_recurrent")
    prepared = latency._prepared(latency._verified_by(stack, arm.gdn_verify), 2)
    done = latency._generate(prepared, arm, settings, 3, staged=False)
    assert done.accepted == [2, 2, 2]
    assert prepared.target.gdn_verify == "node_recurrent"
    assert [tree.parents.tolist() for tree in seen] == [latency.latency_tree(21, 15)] * 3
    chain = latency.LatencyArm(Arm("dflash_chain", budget=15), "fused")
    latency._generate(latency._prepared(stack, 2), chain, settings, 1, staged=False)
    assert seen[-1].parents.tolist() == list(range(-1, 15))


@pytest.mark.parametrize("width", [1, 2, 16, 17, 65, 257])
def test_the_made_up_tree_is_a_tree_down_to_the_horizon(width):
    parents = latency.latency_tree(width, 15)
    assert len(parents) == width
    assert all(parent < node for node, parent in enumerate(parents))
    depths = TreeStructure.from_parents(torch.tensor(parents)).depths
    assert depths.max() == min(width - 1, 15)
    assert parents[: min(width, 16)] == list(range(-1, min(width, 16) - 1))


@pytest.mark.parametrize("shapes", SIZES)
def test_no_more_drafts_can_be_accepted_than_are_drafted(shapes):
    assert SIZES[shapes].drafter.block_size - 1 == HORIZON
    assert settings_for(accepted=HORIZON, budgets=[20]).latency.accepted == 15
    with pytest.raises(UserError, match="accepted"):
        settings_for(accepted=HORIZON + 1, budgets=[20])


def test_a_stack_that_memory_cannot_hold_is_refused_before_it_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(latency, "device_lock", nullcontext)
    monkeypatch.setattr(latency, "random_stack", lambda *_, **__: pytest.fail("made"))
    monkeypatch.setattr(latency, "available_memory", lambda: 5 * 10**9)
    with pytest.raises(
        UserError, match=r"found 5\.0 GB free on this machine; [\d.]+ GB are needed, [\d.]+ GB are missing"
    ):
        latency.latency_cell(settings_for(shapes="27b"), tmp_path / "raw.jsonl")
    assert "target weights" in capsys.readouterr().err


def test_an_arm_that_does_not_fit_says_so_and_the_others_are_measured(tmp_path, monkeypatch):
    run = latency._run

    def full(stack, arm, *arguments, **options):
        if arm.gdn_verify == "node_recurrent":
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")
        return run(stack, arm, *arguments, **options)

    monkeypatch.setattr(latency, "_run", full)
    monkeypatch.setattr(latency, "device_lock", nullcontext)
    latency.latency_cell(settings_for(budgets=[3], repeats=1, rounds=1), tmp_path / "raw.jsonl")
    records = read_latency_records(tmp_path / "raw.jsonl")
    failed = {(r.method, r.gdn_verify, r.reason) for r in records if r.status == "failed"}
    assert failed == {("tfm", "node_recurrent", "CUDA out of memory.")}
    rows = latency_table(records)
    assert rows.loc[rows["status"] == "failed", "median_ms"].isna().all()
    projected = table_latency(rows, decode_rows())
    assert not projected.loc[projected["status"] == "failed", "projected"].any()


def test_the_table_has_medians_of_the_records(raw, table):
    assert list(table.columns) == COLUMNS
    record = next(r for r in read_latency_records(raw) if (r.method, r.stage) == ("dflash_chain", "verify"))
    row = table[(table["method"] == "dflash_chain") & (table["stage"] == "verify")].iloc[0]
    ordered = sorted(record.samples_ms)
    assert row["median_ms"] == pytest.approx((ordered[2] + ordered[3]) / 2)
    assert row["p20_ms"] == pytest.approx(ordered[1])
    assert (row["target_layers"], row["all_layers"], row["shapes"]) == (4, 64, "tiny")


def test_a_target_that_lacks_layers_projects_to_nothing(table):
    rows = table_latency(table, decode_rows())
    assert (rows["target_layers"] < rows["all_layers"]).all()
    assert not rows["projected"].any()
    assert rows["speedup"].isna().all()
    data = plotted_latency(rows)
    figure = figure_latency_27b(data, latency_note(table, rows))
    assert len(figure.axes) == 1
    assert "No speedup is projected" in latency_note(table, rows)


def test_speedups_are_projected_only_where_acceptance_was_recorded(table):
    rows = table_latency(table.assign(target_layers=64), decode_rows()).set_index(
        ["method", "budget", "expansion_width", "gdn_verify"]
    )
    plain = rows.loc[[("ar", 0, 0, "fused")]].iloc[0]
    assert (plain["speedup"], plain["projected"], plain["temperature"]) == (1.0, True, 1.0)
    chain = rows.loc[[("dflash_chain", 15, 0, "fused")]].set_index("temperature")
    assert chain["acceptance_length"].to_dict() == {0.0: 3.0, 1.0: 2.0}
    expected = 3.0 * plain["round_time_ms"] / chain.loc[0.0, "round_time_ms"]
    assert chain.loc[0.0, "speedup"] == pytest.approx(expected)
    both = rows.sort_index().loc[("tfm", 20, 2)]
    assert list(both["acceptance_length"]) == [4.0, 4.0]
    assert both["speedup"].nunique() == 2
    for other in (("ddtree", 20, 0, "fused"), ("tfm", 20, 4, "fused")):
        found = rows.loc[[other]]
        assert not found["projected"].any()
        assert found["speedup"].isna().all()
    stage = table[(table["method"] == "ar") & (table["stage"] == "commit")]["median_ms"].item()
    assert plain["commit_ms"] == stage


def test_the_figure_draws_stages_and_hatches_what_is_projected(table):
    table = table.assign(target_layers=64)
    rows = table_latency(table, decode_rows())
    data = plotted_latency(rows)
    assert (data["temperature"].dropna() == 1.0).all()
    assert set(data.loc[data["method"] == "tfm", "expansion_width"]) == {1, 2}
    figure = figure_latency_27b(data, latency_note(table, rows))
    times, speedups = figure.axes
    assert len(times.patches) == len(data) * len(PARTS)
    ends = [bar.get_x() + bar.get_width() for bar in times.patches[-len(data) :]]
    assert ends == pytest.approx(data[[f"{part}_ms" for part in PARTS]].sum(axis=1).tolist())
    assert [bar.get_width() for bar in speedups.patches] == pytest.approx(data["speedup"].dropna().tolist())
    assert all(bar.get_hatch() for bar in speedups.patches)
    note = " ".join(text.get_text() for text in figure.texts)
    assert "4 of 64 target layers" in note
    assert "projected, not measured" in note
    assert "projected speedup" in speedups.get_xlabel()


def test_without_recorded_acceptance_there_is_no_bar(table):
    table = table.assign(target_layers=64)
    rows = table_latency(table, decode_rows().iloc[:0])
    figure = figure_latency_27b(plotted_latency(rows), latency_note(table, rows))
    assert len(figure.axes) == 1
    assert "(none)" in figure.texts[0].get_text()


def test_damaged_records_name_their_line(raw, tmp_path):
    line = json.loads(raw.read_text().splitlines()[0])
    path = tmp_path / "raw.jsonl"
    path.write_text(json.dumps(line | {"status": "failed"}) + "\n")
    with pytest.raises(UserError, match=r"raw.jsonl, line 1: not a record \(status 'failed' with"):
        read_latency_records(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"accepted": 4}, "latency.accepted: found 4; at most the least budget, 3"),
        ({"budgets": [3, 3]}, "latency.budgets: found .3, 3.; each value"),
        ({"shapes": "28b"}, "latency.shapes: found '28b'"),
    ],
)
def test_mistakes_in_the_section_are_one_line(change, reason):
    with pytest.raises(UserError, match=reason):
        settings_for(**change)


def test_the_27b_shapes_are_the_published_ones():
    target, drafter = target_config("27b", 64), drafter_config("27b", 64)
    assert (target.hidden_size, target.vocab_size, all_layers("27b")) == (5120, 248320, 64)
    assert target.layer_types.count("linear_attention") == 48
    assert drafter.target_layer_ids == (1, 16, 31, 46, 61)
    assert drafter_config("27b", 4).target_layer_ids == (0, 1, 1, 2, 3)
    assert SIZES["27b"].weaver.candidate_pool_size == 512
