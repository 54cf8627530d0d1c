"""What clients may send to the server, in SGLang's form and in OpenAI's, and the one request that both become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tfm_bench.engine import Stack
from tfm_bench.errors import UserError

# Values at which a parameter changes nothing. Any other one is refused: sampling is from the whole distribution.
NEUTRAL: dict[str, Any] = {
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_new_tokens": 0,
    "n": 1,
    "best_of": 1,
    "ignore_eos": False,
    "echo": False,
    "return_logprob": False,
}
UNUSED = frozenset({"rid", "log_metrics", "user", "skip_special_tokens", "spaces_between_special_tokens"})
TokenCount = Annotated[int, Field(ge=1)]
Temperature = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Body(BaseModel):
    """Beside its own keys a body may hold neutral values and what has no effect on tokens."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _only_neutral_extras(self) -> Self:
        for key, value in (self.model_extra or {}).items():
            if value is None or key in UNUSED:
                continue
            if key not in NEUTRAL:
                raise ValueError(f"{key}: unknown key")
            if value != NEUTRAL[key]:
                raise ValueError(f"{key}: found {value!r}; accepted is {NEUTRAL[key]!r}")
        return self


class SamplingParams(Body):
    """The sampling_params of /generate, with SGLang's defaults."""

    temperature: Temperature = 1.0
    max_new_tokens: TokenCount = 128
    sampling_seed: Seed | None = None


class GenerateBody(Body):
    """/generate."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("text, input_ids: exactly one of them is accepted")
        return self


class StreamOptions(Body):
    """Of /v1/completions."""

    include_usage: bool = False


class CompletionBody(Body):
    """/v1/completions, with OpenAI's defaults."""

    prompt: str | list[int]
    model: str | None = None
    max_tokens: TokenCount = 16
    temperature: Temperature = 1.0
    seed: Seed | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


@dataclass(frozen=True)
class Job:
    """One prompt to decode."""

    ids: list[int]
    temperature: float
    seed: int
    max_new_tokens: int


def generate_job(body: GenerateBody, stack: Stack) -> Job:
    """Raises UserError for a prompt that the stack cannot decode."""
    sampling = body.sampling_params
    ids = _token_ids(stack, body.text if body.text is not None else body.input_ids or [])
    return _checked(stack, Job(ids, sampling.temperature, sampling.sampling_seed or 0, sampling.max_new_tokens))


def completion_job(body: CompletionBody, stack: Stack) -> Job:
    """Raises UserError for a prompt that the stack cannot decode."""
    return _checked(stack, Job(_token_ids(stack, body.prompt), body.temperature, body.seed or 0, body.max_tokens))


def one_line(error: ValidationError) -> str:
    """The first problem: key, what is wrong, what was found."""
    problem = error.errors()[0]
    message = problem["msg"].removeprefix("Value error, ")
    key = ".".join(str(part) for part in problem["loc"])
    if not key:
        return message
    found = "" if problem["type"] in ("missing", "value_error") else f" (found {str(problem['input'])[:80]!r})"
    return f"{key}: {message[0].lower()}{message[1:]}{found}"


def _token_ids(stack: Stack, prompt: str | list[int]) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    if stack.tokenizer is None:
        raise UserError(f"text: stack {stack.directory.name} has no tokenizer; input_ids are accepted")
    return list(stack.tokenizer.encode(prompt))


def _checked(stack: Stack, job: Job) -> Job:
    if not job.ids:
        raise UserError("prompt: found no tokens; accepted is one or more")
    vocabulary = stack.target.vocab_size
    wrong = next((token for token in job.ids if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise UserError(f"input_ids: found token id {wrong}; accepted are 0 to {vocabulary - 1}")
    longest, asked = stack.target.config.max_position_embeddings, len(job.ids) + job.max_new_tokens
    if asked > longest:
        raise UserError(
            f"max_new_tokens: found {job.max_new_tokens} after {len(job.ids)} prompt tokens; "
            f"accepted are {longest} tokens in all"
        )
    return job
