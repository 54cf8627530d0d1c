"""The HTTP routes of an SGLang server over our engine: what its clients can be tested and measured against."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tfm_bench.engine import Arm, Stack
from tfm_bench.errors import UserError
from tfm_bench.serve import completions
from tfm_bench.serve.bodies import CompletionBody, GenerateBody, Job, completion_job, generate_job, one_line
from tfm_bench.serve.decoding import Decoder, EngineError
from tfm_bench.serve.failures import failed, failure_event, no_route, refused
from tfm_bench.serve.meta import Progress, draft_count, finish_reason, model_info, models, server_info, speculation

DONE = "[DONE]"
EVENT_STREAM = "text/event-stream"

Model = TypeVar("Model", bound=BaseModel)


def create_app(stack: Stack, arm: Arm) -> Starlette:
    """A server of `stack` by one method. Bad input is answered with status 400 and one line that says what is wrong.

    An error of the engine is answered with status 500 and its first line, and the server goes on.
    """
    server = _Server(Decoder(stack, arm))
    return Starlette(
        routes=[
            Route("/generate", server.generate, methods=["POST", "PUT"]),
            Route("/v1/completions", server.completions, methods=["POST"]),
            Route("/health", server.health),
            Route("/health_generate", server.health_generate),
            Route("/flush_cache", server.flush_cache, methods=["GET", "POST"]),
            Route("/get_server_info", server.info),
            Route("/server_info", server.info),
            Route("/get_model_info", server.model),
            Route("/model_info", server.model),
            Route("/v1/models", server.models),
        ],
        exception_handlers={UserError: refused, HTTPException: no_route, EngineError: failed},
    )


class _Server:
    """The endpoints of one decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.drafts = draft_count(decoder.stack, decoder.arm)
        self.started = int(time.time())

    async def generate(self, request: Request) -> Response:
        """SGLang's own route; chunks of a stream repeat all that came before, and a list is answered with a list."""
        body = await _body(request, GenerateBody)
        replies = self._replies(generate_job(body, self.decoder.stack))
        if body.stream:
            chunks = _indexed(replies) if body.in_list else replies
            return StreamingResponse(_events(chunks), media_type=EVENT_STREAM)
        reply = await _last(request, replies)
        return JSONResponse([reply] if body.in_list else reply)

    async def completions(self, request: Request) -> Response:
        """OpenAI's route; chunks of a stream hold what is new."""
        body = await _body(request, CompletionBody)
        replies = self._replies(completion_job(body, self.decoder.stack))
        model = body.model or self.decoder.stack.directory.name
        if body.stream:
            chunks = completions.chunks(replies, model, body.stream_options.include_usage)
            return StreamingResponse(_events(chunks), media_type=EVENT_STREAM)
        return JSONResponse(completions.completion(await _last(request, replies), model))

    async def health(self, _: Request) -> Response:
        """The stack is loaded before the server listens."""
        return Response(status_code=200)

    async def health_generate(self, _: Request) -> Response:
        """Decodes one token, unless a request is being decoded: that is proof enough."""
        if not self.decoder.busy:
            async for _step in self.decoder.steps(Job([0], 0.0, 0, 1)):
                pass
        return Response(status_code=200)

    async def flush_cache(self, _: Request) -> Response:
        """No prefix is kept between requests, so there is nothing to flush; refused while one is decoded, as there."""
        if self.decoder.busy:
            return PlainTextResponse("A request is running; the cache was not flushed.\n", status_code=400)
        return PlainTextResponse("Cache flushed.\n")

    async def info(self, _: Request) -> Response:
        """The settings of the server."""
        return JSONResponse(server_info(self.decoder.stack, self.decoder.arm))

    async def model(self, _: Request) -> Response:
        """The target; SGLang's own clients wait for it."""
        return JSONResponse(model_info(self.decoder.stack))

    async def models(self, _: Request) -> Response:
        """OpenAI's list of models."""
        return JSONResponse(models(self.decoder.stack, self.started))

    async def _replies(self, job: Job) -> AsyncGenerator[dict[str, Any]]:
        """A reply after every round, each with the whole text so far; the last one has a finish_reason."""
        start, name, progress = time.perf_counter(), uuid.uuid4().hex, Progress()
        async for step in self.decoder.steps(job):
            progress.steps.append(step)
            yield self._reply(name, job, progress, time.perf_counter() - start)

    def _reply(self, name: str, job: Job, progress: Progress, seconds: float) -> dict[str, Any]:
        tokens, stack = progress.tokens, self.decoder.stack
        reason = finish_reason(tokens, job.stop_ids, job.max_new_tokens)
        meta = {
            "id": name,
            "finish_reason": reason,
            "prompt_tokens": len(job.ids),
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
            **speculation(progress, self.drafts),
            **({"e2e_latency": seconds} if reason else {}),
        }
        # As in SGLang the text ends before the stop id, be it a special token or not.
        shown = tokens[:-1] if reason and reason["type"] == "stop" else tokens
        text = stack.tokenizer.decode(shown, skip_special_tokens=job.skip_special_tokens) if stack.tokenizer else ""
        return {"text": text, "output_ids": tokens, "meta_info": meta}


async def _last(request: Request, replies: AsyncGenerator[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer. Where the client has gone, decoding ends with the round, and nobody reads what is returned."""
    reply: dict[str, Any] = {}
    async with aclosing(replies):
        async for reply in replies:  # noqa: B007
            if await request.is_disconnected():
                break
    return reply


async def _body(request: Request, model: type[Model]) -> Model:
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        raise UserError(one_line(error)) from None


async def _indexed(replies: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """Chunks that say which prompt of the list they belong to."""
    async for reply in replies:
        yield reply | {"index": 0}


async def _events(replies: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    try:
        async for reply in replies:
            yield _event(reply)
    except Exception as error:
        yield _event(failure_event(error))
    yield f"data: {DONE}\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
