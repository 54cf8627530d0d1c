"""results/README.md: in step with models and tables, and complete."""

from pathlib import Path

import pandas as pd
import pytest

from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.measure.records import decode_table
from tfm_bench.report import dictionary
from tfm_bench.report.meanings import MEANINGS, meaning
from tfm_bench.report.stage_times import table_stage_times

ROOT = Path(__file__).parents[2]


def test_the_dictionary_is_current():
    text = (ROOT / dictionary.README).read_text(encoding="utf-8")
    assert text == dictionary.dictionary_text(), "run python -m tfm_bench.report.dictionary"


def test_every_column_of_the_expected_results_has_an_entry():
    text = dictionary.dictionary_text()
    columns = {
        name for file in (ROOT / "results" / "expected").rglob("*.csv") for name in pd.read_csv(file, nrows=0).columns
    }
    assert len(columns) > 30
    assert not [name for name in columns if f"| `{name}` |" not in text]


def test_columns_are_those_that_a_run_writes(cells, stack_folder):
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    decode = decode_table([stack_folder / "cell.jsonl"])
    assert list(decode.columns) == dictionary.DECODE_COLUMNS
    assert set(table_stage_times(decode).columns) == set(dictionary.TABLES["tables/stage_times"])


def test_no_meaning_is_left_over():
    text = dictionary.dictionary_text()
    assert not [name for name in MEANINGS if f"| `{name.split(':')[-1]}` |" not in text]


def test_one_name_may_mean_two_things_and_none_may_mean_nothing():
    assert meaning("provenance", "commit") != meaning("kernels", "commit")
    assert meaning("tables/speedup", "speedup_high") == ("1", "upper end of the 95 % interval of speedup")
    with pytest.raises(KeyError, match="tables/speedup: joy has no meaning"):
        meaning("tables/speedup", "joy")


def test_types_are_words():
    assert dictionary.type_text(dict[str, list[float]] | None) == "map to list of number or empty"
