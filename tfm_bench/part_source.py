"""source.json of a downloaded part: what its files are, and whether they still are that. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from tfm_bench.config_types import Strict
from tfm_bench.errors import UserError
from tfm_bench.stack_config import SOURCE, UNPINNED, PinnedPart

LOST = "leads to no file any more (the cache was cleaned, or the disk of HF_HOME is not there)"


class SourceFile(Strict):
    """bytes: its size; sha256 (hex): of its content; pinned: whether the configuration asked for this hash."""

    bytes: int
    sha256: str
    pinned: bool


class Source(Strict):
    """Repository, commit, and the files by their names in the folder."""

    repo: str
    commit: str
    files: dict[str, SourceFile]


def check_source(folder: Path, part: PinnedPart) -> None:
    """Raises UserError where a folder was downloaded from another repository or commit, or has lost its files."""
    path = folder / SOURCE
    if not path.exists():
        return
    source = _read_source(path)
    if source is None:
        raise UserError(f"{path}: found no readable source; delete {folder} and rerun")
    if source.repo != part.repo or part.revision not in (source.commit, UNPINNED):
        made = f"was made from {source.repo} at {source.commit}"
        raise UserError(f"{folder}: {made}, not from {part.repo} at {part.revision}; delete it and rerun")
    if lost := [name for name in source.files if not (folder / name).exists()]:
        raise UserError(f"{folder / lost[0]}: {LOST}; delete {folder} and rerun")


def recorded_sha256(file: Path) -> str | None:
    """The hash that was taken when a file was downloaded, None where it need not be that of its content any more.

    It is believed of a link to a blob of the hub's cache that is named by this hash and has the size that was recorded:
    to hash 60 GB takes minutes. A file that is no such blob is small, or somebody's own.
    """
    source = _read_source(file.with_name(SOURCE)) if file.is_symlink() and file.is_file() else None
    listed = source.files.get(file.name) if source is not None else None
    if listed is None:
        return None
    # One step: the blob itself may be a link into a store with other names.
    fits = (file.readlink().name, file.stat().st_size) == (listed.sha256, listed.bytes)
    return listed.sha256 if fits else None


def _read_source(path: Path) -> Source | None:
    """None for what is not there and for what no download wrote."""
    try:
        return Source.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # UnicodeDecodeError and ValidationError are ValueErrors
        return None
