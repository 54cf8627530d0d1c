"""Answers of a server in SGLang's form, and all others: each is a ServerError of one line, so only its arm fails."""

import json
import sys
from contextlib import contextmanager

import pytest

from tests.tfm_bench.backends.fake_installation import install, make_settings
from tfm_bench.backends import sglang
from tfm_bench.backends.answers import FinishReason, MetaInfo, ServerError, read_info, read_reply
from tfm_bench.backends.flags import AR, launch_command
from tfm_bench.backends.ports import free_port
from tfm_bench.backends.process import in_one_line
from tfm_bench.backends.sglang import Sampling, sglang_server

META = {"completion_tokens": 3, "prompt_tokens": 2, "finish_reason": {"type": "length"}}
DEEP = "[" * 100_000
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
headers, body = dict(pair.split("=") for pair in sys.argv[2].split(",")), sys.argv[3].encode()
class Handler(BaseHTTPRequestHandler):
    def answer(self, body=body, headers=headers):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
    do_POST = answer
    def do_GET(self):
        self.answer() if self.path == "/get_server_info" else self.answer(b"", {})
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def chunk(meta=(), **changes):
    return json.dumps(
        {"text": "x\u2028", "output_ids": [1, 2, 3], "meta_info": META | dict(meta), "later": [1.5]} | changes
    )


def message(call, *arguments):
    with pytest.raises(ServerError) as failure:
        call(*arguments)
    text = str(failure.value)
    assert text.isprintable()
    assert len(text) < 450
    return text


def test_the_last_chunk_is_the_answer():
    reply = read_reply(chunk({"spec_verify_ct": 2, "spec_correct_drafts_histogram": [1, 1]}), 0.5, 1.5)
    length = FinishReason(type="length")
    assert reply.meta == MetaInfo(
        completion_tokens=3,
        prompt_tokens=2,
        finish_reason=length,
        spec_verify_ct=2,
        spec_correct_drafts_histogram=[1, 1],
    )
    assert (reply.output_ids, reply.first_token_s, reply.total_s) == ([1, 2, 3], 0.5, 1.5)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("", "Invalid JSON"),
        ("{nope", "Invalid JSON"),
        (DEEP, "Invalid JSON: recursion limit exceeded"),
        ('{"text": ' + DEEP, "Invalid JSON: recursion limit exceeded"),
        ("null", "Input should be an object"),
        ("[1]", "Input should be an object"),
        ('"error"', "Input should be an object"),
        (chunk().replace("[1, 2, 3]", "[1, 2, Infinity]"), "output_ids.2: Input should be a finite number"),
        (chunk().replace("[1, 2, 3]", "[1, 2, 1e400]"), "output_ids.2: Input should be a finite number"),
        (chunk(output_ids=[1, 2, 10**30]), "output_ids.2: Input should be less than 2147483648"),
        (chunk(output_ids=[-1, 2, 3]), "output_ids.0: Input should be greater than or equal to 0"),
        (chunk({"spec_verify_ct": -2}), "meta_info.spec_verify_ct: Input should be greater than or equal to 0"),
        (chunk({"finish_reason": None}), "meta_info.finish_reason: Input should be"),
        ('{"output_ids": [1]}', "meta_info: Field required"),
        (chunk({"finish_reason": {"type": "abort"}}), "the server aborted the request"),
        (chunk(output_ids=[1]), "found 1 output_ids for 3 completion_tokens"),
        (chunk({"completion_tokens": 0}, output_ids=[]), "found 0 output_ids for 0 completion_tokens"),
        (json.dumps({"error": {"message": "out\nof\u2028memory" + "y" * 999}}), "the server gave up ({'message': 'out"),
    ],
    ids=lambda value: value[:30],
)
def test_any_other_chunk_is_an_error_of_the_server(payload, expected):
    assert expected in message(read_reply, payload, 0.1, 0.2)


def test_what_the_server_says_of_itself_is_an_object():
    assert read_info(b'{"speculative_algorithm": null, "load": [NaN, Infinity]}')["speculative_algorithm"] is None
    for content in (b"<html>", b"[1, 2]", b"[[1, 2]]", b"null", b"\xff\xff", b'{"a": "\xff"}', DEEP.encode(), b""):
        assert message(read_info, content).startswith("/get_server_info: found no JSON object (")


@contextmanager
def answering(tmp_path, body, headers="Content-Type=text/event-stream"):
    """A server that answers everything but /health so."""
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(port), headers, body]
    with sglang_server(command, port, tmp_path / "log", start_timeout_s=30, request_timeout_s=10) as server:
        yield server


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ("data: {nope\n\ndata: [DONE]\n\n", "Content-Type=text/event-stream", "not in SGLang's form"),
        (f"data: {chunk()}\n\n", "Content-Type=text/event-stream", "the answer ended too early"),
        ("<html>", "Content-Type=text/html", "the connection broke in mid-answer (Expected response with content type"),
        ("no gzip", "Content-Type=text/event-stream,Content-Encoding=gzip", "incorrect header check"),
    ],
    ids=["no JSON", "cut off", "HTML", "gzip"],
)
def test_a_server_that_answers_nonsense_fails_its_arm(tmp_path, body, headers, expected):
    with answering(tmp_path, body, headers) as server:
        assert expected in message(server.generate, [1], Sampling(0.0, 0, 3))
        assert "/get_server_info: " in message(server.info)


def test_an_answer_counts_only_while_the_server_lives(tmp_path, monkeypatch):
    """Once it is gone, another process may take its port and answer in its place."""
    install(monkeypatch, engine="scripted")
    port = free_port()
    command = launch_command(make_settings(), AR, port)
    with (
        answering(tmp_path, f"data: {chunk()}\n\ndata: [DONE]\n\n") as foreign,
        sglang_server(command, port, tmp_path / "own", start_timeout_s=60, request_timeout_s=10) as own,
    ):
        assert foreign.generate([1], Sampling(0.0, 0, 3)).output_ids == [1, 2, 3]
        own.process.kill()
        own.process.wait()
        monkeypatch.setattr(own.client, "_transport", foreign.client._transport)
        own.client.base_url = foreign.client.base_url
        text = message(own.generate, [1], Sampling(0.0, 0, 3))
        assert text.startswith("the server was gone when its answer came; its process ended with signal 9")


def test_reasons_are_short_and_printable(tmp_path):
    assert in_one_line("\x1b[31mred\x1b[0m \x00 a\u2028b\x85c\tcafé\n") == "[31mred [0m a b c café"
    assert in_one_line("x" * 1000) == "x" * 300
    script = r"import sys; sys.stdout.buffer.write(b'\xff\x1b[1m' + b'y' * 9_000_000); sys.exit(4)"
    with (
        pytest.raises(ServerError, match=rf"exit code 4, the last line of {tmp_path}/log: y{{300}}$"),
        sglang_server(
            [sys.executable, "-c", script], free_port(), tmp_path / "log", start_timeout_s=30, request_timeout_s=5
        ),
    ):
        pass
    assert sglang.log_tail(tmp_path / "log")[-1].endswith("y")
