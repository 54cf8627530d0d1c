"""The shipped schemas are those of the models, what is written passes them, and neither lets NaN through."""

import json
import math
from pathlib import Path

import jsonschema
import pytest
from pydantic import ValidationError

from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.measure.kernel_records import Floor
from tfm_bench.measure.records import DecodeRecord, read_records
from tfm_bench.measure.rounds import RoundsRecord, read_rounds, rounds_path
from tfm_bench.measure.schemas import FOLDER, MODELS, schema_text

ROOT = Path(__file__).parents[2]


def shipped(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture
def raw(cells, stack_folder) -> Path:
    """A cell as it is written."""
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    return stack_folder / "cell.jsonl"


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_schema_is_that_of_the_model(name):
    text = (ROOT / FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert text == schema_text(name), "run python -m tfm_bench.measure.schemas"


def test_no_other_schema_is_shipped():
    assert {file.stem for file in (ROOT / FOLDER).iterdir()} == set(MODELS)


def test_what_a_cell_writes_passes_and_what_is_damaged_does_not(raw):
    for name, path in {"decode": raw, "rounds": rounds_path(raw)}.items():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines
        for line in lines:
            shipped(name).validate(line)
        lacking = {key: value for key, value in lines[0].items() if key != "control"}
        for damaged in (lacking, lines[0] | {"budget": "many"}):
            assert not shipped(name).is_valid(damaged)
    assert not shipped("decode").is_valid(json.loads(raw.read_text().splitlines()[0]) | {"schema_version": 2})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_models_refuse_what_json_cannot_hold(raw, value):
    record = read_records(raw)[0].model_dump()
    numbers = [name for name, found in record.items() if isinstance(found, float)]
    assert {"decode_ms", "prefill_ms", "acceptance_length"} <= set(numbers)
    for name in [*numbers, "logit_gap"]:
        with pytest.raises(ValidationError):
            DecodeRecord.model_validate(record | {name: value})
    for name in ("load_s", "foreign_load"):
        with pytest.raises(ValidationError):
            DecodeRecord.model_validate(record | {"provenance": record["provenance"] | {name: value}})
    rounds = read_rounds(rounds_path(raw))[0].model_dump()
    stages = {stage: [value, *times[1:]] for stage, times in rounds["stage_ms"].items()}
    with pytest.raises(ValidationError):
        RoundsRecord.model_validate(rounds | {"stage_ms": stages})
    with pytest.raises(ValidationError):
        Floor(
            **{"bytes": 1, "flops": 1, "bytes_per_second": value, "cached_bytes_per_second": 1.0},
            **{"flops_per_second": 1.0, "milliseconds": 1.0},
        )
