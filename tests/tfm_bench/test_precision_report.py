"""Table and figure of `ablation_precision` on made-up records."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.tfm_bench.decode_rows import decode_rows
from tests.tfm_bench.fake_cells import ROOT
from tfm_bench.ablations import probe_settings
from tfm_bench.config import load_config, read_yaml
from tfm_bench.measure.probe_records import ProbeRecord
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablations import precision

TOKENS = (64, 130, 192)
DRIFT = {
    ("float32", "replay"): 1e-7,
    ("float32", "fold"): 2e-7,
    ("bfloat16", "replay"): 3e-7,
    ("bfloat16", "fold"): 4e-7,
}


def records():
    settings = probe_settings(load_config(read_yaml(ROOT / "config" / "default.yaml")), "precision")
    machine = SimpleNamespace(device="a CPU", threads=2, measured_at=datetime(2026, 11, 30, tzinfo=UTC))
    for (dtype, commit), error in DRIFT.items():
        for tokens in TOKENS:
            values = {"dtype": dtype, "commit": commit, "tokens": tokens}
            values |= {"state_error": error * tokens, "logit_error": error}
            yield ProbeRecord.model_construct(values=values, settings=settings, provenance=machine)


def decode():
    """In bfloat16 `ar` writes another text than float32's on prompts 2 and 3, and `tfm` leaves `ar` on prompt 1."""
    rows = decode_rows(datasets=("math",), temperatures=(1.0,), repeats=1, prompts=4)
    rows = rows[(rows["split"] == "test") & rows["budget"].isin([0, 8])].assign(
        prompt_tokens=60, logit_gap=float("nan")
    )
    wide = rows.assign(tokens_sha256=[f"text {prompt}" for prompt in rows["prompt"]])
    texts = [f"text {prompt}{' narrow' * (prompt >= 2)}" for prompt in rows["prompt"]]
    narrow = rows.assign(dtype="bfloat16", tokens_sha256=texts).reset_index(drop=True)
    left = (narrow["method"] == "tfm") & (narrow["prompt"] == 1)
    narrow.loc[left, ["lossless", "first_divergence", "logit_gap", "tokens_sha256"]] = [False, 17, 0.03, "other"]
    return pd.concat([wide, narrow], ignore_index=True).astype({"lossless": "boolean", "control": "boolean"})


@pytest.fixture(scope="module")
def data():
    return AblationData(decode=decode(), rounds=[], probe=list(records()))


@pytest.fixture(scope="module")
def table(data):
    return precision.table(data)


def arm(table, dtype, method):
    (found,) = table[(table["panel"] == "arms") & (table["dtype"] == dtype) & (table["method"] == method)].to_dict(
        "records"
    )
    return found


def test_rows_by_panel(table):
    assert list(table.columns) == precision.COLUMNS
    assert table["panel"].value_counts().to_dict() == {"arms": 8, "divergence": 1, "drift": 12}


def test_identical_texts_are_counted_within_and_across_precisions(table):
    counts = {
        (dtype, method): (found["lossless_prompts"], found["same_text_prompts"])
        for dtype in precision.DTYPES
        for method in ("ar", "dflash_chain", "ddtree", "tfm")
        for found in [arm(table, dtype, method)]
    }
    assert counts == {
        **{("float32", method): (4, 4) for method in ("ar", "dflash_chain", "ddtree", "tfm")},
        **{("bfloat16", method): (4, 2) for method in ("ar", "dflash_chain", "ddtree")},
        ("bfloat16", "tfm"): (3, 1),
    }


def test_arms_keep_their_numbers(table):
    found = arm(table, "bfloat16", "tfm")
    assert found["acceptance_length"] == pytest.approx(3.0)
    assert found["round_time_ms"] == pytest.approx(20.0 * 1.15)
    assert found["status"] == "ok"


def test_a_divergence_has_its_place_and_gap(table):
    (found,) = table[table["panel"] == "divergence"].to_dict("records")
    assert (found["dtype"], found["method"], found["prompt"], found["first_divergence"]) == ("bfloat16", "tfm", 1, 17)
    assert found["logit_gap"] == 0.03


def test_panels_draw_the_rows(table):
    figure = precision.figure(table, "note")
    length, time, texts, gaps, states, logits = figure.axes
    assert (length.get_ylim()[0], time.get_ylim()[0], texts.get_ylim()[0]) == (1, 0, 0)
    (gap,) = gaps.lines
    assert (list(gap.get_xdata()), list(gap.get_ydata())) == ([17.0], [0.03])
    for axes, column in ((states, "state_error"), (logits, "logit_error")):
        assert axes.get_yscale() == "log"
        lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        for dtype, commit in DRIFT:
            rows = table[(table["panel"] == "drift") & (table["dtype"] == dtype) & (table["commit"] == commit)]
            assert lines[f"{commit}, {dtype}"] == list(rows[column])


def test_no_divergence_is_said(data):
    decode = data.decode[data.decode["dtype"] == "float32"]
    table = precision.table(AblationData(decode, [], data.probe))
    gaps = precision.figure(table, "note").axes[3]
    assert [text.get_text() for text in gaps.texts] == ["no text diverged"]


def test_the_note_says_device_n_and_interval(data):
    note = precision.note(data)
    for part in ("2026-11-30", "a CPU, 2 threads", "n = 4 test prompts", "15 draft nodes", "bootstrap", "2048 tokens"):
        assert part in note
