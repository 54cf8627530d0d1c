"""Records and their companions: what they refuse, and the table that derives from them."""

import json
import math

import pandas as pd
import pytest
from pydantic import ValidationError

from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.config import METHODS
from tfm_bench.errors import UserError
from tfm_bench.measure.records import DecodeRecord, decode_table, read_decode_table, read_records
from tfm_bench.measure.rounds import RoundsRecord, read_rounds, rounds_path

FAILED = {"status": "failed", "reason": "RuntimeError: no memory"}
ROUNDS = {"prompt": 0, "method": "tfm", "budget": 8, "expansion_width": 1, "variant": "default", "control": False}
LISTS = {"accepted": [2, 0], "verify_width": [9, 9], "depth": [3, 3], "spine": [1, 0]}


@pytest.fixture
def cell(cells, stack_folder):
    path = stack_folder / "cell.jsonl"
    cells.decode_cell(settings_for(stack_folder), path)
    return path


@pytest.fixture
def fields(cell):
    """A good record, as the mapping that stands in the file."""
    return json.loads(cell.read_text().splitlines()[0])


def without_numbers(fields):
    optional = [name for name, field in DecodeRecord.model_fields.items() if not field.is_required()]
    return {name: value for name, value in fields.items() if name not in optional}


def test_a_record_comes_back_as_it_was_written(fields):
    assert json.loads(DecodeRecord.model_validate(fields).model_dump_json()) == fields


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decode_ms": math.nan}, "decode_ms"),
        ({"decode_ms": math.inf}, "decode_ms"),
        ({"decode_ms": None}, "decode_ms: found nothing; a record with status ok has it"),
        ({"lossless": None}, "lossless: found nothing"),
        ({"status": "skipped"}, "reason: found nothing; a record with status skipped says why"),
        ({"status": "slow"}, "status"),
        ({"schema_version": 2}, "schema_version"),
        ({"acceptance_lenght": 3.0}, "acceptance_lenght"),
    ],
)
def test_what_is_no_record_is_refused(fields, change, message):
    with pytest.raises(ValidationError, match=message):
        DecodeRecord.model_validate(fields | change)


def test_nan_in_the_origin_is_refused(fields):
    with pytest.raises(ValidationError, match="foreign_load"):
        DecodeRecord.model_validate(fields | {"provenance": fields["provenance"] | {"foreign_load": math.nan}})


def test_a_failed_record_needs_no_number(fields):
    record = DecodeRecord.model_validate(without_numbers(fields) | FAILED)
    assert record.tokens is record.decode_ms is record.lossless is None


def test_the_table_survives_its_file_with_and_without_failures(cell, fields):
    whole = decode_table([cell])
    assert whole["tokens"].dtype == "int64"
    assert list(whole["method"].unique()) == list(METHODS)
    assert list(whole.loc[whole["method"] == "ar", "control"]) == [False, True] * 3
    assert (whole.loc[whole["method"] == "ar", "acceptance_length"] == 1.0).all()
    with cell.open("a") as file:
        file.write(json.dumps(without_numbers(fields) | FAILED | {"prompt": 7}) + "\n")
    for table in (whole, decode_table([cell])):
        csv = cell.with_suffix(".csv")
        csv.write_text(table.to_csv(index=False))
        assert "nan" not in csv.read_text().lower()
        again = read_decode_table(csv)
        assert again.to_csv(index=False) == csv.read_text()
        assert list(again["lossless"]) == list(table["lossless"])
        ok = again[again["status"] == "ok"]
        assert not (~ok["degenerate"]).isna().any()
        assert ok["tokens"].sum() == 24 * 40
    failed = again[again["status"] == "failed"].iloc[0]
    assert failed["reason"] == FAILED["reason"]
    assert pd.isna(failed["tokens"])


def test_columns_are_those_of_the_contract(cell):
    columns = (
        "stack,repeat,split,dataset,temperature,prompt,prompt_tokens,method,budget,expansion_width,variant,rule,"
        "control,status,reason,verify_width,tokens,rounds,accepted_drafts_sum,accepted_drafts,acceptance_length,"
        "max_depth,prefill_ms,"
        "decode_ms,draft_ms,tree_ms,verify_ms,accept_ms,commit_ms,other_ms,tokens_sha256,lossless,first_divergence,"
        "logit_gap,degenerate,gdn_implementation,weaver_implementation,dtype,device,threads,torch,measured_at"
    )
    assert ",".join(decode_table([cell]).columns) == columns


def test_no_record_at_all_is_an_error(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="no record found"):
        decode_table([tmp_path / "empty.jsonl"])


def test_rounds_stand_beside_their_raw_file(cell):
    assert rounds_path(cell).name == "cell.rounds.jsonl"
    assert rounds_path(cell.with_name("test.math.t070.r0.jsonl")).name == "test.math.t070.r0.rounds.jsonl"
    assert len(read_rounds(rounds_path(cell))) == len(read_records(cell))


@pytest.mark.parametrize("name", ["verify_width", "depth", "spine"])
def test_lists_of_other_lengths_are_no_rounds(name, tmp_path):
    good = ROUNDS | LISTS | {"stage_ms": None}
    RoundsRecord.model_validate(good)
    path = tmp_path / "cell.rounds.jsonl"
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | {name: [1]}) + "\n")
    with pytest.raises(UserError, match=r"rounds\.jsonl, line 2: not a record of rounds \(every list has one entry"):
        read_rounds(path)
