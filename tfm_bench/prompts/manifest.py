"""What stands beside a file of prepared prompts: where they come from, and the hash that they must still have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from tfm_bench.config_types import Strict
from tfm_bench.errors import UserError
from tfm_bench.prompts.questions import Wording

LONGEST_SHOWN = 80


class Request(Strict):
    """All that decides which prompts a file holds. revision: of the repository; None where `source` is a package."""

    version: int
    dataset: str
    split: Literal["dev", "test"]
    wording: Wording
    source: str
    revision: str | None
    pin: dict[str, Any] | None
    selection_seed: int


class Manifest(Strict):
    """files: sha256 of each source file. prompts: how many there are. prompts_sha256: prompt_set_hash of them."""

    request: Request
    files: dict[str, str]
    prompts: int
    prompts_sha256: str


def manifest_path(prompts: Path) -> Path:
    """`gsm8k.test.jsonl` has its manifest in `gsm8k.test.manifest.json`."""
    return prompts.with_suffix(".manifest.json")


def read_manifest(prompts: Path) -> Manifest | None:
    """The manifest of a file of prompts, None for prompts that somebody wrote by hand. Raises UserError if damaged."""
    path = manifest_path(prompts)
    try:
        return Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, ValidationError):
        raise UserError(f"{path}: found no readable manifest; delete it and {prompts.name}, and rerun") from None


def required_manifest(prompts: Path) -> Manifest:
    """The manifest of prompts that a run prepares. Raises UserError for such as somebody wrote by hand."""
    manifest = read_manifest(prompts)
    if manifest is None:
        raise UserError(f"{prompts}: found prompts without a manifest; delete them to have them prepared")
    return manifest


def check_request(prompts: Path, wanted: Request) -> None:
    """Raises UserError where prompts were prepared for another request, and for such as somebody wrote by hand."""
    made, asked = required_manifest(prompts).request.model_dump(), wanted.model_dump()
    for key in asked:
        if made[key] != asked[key]:
            found, accepted = (str(request[key])[:LONGEST_SHOWN] for request in (made, asked))
            raise UserError(f"{prompts}: was made from {key} {found}, asked for is {accepted}; delete it and rerun")


def check_prompts(prompts: Path, sha256: str) -> None:
    """Raises UserError where a file of prompts has a manifest and the hash of what it holds is another."""
    manifest = read_manifest(prompts)
    if manifest is not None and manifest.prompts_sha256 != sha256:
        wanted = f"its manifest says {manifest.prompts_sha256[:12]}"
        raise UserError(f"{prompts}: found prompts with sha256 {sha256[:12]}, {wanted}; delete both files and rerun")
