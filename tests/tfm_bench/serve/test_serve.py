"""`tfm-bench serve` over a real socket: the tokens of the engine, SGLang's words, and one request at a time."""

import dataclasses
import json
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager

import httpx2
import pytest
import uvicorn

from tests.tfm_bench.tiny_stack import VOCAB, random_stack
from tfm_bench.engine import Arm, generate
from tfm_bench.serve import decoding
from tfm_bench.serve.app import create_app
from tfm_bench.serve.server import Address, bound_socket

ARMS = [Arm("ar"), Arm("dflash_chain", 7), Arm("ddtree", 9), Arm("tfm", 9, 3)]
PROMPT = [3, 9, 4]
each_arm = pytest.mark.parametrize("arm", ARMS, ids=[arm.method for arm in ARMS])


class Letters:
    """Token 0 is a, and so on."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens, skip_special_tokens):
        return "".join(chr(ord("a") + token) for token in tokens)


STACK = dataclasses.replace(random_stack(), tokenizer=Letters())


@contextmanager
def served(arm, stack=STACK):
    """A client of a running server."""
    with bound_socket(Address("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(stack, arm), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            with httpx2.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(20)


def ask(client, temperature=1.0, tokens=40, **changes):
    sampling = {"temperature": temperature, "sampling_seed": 2, "max_new_tokens": tokens}
    reply = client.post("/generate", json={"input_ids": PROMPT, "sampling_params": sampling} | changes)
    assert reply.status_code == 200, reply.text
    return reply.json()


def chunks(response):
    """Parsed events of a stream, which must end as SGLang's do."""
    payloads = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


def streamed(client, path, **body):
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return chunks(response)


def in_process(arm, temperature=1.0, tokens=40, stack=STACK):
    return generate(stack, PROMPT, arm, temperature=temperature, seed=2, max_new_tokens=tokens)


@each_arm
def test_the_tokens_are_those_of_the_engine_and_meta_info_counts_its_rounds(arm):
    with served(arm) as client:
        for temperature in (0.0, 1.0):
            expected = in_process(arm, temperature)
            reply = ask(client, temperature)
            assert reply["output_ids"] == expected.tokens
            assert reply["text"] == Letters().decode(expected.tokens, True)
            meta = reply["meta_info"]
            assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 40)
            assert meta["finish_reason"] == {"type": "length", "length": 40}
            assert meta["e2e_latency"] > 0
            assert_speculation(meta, arm, expected)


def assert_speculation(meta, arm, expected):
    if arm.method == "ar":
        assert not [key for key in meta if key.startswith("spec_")]
        return
    accepted, rounds = expected.accepted, len(expected.rounds)
    proposed = sum(done.verify_width - 1 for done in expected.rounds)
    assert meta["spec_verify_ct"] == rounds
    assert meta["spec_num_correct_drafts"] == sum(accepted)
    assert meta["spec_num_proposed_drafts"] == proposed
    assert meta["spec_accept_length"] == pytest.approx(40 / rounds)
    assert meta["spec_accept_rate"] == pytest.approx(sum(accepted) / proposed)
    counted = Counter(dict(enumerate(meta["spec_correct_drafts_histogram"])))
    assert +counted == Counter(accepted)


@each_arm
def test_a_stream_has_a_chunk_per_round_and_ends_with_the_whole_answer(arm):
    expected = in_process(arm)
    with served(arm) as client:
        body = {"input_ids": PROMPT, "sampling_params": {"sampling_seed": 2, "max_new_tokens": 40}}
        answers = streamed(client, "/generate", **body)
    lengths = [1]
    for accepted in expected.accepted:
        lengths.append(lengths[-1] + accepted + 1)
    assert [answer["output_ids"] for answer in answers] == [expected.tokens[:length] for length in lengths]
    assert [answer["meta_info"]["finish_reason"] is None for answer in answers] == [True] * (len(lengths) - 1) + [False]
    assert_speculation(answers[-1]["meta_info"], arm, expected)


def test_a_stop_id_ends_the_answer_and_is_named():
    tokens = in_process(Arm("tfm", 9, 3)).tokens
    stack = dataclasses.replace(STACK, stop_ids=frozenset({tokens[12]}))
    expected = in_process(Arm("tfm", 9, 3), stack=stack).tokens
    with served(Arm("tfm", 9, 3), stack) as client:
        reply = ask(client)
    assert reply["output_ids"] == expected
    assert len(expected) < 40
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": tokens[12]}


@pytest.fixture
def gate(monkeypatch):
    """Decoding that stops after its first token until the test lets it go on, and tells how many run at once."""
    gate = Gate()
    monkeypatch.setattr(decoding, "generate", gate.generate)
    return gate


class Gate:
    def __init__(self):
        self.open, self.running, self.most, self.ended = threading.Event(), 0, 0, threading.Event()
        self.count = threading.Lock()

    def generate(self, *arguments, on_tokens, **options):
        def held(tokens):
            on_tokens(tokens)
            assert self.open.wait(20)

        with self.count:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            return generate(*arguments, on_tokens=held, **options)
        finally:
            with self.count:
                self.running -= 1
            self.ended.set()


def test_the_first_token_arrives_while_the_rest_is_not_decoded_yet(gate):
    with served(Arm("ar")) as client:
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 5}, "stream": True}
        with client.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            assert len(first["output_ids"]) == 1
            assert not gate.open.is_set()
            assert client.post("/flush_cache").status_code == 400
            assert client.get("/health_generate").status_code == 200
            gate.open.set()
            assert len([line for line in lines if line]) == 5
        assert client.post("/flush_cache").status_code == 200


def test_requests_take_turns(gate):
    expected = in_process(Arm("ddtree", 9), tokens=12).tokens
    gate.open.set()
    with served(Arm("ddtree", 9)) as client:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(ask(client, tokens=12))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert [answer["output_ids"] for answer in answers] == [expected] * 4
    assert gate.most == 1


def test_a_client_that_leaves_ends_its_generation(gate):
    with served(Arm("ar")) as client:
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2000}, "stream": True}
        with client.stream("POST", "/generate", json=body) as response:
            next(response.iter_lines())
        time.sleep(0.3)  # the server learns of it
        gate.open.set()
        start = time.monotonic()
        assert gate.ended.wait(20)
        assert time.monotonic() - start < 1  # 2,000 tokens take longer
        assert len(ask(client, tokens=3)["output_ids"]) == 3


BAD = {
    "no JSON": (b"{", "body: not valid JSON"),
    "no prompt": ({}, "text, input_ids: exactly one of them is accepted"),
    "two prompts": ({"text": "a", "input_ids": [1]}, "text, input_ids: exactly one"),
    "empty prompt": ({"input_ids": []}, "prompt: found no tokens"),
    "foreign token": ({"input_ids": [1, VOCAB]}, f"input_ids: found token id {VOCAB}; accepted are 0 to {VOCAB - 1}"),
    "word for token": ({"input_ids": ["x"]}, "input_ids.0: input should be a valid integer"),
    "cold": ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature: input should be"),
    "nucleus": ({"text": "a", "sampling_params": {"top_p": 0.9}}, "sampling_params: top_p: found 0.9; accepted is 1"),
    "unknown": ({"text": "a", "temprature": 1}, "temprature: unknown key"),
    "endless": ({"text": "a", "sampling_params": {"max_new_tokens": 10**9}}, "max_new_tokens: found 1000000000 after"),
}


@pytest.fixture(scope="module")
def plain():
    with served(Arm("ar")) as client:
        yield client


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_one_line(plain, name):
    body, message = BAD[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = plain.post("/generate", content=content)
    assert reply.status_code == 400
    text = reply.json()["error"]["message"]
    assert text.startswith(message)
    assert "\n" not in text


def test_text_needs_a_tokenizer():
    with served(Arm("ar"), random_stack()) as client:
        reply = client.post("/generate", json={"text": "abc"})
        assert (reply.status_code, ask(client)["text"]) == (400, "")
        assert "no tokenizer" in reply.text


def test_completions_answer_in_openais_form(plain):
    expected = Letters().decode(in_process(Arm("ar")).tokens, True)
    body = {"model": "any", "prompt": "dje", "max_tokens": 40, "temperature": 1.0, "seed": 2}
    reply = plain.post("/v1/completions", json=body).json()
    assert (reply["object"], reply["model"]) == ("text_completion", "any")
    assert reply["choices"][0]["text"] == expected
    assert reply["choices"][0]["finish_reason"] == "length"
    usage = {"prompt_tokens": 3, "completion_tokens": 40, "total_tokens": 43}
    assert reply["usage"] == usage
    parts = streamed(plain, "/v1/completions", **body, stream_options={"include_usage": True})
    assert "".join(part["choices"][0]["text"] for part in parts[:-1]) == expected
    assert (parts[-1]["choices"], parts[-1]["usage"]) == ([], usage)
    assert [part["choices"][0]["finish_reason"] for part in parts[-3:-1]] == [None, "length"]
    refused = plain.post("/v1/completions", json=body | {"n": 2})
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "n: found 2; accepted is 1")


def test_the_server_says_that_it_is_healthy_and_what_it_runs(plain):
    assert plain.get("/health").status_code == plain.get("/health_generate").status_code == 200
    assert plain.get("/get_server_info").json()["speculative_algorithm"] is None
    with served(Arm("ddtree", 9)) as client:
        info = client.get("/get_server_info").json()
    assert info["speculative_algorithm"] == "DFLASH_TFM"
    assert (info["speculative_dflash_tfm_proposal"], info["speculative_dflash_tfm_tree_budget"]) == ("ddtree", 9)
    assert info["speculative_num_draft_tokens"] == 10


def test_small_chunks_are_sent_at_once():
    """asyncio sets TCP_NODELAY on connections of a listener whose protocol is named."""
    with bound_socket(Address("127.0.0.1", 0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP
