"""config/datasets.yaml: which commit of each public data set is read. Where nothing is pinned, nothing is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from tfm_bench.config import read_yaml
from tfm_bench.config_types import Count, Strict
from tfm_bench.errors import UserError

Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Quotas = Annotated[dict[str, Count], Field(min_length=1)]


class HubPin(Strict):
    """A commit of a data set on the Hugging Face hub, all 40 hexadecimal digits: branches and tags move."""

    revision: Revision


class ShareChatColumns(Strict):
    """Column names of the messages; position orders the messages of one conversation (platform and url)."""

    platform: str
    url: str
    position: str
    role: str
    text: str
    topic: str
    language: str


class ShareChatQuotas(Strict):
    """Conversations wanted of each topic, named as in the data. Topics that are not listed are not drawn."""

    english: Quotas
    others: Quotas


class ShareChatLanguages(Strict):
    """What the data calls each language."""

    english: str
    japanese: str
    spanish: str
    russian: str
    chinese: str
    french: str


class ShareChatPlatforms(Strict):
    """What the data calls each platform."""

    chatgpt: str
    grok: str
    perplexity: str
    gemini: str
    claude: str


class ShareChatPin(HubPin):
    """Commit and layout of ShareChat, neither of which the method notes give. user: the role of those who ask."""

    files: list[str] = Field(min_length=1)
    columns: ShareChatColumns
    user: str
    platforms: ShareChatPlatforms
    languages: ShareChatLanguages
    topics: ShareChatQuotas


class Pins(Strict):
    """One key for each data set that can come from the hub; None where the user has pinned nothing."""

    gsm8k: HubPin | None = None
    math500: HubPin | None = None
    aime25: HubPin | None = None
    humaneval: HubPin | None = None
    mbpp: HubPin | None = None
    livecodebench: HubPin | None = None
    sharechat: ShareChatPin | None = None


def read_pins(path: Path) -> Pins:
    """The pins in a YAML file. Raises UserError, one line: file, key, what was found and what is accepted."""
    mapping = read_yaml(path)
    try:
        return Pins.model_validate(mapping)
    except ValidationError as error:
        # An unknown key first: where another is missing beside it, it is that one, misspelt.
        problem = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    key = ".".join(map(str, problem["loc"]))
    raise UserError(f"{path}: {key}: {_reason(problem['type'], problem['loc'], problem['input'], problem['msg'])}")


def _reason(kind: str, loc: tuple[int | str, ...], found: object, message: str) -> str:
    """What is wrong with the value at `loc`, of the kind and with the message that pydantic gives."""
    if kind == "missing":
        return "not there, but required"
    if kind == "extra_forbidden":
        return "unknown key; the comments in config/datasets.yaml name those accepted"
    if kind == "model_type" and len(loc) == 1:
        return f"found {found!r}; accepted is a mapping with revision: 40 hexadecimal digits, quoted"
    if kind == "string_type" and loc[-1] == "revision":
        return f"found {found!r}, which YAML does not read as text; quote it: accepted are 40 hexadecimal digits"
    return f"found {found!r}; {message[0].lower()}{message[1:]}"
