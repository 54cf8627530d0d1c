"""The regression gate on made-up tables: what got worse is named, noise is not, and no comparison is never a pass."""

from pathlib import Path

import pandas as pd
import pytest

from tests.tfm_bench.stored_runs import PROMPTS, ROUNDS, decode_rows, kernel_rows
from tfm_bench.errors import UserError
from tfm_bench.measure import regression as gate
from tfm_bench.measure.regression import main, summary, table_regression
from tfm_bench.measure.stored_run import read_run


@pytest.fixture
def store(tmp_path):
    """Writes a run's folder and returns its path."""

    def write(name: str, decode: pd.DataFrame, kernels: pd.DataFrame | None = None) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        decode.to_csv(folder / "decode.csv", index=False)
        if kernels is not None:
            kernels.to_csv(folder / "gdn_verify.csv", index=False)
        return folder

    return write


@pytest.fixture
def compare(store):
    """Verdicts other than ok of a run against an unchanged baseline: {(what, metric): verdict}."""

    def verdicts(decode, kernels=None) -> dict[tuple[str, str], str]:
        baseline = store("baseline", decode_rows(seed=1), None if kernels is None else kernel_rows())
        table = table_regression(read_run(store("run", decode, kernels)), read_run(baseline))
        changed = table[table["verdict"] != "ok"]
        return dict(zip(zip(changed["what"], changed["metric"], strict=True), changed["verdict"], strict=True))

    return verdicts


def at(rows: pd.DataFrame, **values) -> pd.Series:
    return (rows[list(values)] == pd.Series(values)).all(axis=1)


def test_noise_is_no_regression_and_every_arm_is_compared_twice(compare, store):
    assert compare(decode_rows(), kernel_rows()) == {}
    table = table_regression(read_run(store("again", decode_rows())), read_run(store("before", decode_rows(seed=2))))
    assert list(table["metric"]) == ["tokens_per_second", "acceptance_length"] * 6
    assert set(table["prompts"]) == {PROMPTS}
    assert table["tolerance"].between(0.95, 1).all()


def test_ratio_and_tolerance_are_what_was_put_in(store):
    before, now = decode_rows().assign(decode_ms=100.0), decode_rows().assign(decode_ms=100.0)
    before.loc[at(before, control=True), "decode_ms"] = 90.0
    now.loc[at(now, method="tfm"), "decode_ms"] = 110.0
    table = table_regression(read_run(store("now", now)), read_run(store("before", before))).set_index(
        ["what", "metric"]
    )
    row = table.loc["tiny math T=1 tfm 15/1", "tokens_per_second"]
    assert row["ratio"] == pytest.approx(100 / 110)
    assert row["tolerance"] == pytest.approx(0.9)
    assert row["verdict"] == "ok"
    assert row["now"] == pytest.approx(ROUNDS * 4 / 0.11)
    assert table.loc["tiny math T=1 tfm 15/1", "acceptance_length"]["baseline"] == 4.0


def test_a_slower_arm_is_named(compare):
    rows = decode_rows()
    rows.loc[at(rows, method="tfm", dataset="code", split="test"), "decode_ms"] *= 1.15
    assert compare(rows) == {("tiny code T=1 tfm 15/1", "tokens_per_second"): "regression"}


def test_a_slower_arm_within_the_noise_of_its_own_control_is_not(compare):
    rows = decode_rows()
    rows.loc[at(rows, method="tfm"), "decode_ms"] *= 1.15
    rows.loc[at(rows, control=True), "decode_ms"] *= 1.2
    assert compare(rows) == {}


def test_fewer_accepted_drafts_are_a_regression_whatever_the_noise(compare):
    rows = decode_rows()
    lower = at(rows, method="ddtree", dataset="math")
    rows.loc[lower, "rounds"] += 1 + rows.loc[lower, "prompt"] % 2
    rows.loc[at(rows, control=True), "decode_ms"] *= 1.2
    assert compare(rows) == {("tiny math T=1 ddtree 15", "acceptance_length"): "regression"}


def test_acceptance_is_judged_on_the_ratio_itself_beyond_a_thousandth(compare, store):
    rows = decode_rows()
    # One prompt of eight: the interval reaches 1, since draws leave the prompt out.
    rows.loc[at(rows, method="tfm", dataset="math", prompt=3), "rounds"] += 1
    assert compare(rows) == {("tiny math T=1 tfm 15/1", "acceptance_length"): "regression"}
    table = table_regression(read_run(store("now", rows)), read_run(store("before", decode_rows(2))))
    assert table.loc[table["verdict"] == "regression", "ratio_high"].item() > 1 - gate.ACCEPTANCE_SLACK


def test_acceptance_that_differs_by_less_than_a_thousandth_is_no_regression(compare):
    rows = decode_rows().astype({"tokens": float})
    rows.loc[at(rows, method="tfm", dataset="math"), "tokens"] *= 0.9995
    assert compare(rows) == {}


def test_prompts_of_other_text_are_not_compared(store):
    slow = decode_rows()
    slow.loc[at(slow, dataset="math", prompt=3), "tokens_sha256"] = "another prompt file"
    slow.loc[at(slow, dataset="math", prompt=3) & ~at(slow, method="ar"), ["rounds", "decode_ms"]] *= 5
    once = at(slow, dataset="math", prompt=4, method="ar", repeat=1, control=False)
    slow.loc[once, "tokens_sha256"] = "in one repeat"
    table = table_regression(read_run(store("run", slow)), read_run(store("baseline", decode_rows(1))))
    assert set(table["verdict"]) == {"ok"}
    math = table["what"].str.contains("math")
    assert (set(table.loc[math, "prompts"]), set(table.loc[~math, "prompts"])) == ({PROMPTS - 2}, {PROMPTS})


def test_a_dataset_of_other_text_is_listed_and_does_not_count(store):
    rows = decode_rows()
    rows.loc[at(rows, dataset="math"), "tokens_sha256"] += " of another checkpoint"
    rows.loc[at(rows, dataset="math", method="tfm"), "status"] = "failed"
    table = table_regression(read_run(store("run", rows)), read_run(store("baseline", decode_rows(1))))
    math = table["what"].str.contains("math")
    assert list(table.loc[math, "verdict"]) == ["other text"] * 3
    assert set(table.loc[~math, "verdict"]) == {"ok"}
    assert summary(table).endswith("; 3 of the baseline could not be compared")


def test_a_text_of_the_control_or_of_a_method_is_not_that_of_the_workload(compare):
    rows = decode_rows()
    rows.loc[at(rows, control=True) | ~at(rows, method="ar"), "tokens_sha256"] = "near tie"
    assert compare(rows) == {}


def test_lost_losslessness_and_failures_are_regressions(compare):
    rows = decode_rows()
    rows.loc[at(rows, method="ddtree", dataset="math", split="test", prompt=3, repeat=1), "lossless"] = False
    failed = at(rows, method="tfm", dataset="code", split="test", prompt=0, repeat=0)
    rows = rows.astype({"lossless": object})
    rows.loc[failed, ["tokens", "rounds", "decode_ms", "lossless"]] = None
    rows.loc[failed, "status"] = "failed"
    assert compare(rows) == {
        ("tiny math T=1 ddtree 15", "lossless_prompts"): "not lossless",
        ("tiny code T=1 tfm 15/1", "tokens_per_second"): "failed",
    }


def test_a_slower_kernel_counts_beyond_its_spread_and_the_noise(compare, store):
    slow = kernel_rows()
    slow.loc[0, ["median_ms", "p20_ms", "p80_ms"]] *= 1.5
    assert compare(decode_rows(), slow) == {("torch 27b weaver 16 1 cold fused verify", "median_ms"): "regression"}
    spread = kernel_rows().assign(p20_ms=1.95, median_ms=3.0, p80_ms=4.0)
    table = table_regression(
        read_run(store("spread", decode_rows(), spread)), read_run(store("tight", decode_rows(1), kernel_rows()))
    )
    assert set(table.loc[table["metric"] == "median_ms", "verdict"]) == {"ok"}


def test_kernels_take_the_widest_noise_of_both_runs_though_an_arm_there_was_not_compared(store):
    before = decode_rows(1)
    before.loc[at(before, control=True, dataset="math"), "decode_ms"] *= 2
    # All of math has other text, so no compared row carries its tolerance.
    now = decode_rows()
    now.loc[at(now, dataset="math"), "tokens_sha256"] = "other"
    slow = kernel_rows(factor=1.5)
    table = table_regression(read_run(store("now", now, slow)), read_run(store("before", before, kernel_rows())))
    kernels = table[table["metric"] == "median_ms"]
    assert (kernels["tolerance"] < 0.51).all()
    assert set(kernels["verdict"]) == {"ok"}


def test_a_slower_kernel_counts_though_every_arm_failed(store):
    now = decode_rows()
    failed = at(now, prompt=0, repeat=0, control=False)
    now.loc[failed, "status"] = "failed"
    run = read_run(store("run", now, kernel_rows(factor=10)))
    table = table_regression(run, read_run(store("baseline", decode_rows(1), kernel_rows())))
    verdicts = table.groupby("metric")["verdict"].agg(set)
    assert dict(verdicts) == {"tokens_per_second": {"failed"}, "median_ms": {"regression"}}


def test_kernels_are_no_stand_in_for_arms_nor_arms_for_kernels(store):
    run = read_run(store("run", decode_rows(), kernel_rows()))
    other = read_run(store("other", decode_rows().assign(tokens_sha256="other"), kernel_rows()))
    with pytest.raises(UserError, match="share too few arms and prompts of the same text: nothing was compared"):
        table_regression(run, other)
    for name, kernels in (("unshared", kernel_rows().assign(nodes=64)), ("failed", kernel_rows().assign(status="no"))):
        with pytest.raises(UserError, match="share no timed kernel: nothing was compared"):
            table_regression(run, read_run(store(name, decode_rows(1), kernels)))


def test_a_noise_floor_that_nothing_can_fall_below_is_none(store):
    rows = decode_rows()
    run = read_run(store("run", rows))
    silent = {"control": at(rows, control=True), "both": at(rows, method="ar")}
    for (name, where), found in zip(silent.items(), ("0 to 0", "nan to nan"), strict=True):
        broken = rows.copy()
        broken.loc[where, "tokens"] = 0
        with pytest.raises(UserError, match=f"{name}: A/A interval of math at T=1: found {found}, so no noise floor"):
            table_regression(run, read_run(store(name, broken)))


def test_arms_that_are_gone_are_listed_and_do_not_count(store):
    run = read_run(store("run", decode_rows().query("method != 'tfm'")))
    table = table_regression(run, read_run(store("baseline", decode_rows())))
    assert (table["verdict"] == "missing").sum() == 2
    assert summary(table).endswith(
        "no regression: 0 of 8 comparisons are worse than the noise explains; 2 of the baseline could not be compared"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "Other CPU"}, "measured on Some CPU, 2 threads, float32"),
        ({"threads": 4}, "do not compare"),
        ({"stack": "small"}, "nothing was compared"),
        ({"prompt": lambda rows: rows["prompt"] + 7}, "nothing was compared"),
    ],
)
def test_what_does_not_compare_is_a_tool_error(store, change, message):
    baseline = read_run(store("baseline", decode_rows().assign(**change)))
    with pytest.raises(UserError, match=message):
        table_regression(read_run(store("run", decode_rows())), baseline)


def test_without_a_control_there_is_no_tolerance(store):
    baseline = read_run(store("baseline", decode_rows().query("not control")))
    with pytest.raises(UserError, match="baseline: no A/A control of math at T=1, so no noise floor"):
        table_regression(read_run(store("run", decode_rows())), baseline)


def test_a_run_on_two_machines_is_refused(store):
    rows = decode_rows()
    rows.loc[at(rows, repeat=1), "device"] = "Other CPU"
    with pytest.raises(UserError, match="mixed hardware"):
        read_run(store("mixed", rows))


def test_exit_codes(store, tmp_path, monkeypatch, capsys):
    run, output = store("run", decode_rows()), tmp_path / "tables" / "regression.csv"
    faster = store("faster", decode_rows(1).assign(decode_ms=lambda rows: rows["decode_ms"] / 2))

    def code(baseline: Path) -> int:
        return main(["--run", str(run), "--baseline", str(baseline), "--output", str(output)])

    assert code(store("same", decode_rows(seed=1))) == 0
    assert "no regression: 0 of 12" in capsys.readouterr().out
    assert list(pd.read_csv(output).columns) == gate.COLUMNS
    assert code(faster / "decode.csv") == 1
    assert "REGRESSION: 6 of 12" in capsys.readouterr().out
    assert code(tmp_path / "nowhere") == 2
    assert not output.exists()
    old = store("old", decode_rows().drop(columns=["control", "status", "tokens_sha256"]))
    assert code(old) == 2
    errors = capsys.readouterr().err
    assert f"error: {tmp_path}/nowhere: cannot be read (No such file or directory)" in errors
    assert f"error: {old}/decode.csv: lacks control, status, tokens_sha256" in errors
    monkeypatch.setattr(gate, "summary", lambda _: 1 / 0)
    assert code(faster) == 2


def test_a_run_without_kernels_is_no_match_for_a_baseline_with_them(store):
    run, baseline = store("run", decode_rows(1)), store("baseline", decode_rows(1), kernel_rows())
    with pytest.raises(UserError, match=r"no gdn_verify\.csv beside it"):
        table_regression(read_run(run), read_run(baseline))
