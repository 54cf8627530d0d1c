"""Marks that moved, on tables where it is plain which did."""

import pandas as pd
import pytest

from tfm_bench.errors import UserError
from tfm_bench.report.expected import check_expected, compare


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


def test_only_marks_with_intervals_in_both_runs_are_compared():
    found, expected = rows({8: 9.0, 16: 9.0, 32: 9.0}), rows({8: 1.0, 16: 1.0, 64: 1.0})
    expected.loc[0, "speedup_low"] = float("nan")
    table, compared = compare(found, expected, "speed")
    assert (len(table), compared) == (1, 1)


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
