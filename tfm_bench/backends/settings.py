"""Configuration of a stack that SGLang serves: pydantic models, checked before the first job starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from tfm_bench.config import DecodingSettings, Method, PromptCounts, require_grid
from tfm_bench.config_types import Budget, Count, Slug, Strict, Temperature
from tfm_bench.errors import UserError
from tfm_bench.part_source import check_source
from tfm_bench.stack_config import SOURCE, Part, PinnedPart, PromptedStack

Seconds = Annotated[float, Field(gt=0)]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
# No shell reads the commands, so a leading ~ is replaced here; unlike Path.expanduser this never raises.
UserPath = Annotated[str, AfterValidator(os.path.expanduser)]
# What the rules that prepare prompts and download Weaver can write into.
PREPARED_PATH = r"checkpoints/[a-z0-9][a-z0-9_-]*"

# The suite sets these itself, from other keys; given twice, the arm would not be what its record says.
OWN_FLAGS = frozenset(
    {
        "--model-path",
        "--model",
        "--revision",
        "--tokenizer-path",
        "--host",
        "--port",
        "--dtype",
        "--incremental-streaming-output",
        "--speculative-algorithm",
        "--speculative-draft-model-path",
        "--speculative-draft-model-revision",
        "--speculative-dflash-block-size",
        "--speculative-num-draft-tokens",
        "--speculative-dflash-tfm-path",
        "--speculative-dflash-tfm-tree-budget",
        "--speculative-dflash-tfm-proposal",
    }
)


class ModelSource(Strict):
    """A folder, or a repository of the hub together with the commit that is pinned."""

    path: UserPath
    revision: Revision | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.revision is None and not Path(self.path).is_dir():
            raise ValueError(f"revision: found none for {self.path}, which is no folder here; a commit is required")
        return self


class ServerStack(PromptedStack):
    """The checkpoints that every arm serves. block_size: rows of the drafter's block, the anchor's included.

    weaver: its file, since servers load no other part from a hub; None where `tfm` is not measured. weaver_source:
    where that is downloaded from, None for a file that stands there already.
    """

    target: ModelSource
    drafter: ModelSource
    weaver: UserPath | None = None
    weaver_source: PinnedPart | None = None
    dtype: Literal["float32", "bfloat16"]
    block_size: Annotated[int, Field(ge=2)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.wording or self.weaver_source) and not re.fullmatch(PREPARED_PATH, self.path):
            raise ValueError(f"path: found {self.path!r}; what a run prepares is put into checkpoints/NAME")
        if self.weaver_source is not None:
            names = [name.rpartition("/")[2] for name in self.weaver_source.files]
            if self.weaver not in (accepted := [f"{self.path}/weaver/{name}" for name in names]):
                raise ValueError(f"weaver: found {self.weaver!r}; downloaded into is {' or '.join(accepted)}")
        return self

    @property
    def parts(self) -> dict[Part, PinnedPart] | None:
        """As of the engine's stacks: what the run downloads into `path`."""
        return None if self.weaver_source is None else {"weaver": self.weaver_source}


class ServerFlags(Strict):
    """Further arguments of the server, one list item each: of all arms, then of each method."""

    common: list[str]
    ar: list[str]
    dflash_chain: list[str]
    ddtree: list[str]
    tfm: list[str]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key, flags in self:
            taken = next((flag for flag in flags if flag.split("=")[0] in OWN_FLAGS), None)
            if taken:
                raise ValueError(f"{key}: found {taken}, which the suite sets itself; any other flag is accepted")
        return self


class SglangSettings(Strict):
    """How servers are started. python: the interpreter of SGLang's own environment (environment-sglang.yml)."""

    python: UserPath
    start_timeout_s: Seconds
    request_timeout_s: Seconds
    flags: ServerFlags


class ServerConfig(Strict):
    """One run of the server arms; config/qwen36-27b-sglang.yaml explains the keys."""

    stack: ServerStack
    sglang: SglangSettings
    datasets: list[Slug] = Field(min_length=1)
    temperatures: list[Temperature] = Field(min_length=1)
    methods: list[Method]
    budgets: list[Budget] = Field(min_length=1)
    prompts: PromptCounts
    max_new_tokens: Annotated[int, Field(ge=2)]
    repeats: Count
    seed: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_grid(dict(self))
        if "tfm" in self.methods and self.stack.weaver is None:
            raise ValueError("stack.weaver: not there, but required where methods has 'tfm'")
        return self


class ServerCellSettings(DecodingSettings):
    """What one measuring process needs: the slice of the configuration that a server cell depends on."""

    stack: ServerStack
    sglang: SglangSettings


def weaver_files(stack: ServerStack) -> list[str]:
    """What says that Weaver is there: of a downloaded one, the file that is written last; none for a stack without.

    Raises UserError where it is neither there nor downloaded, and where it was downloaded from elsewhere.
    """
    if stack.weaver is None:
        return []
    weaver = Path(stack.weaver)
    if stack.weaver_source is not None:
        check_source(weaver.parent, stack.weaver_source)
        return [str(weaver.with_name(SOURCE))]
    if not weaver.is_file():
        raise UserError(f"stack.weaver: {weaver} is not there; a file, or a stack.weaver_source for it, is accepted")
    return [str(weaver)]


def load_server_config(mapping: Mapping[str, Any], *, origin: str = "config") -> ServerConfig:
    """Check a configuration. Raises UserError, one line: origin, key, what was found and what is accepted."""
    try:
        return ServerConfig.model_validate(dict(mapping))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            message = "not there, but required"
        elif problem["type"] == "extra_forbidden":
            message = "unknown key; accepted are the keys of config/qwen36-27b-sglang.yaml"
        elif problem["type"] != "value_error":
            message = f"found {problem['input']!r}; {message[0].lower()}{message[1:]}"
        raise UserError(f"{origin}: {key + ': ' if key else ''}{message}") from None


def server_cell_settings(
    config: ServerConfig, *, split: Literal["dev", "test"], dataset: str, temperature_hundredths: int, repeat: int
) -> ServerCellSettings:
    """The slice of `config` for one cell; temperatures stand in file names as whole hundredths."""
    shared = {"methods", "budgets", "max_new_tokens", "seed"}
    return ServerCellSettings(
        stack=config.stack,
        sglang=config.sglang,
        dataset=dataset,
        split=split,
        temperature=temperature_hundredths / 100,
        repeat=repeat,
        prompts=getattr(config.prompts, split),
        **config.model_dump(include=shared),
    )
