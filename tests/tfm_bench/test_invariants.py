"""Invariants: what is consistent passes whatever its numbers, and each single corruption is named."""

import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.config import STAGES
from tfm_bench.errors import UserError
from tfm_bench.measure.invariants import check_cell, check_invariants, check_roofline
from tfm_bench.measure.provenance import CellProvenance
from tfm_bench.measure.records import DecodeRecord
from tfm_bench.measure.rounds import RoundsRecord, rounds_path

PATH = Path("results/raw/cell.jsonl")
# method, budget, control
ARMS = [("ar", 0, False), ("ar", 0, True), ("dflash_chain", 15, False), ("ddtree", 8, False), ("tfm", 32, False)]
AR, CONTROL, CHAIN, DDTREE, TFM = range(len(ARMS))


@st.composite
def generations(draw, prompt: int, method: str, budget: int, control: bool):
    """A record and its rounds, consistent with each other; at least one round."""
    count = draw(st.integers(1, 6))
    depths = draw(st.lists(st.integers(0, min(budget, 15)), min_size=count, max_size=count))
    accepted = [draw(st.integers(0, depth)) for depth in depths]
    stages = None
    if draw(st.booleans()):
        times = st.lists(st.floats(0.01, 50.0), min_size=count, max_size=count)
        stages = {stage: draw(times) for stage in (*STAGES, "other")}
    rounds = RoundsRecord.model_construct(
        **{
            "prompt": prompt,
            "method": method,
            "budget": budget,
            "expansion_width": 0,
            "variant": "default",
            "control": control,
        },
        accepted=accepted,
        verify_width=[budget + 1] * count,
        depth=depths,
        spine=[draw(st.integers(0, length)) for length in accepted],
        stage_ms=stages,
    )
    drafts = sum(accepted)
    record = DecodeRecord.model_construct(
        **{
            "prompt": prompt,
            "method": method,
            "budget": budget,
            "expansion_width": 0,
            "variant": "default",
            "control": control,
        },
        **{"status": "ok", "reason": None, "tokens_sha256": "text", "lossless": True, "first_divergence": None},
        **{"verify_width": budget + 1, "tokens": drafts + count, "rounds": count, "accepted_drafts_sum": drafts},
        **{"accepted_drafts": drafts / count, "acceptance_length": (drafts + count) / count},
        **{"rule": "sample_match", "provenance": CellProvenance.model_construct(config_sha256="one cell")},
        max_depth=max(accepted),
        stage_ms=stages and {stage: sum(values) for stage, values in stages.items()},
    )
    return record, rounds


@st.composite
def cells(draw):
    prompts = draw(st.integers(1, 3))
    pairs = [draw(generations(prompt, *arm)) for prompt in range(prompts) for arm in ARMS]
    records, rounds = zip(*pairs, strict=True)
    return list(records), list(rounds)


@given(cells())
def test_a_consistent_cell_passes(cell):
    records, _ = cell
    checked = check_cell(PATH, *cell)
    assert checked["companion"] == len(records)
    assert checked["rounds"] == len(records) + 4 * sum(record.rounds for record in records)
    assert set(checked) == {"companion", "counts", "rounds", "stage times", "plain decoding", "text"}


def in_last(name, change):
    """A corruption of the last entry of a list of rounds."""

    def corrupt(record, rounds):
        getattr(rounds, name)[-1] = change(rounds)

    return corrupt


def in_record(name, change):
    def corrupt(record, rounds):
        setattr(record, name, change(record))

    return corrupt


def in_rounds(name, change):
    def corrupt(record, rounds):
        setattr(rounds, name, change(rounds))

    return corrupt


def another_stage_time(record, rounds):
    assume(record.stage_ms is not None)
    record.stage_ms["verify"] += 0.02 * sum(record.stage_ms.values())


def a_missing_stage(record, rounds):
    assume(record.stage_ms is not None)
    del rounds.stage_ms["tree"]


def a_draft_of_plain_decoding(record, rounds):
    """Consistent in every count, with a budget that lets the draft through; only `ar` may not have one."""
    record.budget = rounds.budget = 1
    record.verify_width, rounds.verify_width = 2, [2] * record.rounds
    rounds.accepted[-1] = rounds.depth[-1] = 1
    record.accepted_drafts_sum, record.max_depth = 1, 1
    record.tokens += 1
    record.accepted_drafts, record.acceptance_length = 1 / record.rounds, record.tokens / record.rounds


CORRUPTIONS = {
    "another_record": (CHAIN, in_rounds("prompt", lambda r: 9), r"companion file: found \(9, "),
    "control": (CONTROL, in_rounds("control", lambda r: False), "companion file: found .*'measured'"),
    "rounds": (TFM, in_record("rounds", lambda r: r.rounds + 1), "rounds in the companion file"),
    "drafts": (TFM, in_record("accepted_drafts_sum", lambda r: r.accepted_drafts_sum + 1), "sum of accepted"),
    "tokens": (TFM, in_record("tokens", lambda r: r.tokens + 1), r"accepted drafts \+ rounds"),
    "max_depth": (TFM, in_record("max_depth", lambda r: r.max_depth + 1), "max_depth"),
    "mean": (TFM, in_record("accepted_drafts", lambda r: r.acceptance_length), "accepted_drafts: found"),
    "no_mean": (TFM, in_record("acceptance_length", lambda r: None), "acceptance_length: found None"),
    "width": (DDTREE, in_record("verify_width", lambda r: 8), "verify_width: found 8; expected is 9"),
    "round_width": (DDTREE, in_last("verify_width", lambda r: 8), r"verify_width of round \d: found 8"),
    "depth": (DDTREE, in_last("depth", lambda r: 9), r"depth of round \d: found 9; expected is 0 to the budget, 8"),
    "shallow": (DDTREE, in_last("depth", lambda r: r.accepted[-1] - 1), r"(depth|accepted drafts) of round \d"),
    "spine": (DDTREE, in_last("spine", lambda r: r.accepted[-1] + 1), r"spine of round \d"),
    "plain": (AR, a_draft_of_plain_decoding, "accepted drafts of ar: found 1; expected is 0"),
    "stage": (TFM, another_stage_time, "verify ms over all rounds"),
    "missing_stage": (TFM, a_missing_stage, "stages in the companion file"),
    "control_text": (CONTROL, in_record("tokens_sha256", lambda r: "other"), "tokens_sha256 of the control"),
    "text": (TFM, in_record("tokens_sha256", lambda r: "other"), "lossless: found True; expected is False"),
    "lossless": (TFM, in_record("lossless", lambda r: False), "lossless: found False; expected is True"),
    "divergence": (TFM, in_record("first_divergence", lambda r: 3), "first_divergence is empty"),
    "failed": (TFM, in_record("status", lambda r: "failed"), "numbers of a record that is failed"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
@settings(max_examples=20)
@given(data=st.data())
def test_each_corruption_has_its_own_message(name, data):
    arm, corrupt, message = CORRUPTIONS[name]
    records, rounds = data.draw(cells())
    line = len(ARMS) * data.draw(st.integers(0, len(records) // len(ARMS) - 1)) + arm
    corrupt(records[line], rounds[line])
    with pytest.raises(UserError, match=message) as caught:
        check_cell(PATH, records, rounds)
    method, budget = records[line].method, records[line].budget
    where = f"{PATH}, line {line + 1} ({method}, budget {budget}, prompt {records[line].prompt}): "
    assert str(caught.value).startswith(where)
    assert "\n" not in str(caught.value)


@given(cells())
def test_a_lost_line_is_found(cell):
    records, rounds = cell
    with pytest.raises(UserError, match=r"cell\.rounds\.jsonl: found \d+ lines; .* has \d+ records"):
        check_cell(PATH, records, rounds[:-1])


def test_files_of_a_measured_cell_pass_and_a_changed_one_does_not(request, stack_folder):
    path = stack_folder / "cell.jsonl"
    request.getfixturevalue("cells").decode_cell(settings_for(stack_folder), path)
    table = check_invariants([path])
    assert (table["claims"] > 0).all()
    assert {"counts", "stage times", "plain decoding", "text"} <= set(table["check"])
    companion = rounds_path(path)
    companion.write_text(re.sub(r'"accepted":\[3,', '"accepted":[2,', companion.read_text(), count=1))
    with pytest.raises(UserError, match=r"cell\.jsonl, line \d+ \(tfm, .*sum of accepted"):
        check_invariants([path])


def test_nothing_to_check_is_an_error():
    with pytest.raises(UserError, match="no record to check"):
        check_invariants([])


def kernels(**changes) -> pd.DataFrame:
    row = {"implementation": "torch", "arm": "fused", "phase": "verify", "nodes": 16, "status": "ok"}
    return pd.DataFrame([row | {"median_ms": 1.0, "roofline_ms": 0.5}, row | {"median_ms": 0.4} | changes])


def test_no_kernel_beats_the_roofline():
    path = Path("results/gdn_verify.csv")
    for harmless in ({"roofline_ms": float("nan")}, {"roofline_ms": 0.5, "status": "failed"}, {"roofline_ms": 0.3}):
        assert check_roofline(kernels(**harmless), path)["kernels"].sum() in (1, 2)
    with pytest.raises(
        UserError, match=r"gdn_verify\.csv, row 1 \(torch fused verify, 16 nodes\): median_ms: found 0\.4"
    ):
        check_roofline(kernels(roofline_ms=0.5), path)


def test_times_without_any_limit_are_not_taken_for_checked():
    path = Path("results/gdn_verify.csv")
    unlimited = kernels().assign(roofline_ms=float("nan"))
    with pytest.raises(UserError, match=r"gdn_verify\.csv: roofline_ms: found none in 2 timed rows"):
        check_roofline(unlimited, path)
    assert check_roofline(unlimited.assign(status="failed"), path).empty


def test_a_file_may_hold_several_cells_each_with_its_own_text(tmp_path):
    """Those of an ablation: the same prompt has another text at another temperature."""
    records, rounds = [], []
    for cell in ("first", "second"):
        for arm in (ARMS[AR], ARMS[TFM]):
            record = DecodeRecord.model_construct(
                **dict(zip(("method", "budget", "control"), arm, strict=True)),
                **{"prompt": 0, "expansion_width": 0, "variant": "default", "rule": "sample_match", "status": "failed"},
                **{"reason": "why", "tokens_sha256": None},
                provenance=CellProvenance.model_construct(config_sha256=cell),
            )
            same = record.model_dump(include={"prompt", "method", "budget", "expansion_width", "variant", "control"})
            records.append(record.model_copy(update=good(cell) | {"verify_width": arm[1] + 1}))
            rounds.append(
                RoundsRecord(
                    **same,
                    accepted=[0],
                    verify_width=[arm[1] + 1],
                    depth=[1 if arm[1] else 0],
                    spine=[0],
                    stage_ms=None,
                )
            )
    assert check_cell(tmp_path / "raw.jsonl", records, rounds)["text"] > 0
    records[-1] = records[-1].model_copy(update={"tokens_sha256": "text of first"})
    with pytest.raises(UserError, match="lossless"):
        check_cell(tmp_path / "raw.jsonl", records, rounds)


def good(cell):
    """Numbers of one round that accepts nothing."""
    counts = {"tokens": 1, "rounds": 1, "accepted_drafts_sum": 0, "accepted_drafts": 0.0, "acceptance_length": 1.0}
    return (
        counts
        | {"status": "ok", "max_depth": 0, "stage_ms": None, "tokens_sha256": f"text of {cell}"}
        | {
            "lossless": True,
            "first_divergence": None,
        }
    )
