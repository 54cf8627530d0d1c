"""What an SGLang server answers, checked: whatever it sends, it is an answer in SGLang's form or a ServerError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from tfm_bench.backends.process import in_one_line
from tfm_bench.errors import UserError

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tally = Annotated[int, Field(ge=0)]
_OBJECT = TypeAdapter(dict[str, Any])


class ServerError(UserError):
    """A server that does not start, stops or answers what it must not. The message is one line."""


class FinishReason(BaseModel):
    """Why a generation ended: "stop" at a stop id, "length" at max_new_tokens; "abort" is no answer."""

    type: str


class MetaInfo(BaseModel):
    """What we read of SGLang's meta_info. Plain decoding has no spec_* entries."""

    completion_tokens: Tally
    prompt_tokens: Tally
    finish_reason: FinishReason
    spec_verify_ct: Tally | None = None
    spec_correct_drafts_histogram: list[Tally] | None = None


class _Chunk(BaseModel):
    output_ids: list[TokenId]
    meta_info: MetaInfo


@dataclass(frozen=True)
class Reply:
    """One generation. Seconds since the request was sent: to the first token, and to the end of the answer."""

    output_ids: list[int]
    meta: MetaInfo
    first_token_s: float
    total_s: float


def read_info(content: bytes) -> dict[str, Any]:
    """The answer of /get_server_info."""
    try:
        return _OBJECT.validate_json(content)
    except ValidationError as error:
        raise ServerError(f"/get_server_info: found no JSON object ({_problem(error)})") from None


def read_reply(payload: str, first_token_s: float, total_s: float) -> Reply:
    """The generation that the last chunk of a stream completes."""
    try:
        found = _OBJECT.validate_json(payload)
        if "error" in found:
            raise ServerError(f"the server gave up ({in_one_line(str(found['error']))})")
        chunk = _Chunk.model_validate(found)
    except ValidationError as error:
        raise ServerError(f"the last chunk of an answer is not in SGLang's form ({_problem(error)})") from None
    ids, meta = chunk.output_ids, chunk.meta_info
    if meta.finish_reason.type == "abort":
        raise ServerError("the server aborted the request")
    if not ids or len(ids) != meta.completion_tokens:
        count = meta.completion_tokens
        raise ServerError(f"found {len(ids)} output_ids for {count} completion_tokens; all are expected")
    return Reply(ids, meta, first_token_s, total_s)


def _problem(error: ValidationError) -> str:
    problem = error.errors(include_input=False)[0]
    key = ".".join(map(str, problem["loc"]))
    return in_one_line(f"{key + ': ' if key else ''}{problem['msg']}")
