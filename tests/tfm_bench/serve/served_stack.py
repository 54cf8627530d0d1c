"""A random stack behind a real socket, and a client to ask it."""

import dataclasses
import json
import threading
import time
from contextlib import contextmanager

import httpx2
import uvicorn

from tests.tfm_bench.tiny_stack import random_stack
from tfm_bench.engine import generate
from tfm_bench.serve.app import create_app
from tfm_bench.serve.server import Address, bound_socket

PROMPT = [3, 9, 4]


class Letters:
    """Token 0 is a, and so on; special tokens are in capitals."""

    def __init__(self, special=()):
        self.special = special

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens, skip_special_tokens):
        return "".join(self._letter(token) for token in tokens if not (skip_special_tokens and token in self.special))

    def _letter(self, token):
        return chr(ord("A" if token in self.special else "a") + token)


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


def ask(client, temperature=1.0, tokens=40, **sampling):
    """The reply of /generate to PROMPT."""
    sampling = {"temperature": temperature, "sampling_seed": 2, "max_new_tokens": tokens} | sampling
    reply = client.post("/generate", json={"input_ids": PROMPT, "sampling_params": sampling})
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
