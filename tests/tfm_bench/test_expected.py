"""Marks that moved, on tables where it is plain which did."""

from pathlib import Path

import pandas as pd
import pytest

from tfm_bench.errors import UserError
from tfm_bench.report.expected import check_expected, compare, expected_files

EXPECTED = Path(__file__).parents[2] / "results" / "expected"


def rows(values, width=0.1, **extra):
    """A mark per budget: its value and an interval around it."""
    return pd.DataFrame(
        [
            {
                "method": "tfm",
                "budget": budget,
                "speedup": v,
                "speedup_low": v - width,
                "speedup_high": v + width,
                **extra,
            }
            for budget, v in values.items()
        ]
    )


@pytest.mark.parametrize(("shift", "moved"), [(0.0, 0), (0.19, 0), (-0.19, 0), (0.21, 1), (-0.21, 1)])
def test_a_mark_moves_when_its_intervals_part(shift, moved):
    table, compared = compare(rows({8: 1.0, 16: 2.0 + shift}), rows({8: 1.0, 16: 2.0}), "speed")
    assert (len(table), compared) == (moved, 2)
    for row in table.to_dict("records"):
        assert (row["file"], row["column"], row["mark"]) == ("speed", "speedup", "method=tfm budget=16")
        assert row["expected"] == 2.0
        assert (row["found"], row["found_low"]) == pytest.approx((2.0 + shift, 1.9 + shift))


def test_marks_that_are_gone_or_lost_their_interval_have_moved():
    expected, found = rows({8: 1.0, 16: 1.0, 64: 1.0}), rows({8: 1.0, 16: 1.0, 32: 1.0})
    found.loc[1, ["speedup", "speedup_low", "speedup_high"]] = float("nan")
    table, compared = compare(found, expected, "speed")
    assert compared == 3
    assert list(table["mark"]) == ["method=tfm budget=16", "method=tfm budget=64"]
    expected.loc[0, "speedup_low"] = float("nan")
    assert compare(found, expected, "speed")[1] == 2


@pytest.mark.parametrize("gone", ["speedup_low", "speedup", "method"])
def test_a_column_that_is_gone_is_an_error_and_not_a_comparison_of_nothing(gone):
    with pytest.raises(ValueError, match=f"lacks {gone}$"):
        compare(rows({8: 1.0}).drop(columns=gone), rows({8: 1.0}), "speed")


def test_keys_that_do_not_tell_rows_apart_are_an_error():
    twice = pd.concat([rows({8: 1.0}), rows({8: 2.0})])
    with pytest.raises(ValueError, match="not unique"):
        compare(twice, twice, "speed")


@pytest.mark.parametrize("file", expected_files(EXPECTED), ids=str)
def test_every_committed_table_equals_itself_mark_by_mark(file):
    table = pd.read_csv(EXPECTED / file, keep_default_na=False, na_values=[""])
    moved, compared = compare(table, table, file.stem)
    ends = {column for column in table if f"{column}_low" in table} | ({"median_ms"} & set(table))
    lows = [table["p20_ms" if column == "median_ms" else f"{column}_low"] for column in ends]
    assert moved.empty
    assert compared == sum(int(low.notna().sum()) for low in lows)


def test_percentiles_are_the_interval_of_a_median():
    found = pd.DataFrame([{"arm": "fused", "median_ms": 2.0, "p20_ms": 1.9, "p80_ms": 2.1}])
    later = found.assign(median_ms=3.0, p20_ms=2.9, p80_ms=3.1)
    assert len(compare(found, later, "kernels")[0]) == 1


def test_every_file_has_its_line(tmp_path):
    results, expected = tmp_path / "results", tmp_path / "results" / "expected"
    for folder in (results, expected):
        (folder / "figures").mkdir(parents=True)
        rows({8: 1.0}).to_csv(folder / "figures" / "speed.csv", index=False)
    rows({8: 1.0}).to_csv(expected / "ablation_width.csv", index=False)
    moved, lines = check_expected(results, expected)
    assert moved.empty
    assert lines == [
        "figures/speed.csv: 0 of 1 marks moved beyond their intervals",
        "ablation_width.csv: not made by this run",
    ]
    with pytest.raises(UserError, match="found no figures"):
        check_expected(results, tmp_path)


def test_nothing_compared_is_no_agreement(tmp_path):
    results, expected = tmp_path / "results", tmp_path / "results" / "expected"
    for folder in (results, expected):
        (folder / "figures").mkdir(parents=True)
        pd.DataFrame({"arm": ["fused"], "bytes": [3]}).to_csv(folder / "figures" / "memory.csv", index=False)
    with pytest.raises(UserError, match="no mark was compared"):
        check_expected(results, expected)
    for folder in (results, expected):
        rows({8: 1.0}).to_csv(folder / "figures" / "speed.csv", index=False)
    _, lines = check_expected(results, expected)
    assert lines[0] == "figures/memory.csv: has no intervals, so nothing was compared"
