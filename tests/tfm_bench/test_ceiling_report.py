"""Table and figure of `ablation_ceiling` on made-up observations."""

from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.tfm_bench.fake_cells import ROOT
from tfm_bench.ablations import probe_settings
from tfm_bench.config import load_config, read_yaml
from tfm_bench.measure.probe_records import ProbeRecord
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.ablations import ceiling

ACCEPTED = {"ceiling": 0.6, "ceiling_argmax": 0.65, "best_factorised": 0.7, "dflash": 0.4, "dflash_argmax": 0.5}
PLACES = 12


def records(weaver_above, dataset):
    """Places whose acceptance differs by place; Weaver is above the ceiling by the same amount everywhere."""
    settings = probe_settings(load_config(read_yaml(ROOT / "config" / "default.yaml")), "ceiling")
    machine = SimpleNamespace(device="a CPU", threads=2, measured_at=datetime(2026, 11, 30, tzinfo=UTC))
    for place in range(PLACES):
        for depth in (1, 2, 3) if place else (1, 2):
            at_place = {name: value + 0.02 * place for name, value in ACCEPTED.items()}
            same = {name: value + 0.01 * (name in ceiling.BOUNDS) for name, value in at_place.items()}
            for name in ("weaver", "weaver_argmax"):
                same[name] = at_place[name] = same["ceiling"] + weaver_above
            for drafter, accepted in at_place.items():
                values = {
                    "dataset": dataset,
                    "place": place,
                    "prompt_id": f"p{place}",
                    "position": 60,
                    "depth": depth,
                    "samples": 100,
                }
                values |= {"drafter": drafter, "acceptance": accepted, "acceptance_same_samples": same[drafter]}
                yield ProbeRecord.model_construct(values=values, settings=settings, provenance=machine)


def data(weaver_above=0.05):
    probe = [*records(weaver_above, "math"), *records(2 * weaver_above, "chat")]
    return AblationData(decode=pd.DataFrame(), rounds=[], probe=probe)


@pytest.fixture(scope="module")
def table():
    return ceiling.table(data())


def row(table, depth, drafter, dataset="math"):
    rows = table[(table["depth"] == depth) & (table["drafter"] == drafter) & (table["dataset"] == dataset)]
    (found,) = rows.to_dict("records")
    return found


def test_rows_are_means_over_places(table):
    assert list(table.columns) == ceiling.COLUMNS
    assert len(table) == 2 * 3 * 7
    assert list(table["dataset"].unique()) == ["math", "chat"]
    first, third = row(table, 1, "dflash"), row(table, 3, "dflash")
    assert first["acceptance"] == pytest.approx(np.mean([0.4 + 0.02 * place for place in range(PLACES)]))
    assert (first["places"], first["samples"], third["places"], third["samples"]) == (12, 1200, 11, 1100)
    assert third["acceptance"] == pytest.approx(np.mean([0.4 + 0.02 * place for place in range(1, PLACES)]))
    assert first["acceptance_low"] < first["acceptance"] < first["acceptance_high"]
    assert row(table, 1, "ceiling")["acceptance_same_samples"] == pytest.approx(
        row(table, 1, "ceiling")["acceptance"] + 0.01
    )


def test_differences_are_paired_and_from_the_higher_estimate(table):
    """A constant difference has an interval without width, however much places differ."""
    woven = row(table, 2, "weaver")
    for end in ("", "_low", "_high"):
        assert woven[f"above_ceiling{end}"] == pytest.approx(0.05)
        assert woven[f"above_best_factorised{end}"] == pytest.approx(-0.05)
    assert row(table, 2, "ceiling")["above_ceiling"] == pytest.approx(-0.01)
    assert row(table, 2, "weaver", "chat")["above_ceiling"] == pytest.approx(0.1)


@pytest.mark.parametrize(("dataset", "first"), [("math", 0), ("chat", 3)])
def test_lines_are_the_rows_of_the_table(table, dataset, first):
    sampled, likeliest, differences = ceiling.figure(table, "note").axes[first : first + 3]
    rows = table[table["dataset"] == dataset]
    for axes, names in ((sampled, ceiling.PANELS["sampled from"]), (likeliest, ceiling.PANELS["its likeliest token"])):
        assert axes.get_ylim()[0] == 0
        for line, name in zip(axes.lines, names, strict=True):
            assert list(line.get_ydata()) == list(rows.loc[rows["drafter"] == name, "acceptance"])
    woven = rows[rows["drafter"] == "weaver"]
    for line, bound in zip(differences.lines, ceiling.BOUNDS, strict=False):
        assert list(line.get_ydata()) == list(woven[f"above_{bound}"])


def test_the_note_says_what_the_intervals_are():
    note = ceiling.note(data())
    for part in (
        "2026-11-30",
        "a CPU, 2 threads",
        "n = 12 (math), 12 (chat) places",
        "bootstrap over places",
        "higher by 0.0100 (math)",
    ):
        assert part in note
