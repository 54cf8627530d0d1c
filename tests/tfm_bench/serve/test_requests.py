"""What a request may hold: neutral values, null, prompts in a list; and one line against everything else."""

import dataclasses
import json

import pytest

from tests.tfm_bench.serve.served_stack import PROMPT, STACK, Letters, ask, in_process, served, streamed
from tests.tfm_bench.tiny_stack import VOCAB, random_stack
from tfm_bench.engine import Arm

TOKENS = in_process(Arm("ar")).tokens
COMPLETION = {"prompt": "dje", "max_tokens": 40, "temperature": 1.0, "seed": 2}

BAD = {
    "no JSON": (b"{", "body: invalid JSON: EOF while parsing"),
    "no prompt": ({}, "text, input_ids: exactly one of them is accepted"),
    "two prompts": ({"text": "a", "input_ids": [1]}, "text, input_ids: exactly one"),
    "empty prompt": ({"input_ids": []}, "prompt: found no tokens"),
    "foreign token": ({"input_ids": [1, VOCAB]}, f"input_ids: found token id {VOCAB}; accepted are 0 to {VOCAB - 1}"),
    "word for token": ({"input_ids": [1, "x"]}, "input_ids.1: input should be a valid integer"),
    "two texts": ({"text": ["a", "b"]}, "text: found 2 prompts; one prompt per request is accepted"),
    "two lists": ({"input_ids": [[1], [2]]}, "input_ids: found 2 prompts; one prompt per request is accepted"),
    "no object": ([1], "body: input should be an object (found '[1]')"),
    "no sampling object": (
        {"text": "a", "sampling_params": 3},
        "sampling_params: input should be an object (found '3')",
    ),
    "half a character": (b'{"text": "\\ud800"}', "body: invalid JSON: "),
    "half a character in a key": (b'{"text": "a", "\\ud800": 1}', "body: invalid JSON: "),
    "cold": ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature: input should be"),
    "nucleus": ({"text": "a", "sampling_params": {"top_p": 0.9}}, "sampling_params: top_p: found 0.9, not supported"),
    "unknown": ({"text": "a", "temprature": 1}, "temprature: unknown key"),
    "endless": ({"text": "a", "sampling_params": {"max_new_tokens": 10**9}}, "max_new_tokens: found 1000000000 after"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_one_line(plain, name):
    body, message = BAD[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = plain.post("/generate", content=content)
    assert reply.status_code == 400
    text = reply.json()["error"]["message"]
    assert text.startswith(message)
    assert "\n" not in text


BAD_COMPLETIONS = {
    "no prompt": ({}, "prompt: field required"),
    "null": ({"prompt": None}, "prompt: field required"),
    "number": ({"prompt": 5}, "prompt: found '5'; accepted is a string or a list of token ids"),
    "mixed": ({"prompt": [1, "a"]}, "prompt: found \"[1, 'a']\"; accepted is a string or a list of token ids"),
    "several": ({"prompt": ["a", "b"]}, "prompt: found 2 prompts; one prompt per request is accepted"),
    "options": ({"prompt": "a", "stream_options": 1}, "stream_options: input should be an object (found '1')"),
    "two answers": ({"prompt": "a", "n": 2}, "n: found 2, not supported here; leave it out or send 1"),
}


@pytest.mark.parametrize("name", BAD_COMPLETIONS)
def test_bad_completions_are_refused_with_one_line(plain, name):
    body, message = BAD_COMPLETIONS[name]
    reply = plain.post("/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, message)


NEUTRAL = {
    "stop": [],
    "stop_token_ids": [],
    "logprobs": None,
    "top_logprobs": 0,
    "logit_bias": {},
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "return_text_in_logprobs": False,
    "no_stop_trim": False,
    "suffix": "",
    "best_of": 1,
    "response_format": {"type": "text"},
    "regex": "",
    "json_schema": None,
    "ebnf": None,
    "ignore_eos": False,
}
ASKING = {
    "stop": ["x"],
    "stop_token_ids": [3],
    "logprobs": 0,
    "logit_bias": {"3": 5},
    "top_logprobs_num": 2,
    "no_stop_trim": True,
    "suffix": "x",
    "best_of": 2,
    "response_format": {"type": "json_object"},
    "regex": "a*",
}


def test_documented_parameters_are_accepted_where_they_change_nothing(plain):
    assert ask(plain, **NEUTRAL)["output_ids"] == TOKENS
    reply = plain.post("/v1/completions", json=COMPLETION | NEUTRAL)
    assert reply.json()["choices"][0]["text"] == Letters().decode(TOKENS, True)


@pytest.mark.parametrize("key", ASKING)
def test_what_is_not_done_here_is_refused_by_name(plain, key):
    body = COMPLETION | {key: ASKING[key]}
    reply = plain.post("/v1/completions", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(
        f"{key}: found {ASKING[key]!r}, not supported here; leave it out"
    )


def test_null_means_the_default(plain):
    nothing = dict.fromkeys(["max_tokens", "temperature", "seed", "stream", "stream_options", "model", "n"])
    reply = plain.post("/v1/completions", json={"prompt": "dje"} | nothing).json()
    assert reply["usage"]["completion_tokens"] == 16
    asked = {"input_ids": PROMPT, "text": None, "sampling_params": None}
    assert plain.post("/generate", json=asked).json()["meta_info"]["completion_tokens"] == 128


def test_a_list_of_one_prompt_is_that_prompt_and_generate_answers_with_a_list(plain):
    sampling = {"sampling_seed": 2, "max_new_tokens": 40}
    for prompt in ({"text": ["dje"]}, {"input_ids": [PROMPT]}):
        (reply,) = plain.post("/generate", json=prompt | {"sampling_params": sampling}).json()
        assert reply["output_ids"] == TOKENS
        parts = streamed(plain, "/generate", **prompt, sampling_params=sampling)
        assert {part["index"] for part in parts} == {0}
        assert parts[-1]["output_ids"] == TOKENS
    for prompt in (["dje"], [PROMPT], PROMPT):
        reply = plain.post("/v1/completions", json=COMPLETION | {"prompt": prompt}).json()
        assert reply["choices"][0]["text"] == Letters().decode(TOKENS, True)


def test_special_tokens_stand_in_the_text_where_they_are_asked_for():
    letters = Letters(special={TOKENS[5]})
    with served(Arm("ar"), dataclasses.replace(STACK, tokenizer=letters)) as client:
        for skip in (True, False):
            expected = letters.decode(TOKENS, skip)
            assert ask(client, skip_special_tokens=skip)["text"] == expected
            reply = client.post("/v1/completions", json=COMPLETION | {"skip_special_tokens": skip}).json()
            assert reply["choices"][0]["text"] == expected
    assert letters.decode(TOKENS, True) != letters.decode(TOKENS, False)


def test_completions_go_on_beyond_a_stop_id_where_they_are_asked_to():
    with served(Arm("ddtree", 9), dataclasses.replace(STACK, stop_ids=frozenset({TOKENS[12]}))) as client:
        stopped, unstopped = (
            client.post("/v1/completions", json=COMPLETION | {"ignore_eos": ignored}).json()["choices"][0]
            for ignored in (False, True)
        )
    assert stopped["finish_reason"] == "stop"
    assert (unstopped["finish_reason"], unstopped["text"]) == ("length", Letters().decode(TOKENS, True))


def test_text_needs_a_tokenizer():
    with served(Arm("ar"), random_stack()) as client:
        reply = client.post("/generate", json={"text": "abc"})
        assert (reply.status_code, ask(client)["text"]) == (400, "")
        assert "no tokenizer" in reply.text
