"""What clients may send to the server, in SGLang's form and in OpenAI's, and the one request that both become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from tfm_bench.engine import Stack
from tfm_bench.errors import UserError
from tfm_bench.serve.parameters import require_neutral

TokenCount = Annotated[int, Field(ge=1)]
Temperature = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _is_list_of_prompts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], str | list)


def _only_prompt(value: Any) -> Any:
    """The prompt itself where it stands in a list of its own."""
    if not _is_list_of_prompts(value):
        return value
    if len(value) > 1:
        raise ValueError(f"found {len(value)} prompts; one prompt per request is accepted")
    return value[0]


def _text_or_ids(value: Any) -> Any:
    """Of a union pydantic would report what is wrong with each of its types."""
    if isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value)):
        return value
    raise ValueError(f"found {str(value)[:80]!r}; accepted is a string or a list of token ids")


class Body(BaseModel):
    """Beside its own keys a body may hold neutral values and what has no effect on tokens; null means the default."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _only_neutral_extras(self) -> Self:
        require_neutral(self.model_extra or {})
        return self


class Sampling(Body):
    """What both routes know by the same names."""

    temperature: Temperature = 1.0
    ignore_eos: bool = False
    skip_special_tokens: bool = True


class SamplingParams(Sampling):
    """The sampling_params of /generate, with SGLang's defaults."""

    max_new_tokens: TokenCount = 128
    sampling_seed: Seed | None = None


class GenerateBody(Body):
    """/generate."""

    text: Annotated[str | None, BeforeValidator(_only_prompt)] = None
    input_ids: Annotated[list[int] | None, BeforeValidator(_only_prompt)] = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    _in_list: bool = PrivateAttr(default=False)

    @property
    def in_list(self) -> bool:
        """Whether the prompt came in a list, so that the reply goes out in one."""
        return self._in_list

    @model_validator(mode="wrap")
    @classmethod
    def _remember_list(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        body = validate(data)
        body._in_list = any(_is_list_of_prompts(data.get(key)) for key in ("text", "input_ids"))
        return body

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("text, input_ids: exactly one of them is accepted")
        return self


class StreamOptions(Body):
    """Of /v1/completions."""

    include_usage: bool = False


class CompletionBody(Sampling):
    """/v1/completions, with OpenAI's defaults."""

    prompt: Annotated[str | list[int], BeforeValidator(lambda value: _text_or_ids(_only_prompt(value)))]
    model: str | None = None
    max_tokens: TokenCount = 16
    seed: Seed | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


@dataclass(frozen=True)
class Job:
    """One prompt to decode. stop_ids: those of the stack, or none; skip_special_tokens: in the text of the answer."""

    ids: list[int]
    temperature: float
    seed: int
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    skip_special_tokens: bool = True


def generate_job(body: GenerateBody, stack: Stack) -> Job:
    """Raises UserError for a prompt that the stack cannot decode."""
    sampling = body.sampling_params
    prompt = body.text if body.text is not None else body.input_ids or []
    return _job(stack, prompt, sampling, sampling.sampling_seed, sampling.max_new_tokens)


def completion_job(body: CompletionBody, stack: Stack) -> Job:
    """Raises UserError for a prompt that the stack cannot decode."""
    return _job(stack, body.prompt, body, body.seed, body.max_tokens)


def _job(stack: Stack, prompt: str | list[int], sampling: Sampling, seed: int | None, max_new_tokens: int) -> Job:
    job = Job(
        ids=_token_ids(stack, prompt),
        temperature=sampling.temperature,
        seed=seed or 0,
        max_new_tokens=max_new_tokens,
        stop_ids=frozenset() if sampling.ignore_eos else stack.stop_ids,
        skip_special_tokens=sampling.skip_special_tokens,
    )
    return _checked(stack, job)


def one_line(error: ValidationError) -> str:
    """The first problem: key, what is wrong, what was found."""
    problem = error.errors()[0]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "model_type":  # pydantic names the class
        message = "input should be an object"
    key = ".".join(str(part) for part in problem["loc"])
    if not key and problem["type"] == "value_error":
        return message
    found = (
        ""
        if problem["type"] in ("missing", "value_error", "json_invalid")
        else f" (found {str(problem['input'])[:80]!r})"
    )
    return f"{key or 'body'}: {message[0].lower()}{message[1:]}{found}"


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
