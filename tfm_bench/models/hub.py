"""Published checkpoints from the Hugging Face hub: one part of a stack, at one commit, checked by sha256.

huggingface_hub keeps its own cache under HF_HOME: a file that stands there whole is never fetched again, a connection
that breaks is taken up at the last whole chunk, a download that is killed loses the file that was under way and no
other, and HF_HUB_OFFLINE means that the cache has to do.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

from huggingface_hub import _CACHED_NO_EXIST, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tfm_bench.errors import UserError
from tfm_bench.models.checkpoints import file_sha256, shard_names
from tfm_bench.part_source import Source, SourceFile
from tfm_bench.stack_config import SHARD_INDEX, SOURCE, PinnedPart

# RuntimeError is what the Xet client raises, whatever went wrong.
DOWNLOAD_ERRORS = (OSError, HTTPError, EntryNotFoundError, HFValidationError, RuntimeError, ValueError)

LOG_IN = "log in (hf auth login or HF_TOKEN)"
SHA256 = re.compile(r"[0-9a-f]{64}")
# How the cache names its blobs (sha256, or git's hash of a small file) and the folders of its repositories.
CACHE_PART = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}|models--.+")

RepoType = Literal["model", "dataset"]


class FetchedFile(NamedTuple):
    """A file of a repository: its name there, its blob in the cache, and the sha256 of its content."""

    name: str
    path: Path
    sha256: str


def download(part: PinnedPart, folder: Path) -> None:
    """Fill `folder` with links to the files of a part in the cache, and `source.json`, which says what they are.

    All or nothing: the folder appears, or is replaced, once every file is there and every hash fits. Raises UserError
    for whatever stands in the way, and for a folder that holds files of its own or is none.
    """
    if folder.is_symlink() or folder.is_file():
        raise UserError(f"{folder}: is a {'link' if folder.is_symlink() else 'file'}; move it out of the way")
    if own := _own_files(folder):
        raise UserError(f"{folder}: holds {', '.join(own)}, which no download put there; move it out of the way")
    commit, files = fetch(part)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in files:
        (partial / Path(file.name).name).symlink_to(file.path)
    (partial / SOURCE).write_text(_source(part, commit, files), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def fetch(part: PinnedPart) -> tuple[str, list[FetchedFile]]:
    """The commit, and every file of a part in the cache of huggingface_hub, downloaded where it is not there yet.

    An index brings its shards along. Raises UserError, one line with what to do: no network, offline and not cached,
    no such repository, revision or file, gated, disk full, or a file whose sha256 is not the pinned or published one.
    """
    first, *others = part.files
    path = _downloaded(part, first, part.revision)
    commit = path.parents[first.count("/")].name  # .../snapshots/<commit>/<name>
    found = {first: path} | {name: _downloaded(part, name, commit) for name in others}
    if SHARD_INDEX in found:
        found |= {name: _downloaded(part, name, commit) for name in shard_names(found[SHARD_INDEX])}
    if unused := sorted(part.sha256.keys() - found.keys()):
        raise UserError(f"{part.repo} at {commit}: sha256 is pinned for {', '.join(unused)}, which is no shard of it")
    for name in part.optional:
        if (optional := _downloaded_if_there(part, name, commit)) is not None:
            found[name] = optional
    blobs = {name: _blob(path) for name, path in found.items()}
    return commit, [FetchedFile(name, blob, _checked_sha256(part, name, blob)) for name, blob in blobs.items()]


def download_file(repo: str, name: str, revision: str, *, repo_type: RepoType, key: str) -> Path:
    """A file of a repository in the cache of huggingface_hub, downloaded where it is not there yet.

    Raises UserError, one line with what to do; key: where the configuration names repository and revision.
    """
    try:
        return Path(hf_hub_download(repo, name, revision=revision, repo_type=repo_type))
    except DOWNLOAD_ERRORS as error:
        raise UserError(f"{repo} at {revision}: {name}: {_reason(error, key)}") from error


def _downloaded(part: PinnedPart, name: str, revision: str) -> Path:
    return download_file(part.repo, name, revision, repo_type="model", key="stack.parts")


def _downloaded_if_there(part: PinnedPart, name: str, revision: str) -> Path | None:
    """None for a file that the repository does not have, also where the cache alone says so."""
    if try_to_load_from_cache(part.repo, name, revision=revision) is _CACHED_NO_EXIST:
        return None
    try:
        return _downloaded(part, name, revision)
    except UserError as error:
        cause = error.__cause__
        if isinstance(cause, EntryNotFoundError) and not isinstance(cause, LocalEntryNotFoundError):
            return None
        raise


def _blob(path: Path) -> Path:
    """What a file of a snapshot in the cache is a link to, one step: there its name is the hash of its content.

    That again may be a link, into a store that all repositories share and whose names are no sha256.
    """
    return Path(os.path.abspath(path.parent / path.readlink())) if path.is_symlink() else path.absolute()


def _checked_sha256(part: PinnedPart, name: str, blob: Path) -> str:
    found, pinned = file_sha256(blob), part.sha256.get(name)
    published = blob.name if SHA256.fullmatch(blob.name) else found
    for word, accepted in (("pinned", pinned or found), ("published", published)):
        if found != accepted:
            raise UserError(
                f"{blob.resolve()}: sha256 is {found}, {word} is {accepted} for {name} of {part.repo}; the file is "
                "damaged or not the published one: remove it and download again"
            )
    return found


def _reason(error: Exception, key: str) -> str:
    """What went wrong and what to do about it, in one line."""
    text = str(error)
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text:
        return f"no space left in {constants.HF_HUB_CACHE}; free some, or set HF_HOME to a larger disk"
    if isinstance(error, GatedRepoError):
        return f"its licence has to be accepted on the page of the repository; then {LOG_IN}"
    if isinstance(error, RepositoryNotFoundError):
        return f"no such repository, or a private one; check {key}, or {LOG_IN}"
    if isinstance(error, RevisionNotFoundError):
        return f"no such revision; check {key}"
    # A hub that refuses is reported as a file that the cache does not have, because of the refusal.
    refusal = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
    if isinstance(refusal, HfHubHTTPError) and not isinstance(refusal, EntryNotFoundError):
        return f"{constants.ENDPOINT} answered with status {_status_reason(refusal.response.status_code, key)}"
    if isinstance(error, LocalEntryNotFoundError):
        return _offline_reason()
    if isinstance(error, EntryNotFoundError):
        return f"no such file in the repository; check {key}"
    line = (text.strip().splitlines() or [type(error).__name__])[0]
    return f"the download failed ({line}); run it again, what is complete is kept"


def _status_reason(status: int, key: str) -> str:
    remedies = {
        401: LOG_IN,
        403: f"{LOG_IN} as somebody who may read it, or ask a proxy in between to let it through",
        404: f"check {key}, and HF_ENDPOINT if it is set",
        429: f"too many requests: wait some minutes, or {LOG_IN}, which allows more",
    }
    return f"{status}; {remedies.get(status, 'try again later')}"


def _offline_reason() -> str:
    cache = constants.HF_HUB_CACHE
    if constants.is_offline_mode():
        return f"not in {cache}, and HF_HUB_OFFLINE is set; unset it, or copy the cache of a machine that has the file"
    return f"not in {cache}, and {constants.ENDPOINT} cannot be reached; check the network, or copy a filled cache"


def _own_files(folder: Path) -> list[str]:
    """What a folder holds beside SOURCE and links into a cache: what was put there by hand is not to be removed."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.name != SOURCE and not _leads_to_cache(entry))


def _leads_to_cache(entry: Path) -> bool:
    return entry.is_symlink() and any(map(CACHE_PART.fullmatch, entry.readlink().parts))


def _source(part: PinnedPart, commit: str, files: list[FetchedFile]) -> str:
    listed = {
        Path(name).name: SourceFile(bytes=path.stat().st_size, sha256=sha256, pinned=name in part.sha256)
        for name, path, sha256 in files
    }
    return Source(repo=part.repo, commit=commit, files=listed).model_dump_json(indent=2) + "\n"
