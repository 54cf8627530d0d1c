"""Routes beside /generate, and what a client hears when the engine fails."""

import pytest

from tests.tfm_bench.serve.served_stack import STACK, Letters, ask, in_process, served, streamed
from tfm_bench.engine import Arm, generate
from tfm_bench.serve import decoding


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


def test_the_server_says_that_it_is_healthy_and_what_it_runs(plain):
    assert plain.get("/health").status_code == plain.get("/health_generate").status_code == 200
    assert plain.get("/get_server_info").json()["speculative_algorithm"] is None
    with served(Arm("ddtree", 9)) as client:
        info = client.get("/get_server_info").json()
    assert info["speculative_algorithm"] == "DFLASH_TFM"
    assert (info["speculative_dflash_tfm_proposal"], info["speculative_dflash_tfm_tree_budget"]) == ("ddtree", 9)
    assert info["speculative_num_draft_tokens"] == 10


def test_models_and_model_info_have_the_forms_of_openai_and_sglang(plain):
    listed = plain.get("/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"]) == ("random", "model")
    assert model["max_model_len"] == STACK.target.config.max_position_embeddings
    info = plain.get("/model_info").json()
    assert info == plain.get("/get_model_info").json()
    assert info["is_generation"] is True
    assert info["model_path"] == info["tokenizer_path"] == "random/target"
    assert info["served_model_name"] == "random"


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/nothing", 404, "GET /v1/nothing: not found"),
        ("POST", "/v1/chat/completions", 404, "POST /v1/chat/completions: not found; /v1/completions is there"),
        ("GET", "/v1/completions", 405, "GET /v1/completions: method not allowed; accepted are POST"),
    ],
)
def test_other_routes_are_refused_in_json(plain, method, path, status, message):
    reply = plain.request(method, path)
    assert (reply.status_code, reply.json()) == (status, {"error": {"message": message}})


@pytest.fixture
def failing(monkeypatch):
    """An engine that fails, after its second step, for prompts of one token."""

    def failing_generate(stack, ids, *arguments, on_tokens, **options):
        def hand_over(tokens):
            on_tokens(tokens)
            steps.append(tokens)
            if len(ids) == 1 and len(steps) == 2:
                raise RuntimeError("cannot allocate 40 GB\nframe #0: somewhere")

        steps = []
        return generate(stack, ids, *arguments, on_tokens=hand_over, **options)

    monkeypatch.setattr(decoding, "generate", failing_generate)


@pytest.mark.usefixtures("failing")
def test_an_error_of_the_engine_is_one_line_of_json_and_the_server_goes_on(plain):
    for path, body in (("/generate", {"text": "a"}), ("/v1/completions", {"prompt": "a"})):
        reply = plain.post(path, json=body)
        assert (reply.status_code, reply.json()) == (500, {"error": {"message": "cannot allocate 40 GB"}})
        *parts, last = streamed(plain, path, **body)
        assert len(parts) == 2
        assert last == {"error": {"message": "cannot allocate 40 GB", "type": "InternalServerError", "code": 500}}
    assert ask(plain)["output_ids"] == in_process(Arm("ar")).tokens
