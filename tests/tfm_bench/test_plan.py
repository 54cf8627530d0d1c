"""What is left of a run, against sums by hand."""

import json
import os
import time

from tfm_bench.measure.plan import EXPECTED, main, progress_line, write_plan


def finished(path, seconds):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:00:00\t700.5\n")
    return str(path)


def test_what_is_left_is_foretold_from_the_expected_seconds_and_what_is_done(tmp_path):
    plan, expected = tmp_path / "plan.json", tmp_path / "seconds.csv"
    jobs = [str(tmp_path / f"{name}.tsv") for name in "abc"]
    expected.write_text(f"benchmark,seconds,megabytes\n{jobs[0]},60,700\n{jobs[1]},120,700\n")
    write_plan(jobs, plan, expected)
    # Nothing foretells c before a process has ended.
    assert progress_line(plan) == "measuring process 1 of 3"
    finished(tmp_path / "a.tsv", 120)
    # a took twice as long as foretold, so b takes 240 s, and c as long as a.
    assert progress_line(plan) == "measuring process 2 of 3, about 6 min left"
    finished(tmp_path / "b.tsv", 120)
    finished(tmp_path / "c.tsv", 90)
    assert progress_line(plan).endswith("about 0 min left")


def test_files_of_an_earlier_run_are_not_done(tmp_path):
    plan, old = tmp_path / "plan.json", tmp_path / "a.tsv"
    write_plan([finished(old, 10)], plan, tmp_path / "missing.csv")
    os.utime(old, (time.time() - 1000,) * 2)
    assert progress_line(plan) == "measuring process 1 of 1"
    assert json.loads(plan.read_text())["jobs"] == {str(old): None}


def test_the_committed_seconds_come_from_the_benchmark_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("decode_cell/a", "ablations/width", "smoke/decode_cell/a"):
        finished(tmp_path / "logs" / f"{name}.tsv", 12.4)
    main()
    lines = EXPECTED.read_text().splitlines()
    assert lines == [
        "benchmark,seconds,megabytes",
        "logs/ablations/width.tsv,12,700",
        "logs/decode_cell/a.tsv,12,700",
    ]


def test_without_a_plan_nothing_is_said(tmp_path):
    assert progress_line(tmp_path / "plan.json") is None
