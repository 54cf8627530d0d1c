"""`tfm-bench serve` over a real socket: the tokens of the engine, SGLang's words, and one request at a time."""

import dataclasses
import json
import socket
import threading
import time
from collections import Counter

import httpx2
import pytest

from tests.tfm_bench.serve.served_stack import PROMPT, STACK, Letters, ask, in_process, served, streamed
from tfm_bench.engine import Arm, generate
from tfm_bench.serve import decoding
from tfm_bench.serve.server import Address, bound_socket

ARMS = [Arm("ar"), Arm("dflash_chain", 7), Arm("ddtree", 9), Arm("tfm", 9, 3)]
each_arm = pytest.mark.parametrize("arm", ARMS, ids=[arm.method for arm in ARMS])


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
        unstopped = ask(client, ignore_eos=True)
    assert reply["output_ids"] == expected
    assert len(expected) < 40
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": tokens[12]}
    assert reply["text"] == Letters().decode(expected[:-1], True)
    assert unstopped["output_ids"] == tokens
    assert unstopped["meta_info"]["finish_reason"] == {"type": "length", "length": 40}


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


def test_a_client_that_leaves_without_its_answer_ends_its_generation_too(gate):
    with served(Arm("ar")) as client:
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2000}}
        with pytest.raises(httpx2.TimeoutException):
            client.post("/generate", json=body, timeout=0.3)
        gate.open.set()
        start = time.monotonic()
        assert gate.ended.wait(20)
        assert time.monotonic() - start < 1
        assert len(ask(client, tokens=3)["output_ids"]) == 3


def test_small_chunks_are_sent_at_once():
    """asyncio sets TCP_NODELAY on connections of a listener whose protocol is named."""
    with bound_socket(Address("127.0.0.1", 0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP
