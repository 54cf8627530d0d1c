"""A server cell: records in the engine's form, reasons for what is missing, and no request asked twice."""

import json
import os

import pytest
from transformers import AutoTokenizer

from tests.tfm_bench.backends.fake_installation import detected, install, make_settings
from tests.tfm_bench.scripted_engine import PER_ROUND, ROUND_S, text_of
from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.backends import server_cell as server_cell_module
from tfm_bench.backends import server_runs
from tfm_bench.backends.answers import FinishReason, MetaInfo, Reply, ServerError, read_info
from tfm_bench.backends.flags import AR, ServerArm, server_arms
from tfm_bench.backends.request_log import RequestLog, read_requests, requests_path
from tfm_bench.backends.server_cell import run_order, runs_of, server_cell
from tfm_bench.errors import UserError
from tfm_bench.measure.invariants import check_server_cell
from tfm_bench.measure.lossless import tokens_sha256
from tfm_bench.measure.records import read_records

PROMPTS, TOKENS = 3, 40
FORK = "FAKE_SGLANG_FORK"


@pytest.fixture
def place(monkeypatch, tmp_path):
    """A folder with prompts, where servers decode by the scripted engine."""
    install(monkeypatch, engine="scripted", fork=1)
    monkeypatch.setattr(server_cell_module, "detect", lambda _: detected(os.environ.get(FORK)))
    (tmp_path / "prompts").mkdir()
    lines = [json.dumps({"id": f"p{i}", "text": f"prompt {i}", "kind": "text"}) for i in range(PROMPTS)]
    (tmp_path / "prompts" / "math.test.jsonl").write_text("\n".join(lines))
    return tmp_path


def measure(place, **changes):
    """(records, requests) of a cell."""
    output = place / "raw" / "cell.jsonl"
    settings = make_settings(path=place, **changes)
    server_cell(settings, output, place / "logs")
    assert [path.name for path in output.parent.iterdir() if path.name.startswith(".")] == []
    return read_records(output), read_requests(requests_path(output))


def test_above_temperature_0_the_text_is_no_verdict(place):
    """There a server draws by noise of its own."""
    records, _ = measure(place, temperature_hundredths=100, methods=["ar", "dflash_chain"])
    assert {(r.status, r.rule) for r in records} == {("ok", "server_sampler")}
    assert {(r.lossless, r.first_divergence) for r in records} == {(None, None)}


def test_a_record_per_prompt_and_arm_in_the_form_of_the_engines(place):
    records, requests = measure(place)
    arms = [("ar", False), ("dflash_chain", False), ("ar", True), ("ddtree", False), ("tfm", False)]
    expected = [(prompt, *arm) for prompt in range(PROMPTS) for arm in arms]
    assert [(r.prompt, r.method, r.control) for r in records] == expected
    assert [(r.prompt, r.method, r.control) for r in requests] == expected
    for record, request in zip(records, requests, strict=True):
        assert (record.status, request.status, record.lossless, record.degenerate) == ("ok", "ok", True, False)
        assert (record.rule, record.first_divergence) == ("sample_match", None)
        drafted = PER_ROUND[record.method]
        rounds = -(-(TOKENS - 1) // drafted)
        assert (record.tokens, record.rounds) == (TOKENS - 1, rounds)
        assert (record.accepted_drafts_sum, record.max_depth) == (TOKENS - 1 - rounds, drafted - 1)
        assert record.acceptance_length == pytest.approx((TOKENS - 1) / rounds)
        assert record.verify_width == {"ar": 1, "dflash_chain": 8}.get(record.method, 10)
        assert record.expansion_width == (1 if record.method == "tfm" else 0)
        assert request.verify_steps == (0 if record.method == "ar" else rounds)
        assert record.decode_ms == pytest.approx((request.total_s - request.first_token_s) * 1e3)
        assert request.total_s > ROUND_S * (rounds - 1)
        assert record.stage_ms is None
        assert record.provenance.seed == 5 + record.prompt
        assert record.provenance.launch_command[1:3] == ["-m", "sglang.launch_server"]
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "target")
    texts = [text_of(tokenizer.encode(f"prompt {i}"), 0.0, 5 + i, TOKENS) for i in range(PROMPTS)]
    assert [record.tokens_sha256 for record in records] == [tokens_sha256(texts[r.prompt]) for r in records]


def test_the_text_is_judged_against_that_of_plain_decoding(place, monkeypatch):
    measured = server_runs._measured

    def tampered(cell, run, index, warm):
        logged = measured(cell, run, index, warm)
        if run.arm.method == "tfm" and index == 1:
            logged.output_ids[7] += 1
        return logged

    monkeypatch.setattr(server_runs, "_measured", tampered)
    records, _ = measure(place, methods=["ar", "tfm"])
    wrong = [(r.prompt, r.method, r.first_divergence) for r in records if not r.lossless]
    assert wrong == [(1, "tfm", 7)]


def test_arms_that_the_installation_lacks_are_unsupported_and_start_no_server(place, monkeypatch, capfd):
    monkeypatch.delenv(FORK)
    records, requests = measure(place)
    lacking = [r for r in records if r.status != "ok"]
    assert {(r.method, r.status) for r in lacking} == {("ddtree", "unsupported"), ("tfm", "unsupported")}
    assert len(lacking) == 2 * PROMPTS
    assert {r.reason for r in lacking} == {"SGLang not installed has no speculative algorithm DFLASH_TFM"}
    assert [r.status for r in requests] == [r.status for r in records]
    assert sorted(log.name for log in (place / "logs" / "cell").iterdir()) == [
        "ar-0-control.log",
        "ar-0.log",
        "dflash_chain-7.log",
    ]
    assert "tfm 9 has no number on 3 of 3 prompts" in capfd.readouterr().err


def test_a_crash_costs_its_prompt_and_the_server_is_started_again(place, monkeypatch):
    crash = place / "crash"
    crash.touch()
    monkeypatch.setenv("FAKE_SGLANG_CRASH", str(crash))
    monkeypatch.setattr(server_runs, "WARMUP_TOKENS", 2)  # too short to crash in
    records, _ = measure(place, repeat=1, methods=["ar", "dflash_chain"])  # in reverse, so the chain comes first
    failed = [(r.prompt, r.method, r.status) for r in records if r.status != "ok"]
    assert failed == [(0, "dflash_chain", "failed")]
    reason = next(r.reason for r in records if r.status == "failed")
    assert "exit code 7" in reason
    assert "illegal memory access" in reason


def test_a_server_that_does_not_start_is_not_tried_again(place, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG_REPORTS", "NONE")
    starts, start = [], server_runs.sglang_server
    monkeypatch.setattr(
        server_runs, "sglang_server", lambda command, *a, **k: starts.append(command) or start(command, *a, **k)
    )
    records, _ = measure(place, methods=["ar", "dflash_chain"])
    assert len(starts) == 3  # ar, its control, the chain
    assert {r.reason for r in records if r.status == "failed"} == {
        "the server is not the one that was asked for (speculative_algorithm: asked for DFLASH, the server runs NONE)"
    }


def test_a_server_that_says_nothing_of_itself_fails_its_arm_alone(place, monkeypatch):
    ours = server_runs.SglangServer.info

    def info(server):
        return read_info(b"<html>") if "DFLASH" in server.process.args else ours(server)

    monkeypatch.setattr(server_runs.SglangServer, "info", info)
    records, _ = measure(place, methods=["ar", "dflash_chain", "tfm"])
    assert {(r.method, r.status) for r in records} == {("ar", "ok"), ("dflash_chain", "failed"), ("tfm", "ok")}
    assert all("found no JSON object" in r.reason for r in records if r.status == "failed")


def test_plain_decoding_that_fails_ends_the_cell(place, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG_REPORTS", "DFLASH")
    with pytest.raises(ServerError, match=r"^test math T=0 repeat 0: ar-0: the server is not the one"):
        measure(place, methods=["ar"])
    assert not (place / "raw" / "cell.jsonl").exists()


def test_what_a_killed_run_has_measured_is_not_asked_again(place, monkeypatch):
    measured, asked = server_runs._measured, []

    def interrupted(cell, run, index, warm):
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.append((run.arm.method, run.control, index))
        return measured(cell, run, index, warm)

    monkeypatch.setattr(server_runs, "_measured", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(place, methods=["ar"])
    partial = place / "raw" / ".cell.jsonl.partial"
    partial.write_bytes(partial.read_bytes() + b'{"request": {"torn')
    (place / ".copy.jsonl.partial").write_bytes(partial.read_bytes())
    assert RequestLog(place / "copy.jsonl", "other settings").done == {}
    before = list(asked)
    asked.insert(0, None)  # beyond the interruption
    records, requests = measure(place, methods=["ar"])
    assert before == [("ar", False, 0), ("ar", False, 1), ("ar", False, 2), ("ar", True, 0)]
    assert asked[5:] == [("ar", True, 1), ("ar", True, 2)]
    assert len(records) == len(requests) == 2 * PROMPTS


def test_answers_that_contradict_the_arm_are_refused():
    def steps(arm, completion_tokens, verify_steps):
        meta = MetaInfo(
            completion_tokens=completion_tokens,
            prompt_tokens=1,
            finish_reason=FinishReason(type="length"),
            spec_verify_ct=verify_steps,
        )
        return server_runs._verify_steps(arm, Reply([0] * completion_tokens, meta, 0.1, 0.2))

    chain = ServerArm("dflash_chain", 7)
    assert (steps(AR, 9, None), steps(chain, 9, 4), steps(chain, 1, None)) == (0, 4, 0)
    with pytest.raises(ServerError, match="plain decoding was asked for, but spec_verify_ct is 3"):
        steps(AR, 9, 3)
    with pytest.raises(ServerError, match="spec_verify_ct is missing: the server decoded plainly"):
        steps(chain, 9, None)
    with pytest.raises(ServerError, match="spec_verify_ct is 9 for 8 tokens"):
        steps(chain, 9, 9)


def test_the_order_of_arms_is_rotated_and_reversed():
    runs = runs_of(server_arms(make_settings()))
    assert [run.arm.method for run in runs] == ["ar", "dflash_chain", "ar", "ddtree", "tfm"]
    assert [run.control for run in runs] == [False, False, True, False, False]
    orders = [run_order(runs, repeat) for repeat in range(10)]
    assert orders[1] == orders[0][::-1]
    assert {order[0] for order in orders[::2]} == set(runs)
    assert all(sorted(map(str, order)) == sorted(map(str, runs)) for order in orders)


def test_sums_that_cannot_be_are_named(place):
    records, _ = measure(place, budgets=[9])
    path = place / "raw" / "cell.jsonl"
    assert check_server_cell(path, records)["counts"] == 3 * len(records)
    tree = next(index for index, record in enumerate(records) if record.method == "tfm")
    for change, message in [
        ({"tokens": 7}, "accepted drafts \\+ rounds"),
        ({"max_depth": 10}, "max_depth: found 10; expected is 0 to the budget, 9"),
        ({"verify_width": 9}, "verify_width: found 9; expected is 10"),
        ({"lossless": False}, "lossless: found False; expected is True"),
        ({"status": "failed", "reason": "it crashed"}, "numbers of a record that is failed"),
    ]:
        changed = [*records[:tree], records[tree].model_copy(update=change), *records[tree + 1 :]]
        with pytest.raises(UserError, match=f"line {tree + 1} .tfm, budget 9, prompt 0.: {message}"):
            check_server_cell(path, changed)
