"""Requests of a cell on the disk: no kill loses what was answered, and what was written reads back."""

import os
from pathlib import Path

import pytest
import torch

from tfm_bench.backends import request_log
from tfm_bench.backends.request_log import LoggedRequest, RequestLog, ServerRequest, read_requests
from tfm_bench.errors import UserError
from tfm_bench.measure.provenance import CellProvenance, now, origin_of


def failed(prompt=0, reason="it crashed"):
    return ServerRequest(
        stack="fake",
        dataset="math",
        split="test",
        temperature=0.0,
        repeat=0,
        prompt=prompt,
        prompt_id=f"p{prompt}",
        method="tfm",
        budget=9,
        expansion_width=1,
        control=False,
        status="failed",
        reason=reason,
    )


def logged(prompt=0):
    unknown = dict.fromkeys(("frequency_governor", "gpu", "tf32_matmul", "tf32_cudnn", "foreign_load"))
    times = {"started_at": now(), "finished_at": now(), "load_s": 0.0, "warmup_s": 0.0, "jit_s": 0.0}
    own = {"attention_path": "a", "gdn_path": "g", "dtype": "float32", "seed": 0}
    hashes = {"family_versions": {}, "config_sha256": "c"}
    provenance = CellProvenance(**origin_of(torch.device("cpu")), **unknown, **times, **own, **hashes)
    return LoggedRequest(request=failed(prompt), output_ids=[], provenance=provenance)


def prompts(log):
    return [place[3] for place in log.done]


@pytest.fixture
def output(tmp_path):
    return tmp_path / "raw" / "cell.jsonl"


def test_a_kill_at_the_start_loses_nothing(output, monkeypatch):
    first = RequestLog(output, "key")
    for prompt in range(2):
        first.append(logged(prompt))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", killed)
        patched.setattr(request_log.os, "truncate", killed)
        with pytest.raises(KeyboardInterrupt):
            RequestLog(output, "key")
    assert prompts(RequestLog(output, "key")) == [0, 1]


@pytest.mark.parametrize("left", [b"", b'{"key": "k', b'{"key": "key"}\n', b'{"key": "key"}\n{"request": {"torn'])
def test_whatever_a_kill_left_before_the_first_answer_is_started_anew(output, left):
    log = RequestLog(output, "key")
    log.path.parent.mkdir()
    log.path.write_bytes(left)
    again = RequestLog(output, "key")
    assert again.done == {}
    again.append(logged(3))
    assert prompts(RequestLog(output, "key")) == [3]


@pytest.mark.parametrize("lost", [1, 30])
def test_a_torn_line_is_cut_off_and_what_follows_reads_back(output, lost):
    log = RequestLog(output, "key")
    for prompt in range(2):
        log.append(logged(prompt))
    os.truncate(log.path, log.path.stat().st_size - lost)
    again = RequestLog(output, "key")
    assert prompts(again) == [0]
    again.append(logged(7))
    assert prompts(RequestLog(output, "key")) == [0, 7]
    assert prompts(RequestLog(output, "other settings")) == []


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x1c", "\r", "\n"])
def test_reasons_may_hold_what_separates_lines_elsewhere(tmp_path, separator):
    path, written = tmp_path / "cell.requests.jsonl", [failed(0, f"a{separator}b"), failed(1)]
    path.write_text("".join(f"{request.model_dump_json()}\n" for request in written), encoding="utf-8")
    assert read_requests(path) == written


@pytest.mark.parametrize("damage", [b'{"torn', b"\xff\xfe", b""])
def test_damage_is_named_with_its_line(tmp_path, damage):
    path, good = tmp_path / "cell.requests.jsonl", failed().model_dump_json().encode()
    path.write_bytes(good + b"\n" + damage + b"\n" + good)
    with pytest.raises(UserError, match=r"cell\.requests\.jsonl, line 2: not a request \(.*\); delete it and rerun$"):
        read_requests(path)
