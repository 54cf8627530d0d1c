"""The section `stack` of the configuration: which checkpoints, and where they come from. Imports nothing heavy."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from tfm_bench.config_types import Count, Slug, Strict
from tfm_bench.errors import UserError
from tfm_bench.prompts.questions import Wording
from tfm_bench.prompts.templates import ChatFormat

Part = Literal["target", "drafter", "weaver"]
STACK_PARTS: tuple[Part, ...] = get_args(Part)
STATE_STORING = ("level_recurrent", "node_recurrent")

# In the folder of a downloaded part: its repository, commit and hashes. Written last.
SOURCE = "source.json"

# A repository that the design knows no commit of is fetched at `main`; what `main` was is recorded with the files.
UNPINNED = "main"
SHARD_INDEX = "model.safetensors.index.json"

Repo = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
Revision = Annotated[str, Field(pattern=rf"^([0-9a-f]{{40}}|{UNPINNED})$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Relative, and no component starts with a dot: nothing here can name a file outside the repository.
RepoFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)*$")]


class PinnedPart(Strict):
    """One part of a stack as published: a repository of the Hugging Face hub at one commit, and the files it needs.

    An index among the files stands for itself and for every shard that it names. optional: fetched where the
    repository has them. sha256 (hex, of the content) is checked for the files that have one, shards too.
    """

    repo: Repo
    revision: Revision
    files: list[RepoFile] = Field(min_length=1)
    optional: list[RepoFile] = Field(default=[])
    sha256: dict[RepoFile, Sha256] = Field(default={})

    @model_validator(mode="after")
    def _check(self) -> Self:
        # The files of a part stand side by side in one folder, whatever folders the repository has.
        names = Counter(name.rpartition("/")[2] for name in [*self.files, *self.optional])
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"files: found {', '.join(twice)} twice; each file name is accepted once")
        sharded = SHARD_INDEX in self.files
        for name in self.sha256:
            if name not in self.files and not (sharded and name.endswith(".safetensors")):
                raise ValueError(f"sha256: found {name!r}; accepted are {', '.join(self.files)}")
        return self


class PromptedStack(Strict):
    """What every stack says of its prompts, which stand in `path`/prompts.

    wording: in whose words the public data sets are prepared there; None for a stack that comes with its prompts.
    reasoning, chat_format: how a chat prompt is rendered, see tfm_bench.prompts.templates.
    """

    name: Slug
    path: str
    wording: Wording | None = None
    reasoning: bool = False
    chat_format: ChatFormat = "template"


class StackConfig(PromptedStack):
    """Which checkpoints decode, and along which of the equivalent paths.

    parts: published checkpoints that the run downloads into `path`; None for a stack that stands there already.
    gdn_verify: None for a target without Gated-DeltaNet layers.
    """

    parts: dict[Part, PinnedPart] | None = None
    dtype: Literal["float32", "bfloat16"]
    device: Literal["auto", "cpu", "cuda"] = "auto"
    graphs: bool = True
    gdn_verify: Literal["fused", "level_recurrent", "node_recurrent", "path_recurrent"] | None
    commit: Literal["replay", "fold", "select"]
    threads: Count

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.commit == "select" and self.gdn_verify not in STATE_STORING:
            raise ValueError(f"commit: 'select' needs a gdn_verify that stores states: {' or '.join(STATE_STORING)}")
        if self.parts is not None:
            if missing := [part for part in STACK_PARTS[:2] if part not in self.parts]:
                raise ValueError(f"parts: {' and '.join(missing)} not there; every stack has a target and a drafter")
            if self.path != f"checkpoints/{self.name}":
                raise ValueError(f"path: found {self.path!r}; parts are downloaded into checkpoints/{self.name}")
        return self

    @property
    def has_weaver(self) -> bool:
        """Whether `tfm` can be decoded."""
        return self.parts is None or "weaver" in self.parts


def pinned_part(stack: StackConfig, part: str) -> PinnedPart:
    """Where a part of the stack is downloaded from. Raises UserError for a stack without this part."""
    parts = stack.parts or {}
    for name, pin in parts.items():
        if name == part:
            return pin
    raise UserError(f"stack.parts: {stack.name} downloads no {part}; its parts are {', '.join(parts) or 'none'}")
