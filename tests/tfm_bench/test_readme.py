"""README.md against results/expected: its tables are made from the committed records, and nothing else."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.tfm_bench.decode_rows import decode_rows
from tfm_bench.ablation_config import ABLATIONS
from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.readme import against_rows, headline_rows, readme_with_results
from tfm_bench.report.readme_kernels import kernel_rows
from tfm_bench.report.readme_targets import RULES, targets_section
from tfm_bench.report.sections import with_section
from tfm_bench.report.speedup import table_speedup

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "results" / "expected"
MARKED = [f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in ("claims", "targets", "results", "kernels")]
EMPTY = "".join(["text\n", *MARKED, "more\n"])


@pytest.fixture(scope="module")
def decode():
    return read_decode_table(EXPECTED / "decode.csv")


@pytest.fixture(scope="module")
def kernels():
    return pd.read_csv(EXPECTED / "gdn_verify.csv")


def test_readme_is_in_step_with_the_expected_results():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme_with_results(readme, EXPECTED, ROOT / RULES) == readme


def test_expected_speedup_follows_from_the_expected_records(decode):
    expected = pd.read_csv(EXPECTED / "speedup.csv")
    pd.testing.assert_frame_equal(table_speedup(decode), expected, check_dtype=False, rtol=1e-9)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("decode", lambda t: t.assign(decode_ms=t["decode_ms"].where(t["method"] != "tfm", 2 * t["decode_ms"]))),
        ("claims", lambda t: t.assign(verdict="contradicted")),
        ("seconds", lambda t: t.assign(seconds=t["seconds"] + 60)),
        ("gdn_verify", lambda t: t.assign(median_ms=2 * t["median_ms"])),
    ],
)
def test_a_changed_number_changes_the_readme(tmp_path, file, change):
    for name in ("claims", "seconds", "gdn_verify"):
        shutil.copy(EXPECTED / f"{name}.csv", tmp_path)
    # One data set at one temperature: every interval of the whole run would take a quarter of a minute.
    read = {"keep_default_na": False, "na_values": [""]}
    decode = pd.read_csv(EXPECTED / "decode.csv", **read).query("dataset == 'math' and temperature == 1")
    decode.to_csv(tmp_path / "decode.csv", index=False)
    made = readme_with_results(EMPTY, tmp_path, ROOT / RULES)
    change(pd.read_csv(tmp_path / f"{file}.csv", **read)).to_csv(tmp_path / f"{file}.csv", index=False)
    assert made != readme_with_results(EMPTY, tmp_path, ROOT / RULES)
    assert made.startswith("text\n")
    assert made.endswith("\nmore\n")


def test_every_ablation_is_on_the_menu_with_its_time():
    seconds = pd.read_csv(EXPECTED / "seconds.csv")
    menu = targets_section(seconds, (ROOT / RULES).read_text(encoding="utf-8"))
    for name in ABLATIONS:
        (line,) = (line for line in menu.splitlines() if line.startswith(f"| `ablation_{name}` "))
        own = seconds[seconds["benchmark"].str.contains(rf"ablations/{name}\.")]
        assert line.split(" | ")[2] == f"{own['seconds'].sum() / 60:.2f}"


def test_the_headline_shows_the_noise_floor_and_why_a_speedup_is_missing():
    decode = decode_rows()
    assert set(headline_rows(decode)["A/A"]) == {"[0.98, 1.02]"}
    assert set(headline_rows(decode[~decode["control"]])["A/A"]) == {"–"}
    decode.loc[(decode["method"] == "tfm") & (decode["split"] == "test"), ["status", "reason"]] = [
        "failed",
        "no memory",
    ]
    shown = headline_rows(decode)
    failed = shown["method"] == "DFlash-TfM"
    assert set(shown.loc[failed, "speedup"]) == {"failed: no memory"}
    assert shown.loc[~failed, "speedup"].str.match(r"\d\.\d\d \[").all()
    assert set(against_rows(decode)["speed ratio"]) == {"failed: no memory"}


@pytest.mark.parametrize("text", ["none", "<!-- results: begin -->", "<!-- results: end --><!-- results: begin -->"])
def test_missing_markers_are_an_error(text):
    with pytest.raises(ValueError, match="README lacks"):
        with_section(text, "results", "numbers")


def test_a_slower_recurrence_changes_its_column_of_the_kernel_table(kernels):
    slower = kernels["median_ms"].where(kernels["arm"] != "node_recurrent", 2 * kernels["median_ms"])
    before, after = (kernel_rows(frame) for frame in (kernels, kernels.assign(median_ms=slower)))
    assert [name for name in before if list(before[name]) != list(after[name])] == ["node recurrent"]
