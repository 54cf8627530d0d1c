"""A downloaded part is believed as long as it is what was downloaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tfm_bench.errors import UserError
from tfm_bench.measure.cells import checkpoint_sha256
from tfm_bench.part_source import check_source, recorded_sha256
from tfm_bench.stack_config import PinnedPart

WEIGHTS = b"published"
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
FILE = "model.safetensors"
PART = PinnedPart(repo="some/target", revision="a" * 40, files=[FILE])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The target of a stack as a download leaves it."""
    folder = tmp_path / "stack" / "target"
    folder.mkdir(parents=True)
    link(folder, blob(tmp_path, SHA256, WEIGHTS))
    files = {FILE: {"bytes": len(WEIGHTS), "sha256": SHA256, "pinned": True}}
    source = {"repo": PART.repo, "commit": PART.revision, "files": files}
    (folder / "source.json").write_text(json.dumps(source))
    return folder


def blob(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def link(folder: Path, blob: Path, name: str = FILE) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(blob)


def hash_of_stack(*contents: bytes) -> str:
    return hashlib.sha256("".join(hashlib.sha256(content).hexdigest() for content in contents).encode()).hexdigest()


def test_a_blob_is_not_hashed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm_bench.measure.cells.file_sha256", lambda file: pytest.fail(f"{file} was hashed"))
    assert recorded_sha256(folder / FILE) == SHA256
    assert checkpoint_sha256(folder.parent) == hash_of_stack(WEIGHTS)


@pytest.mark.parametrize("name", ["fine-tuned", "b" * 64])
def test_a_link_that_leads_elsewhere_is_hashed(folder: Path, tmp_path: Path, name: str) -> None:
    link(folder, blob(tmp_path, name, b"mine, now"))
    assert recorded_sha256(folder / FILE) is None
    assert checkpoint_sha256(folder.parent) == hash_of_stack(b"mine, now")


def test_a_blob_of_another_size_is_hashed(folder: Path, tmp_path: Path) -> None:
    blob(tmp_path, SHA256, b"cut")
    assert checkpoint_sha256(folder.parent) == hash_of_stack(b"cut")


def test_links_and_files_that_are_not_listed_are_hashed(folder: Path, tmp_path: Path) -> None:
    link(folder, blob(tmp_path, "b" * 64, b"linked"), "w.pth")
    (folder / "x.pth").write_bytes(b"file")
    assert checkpoint_sha256(folder.parent) == hash_of_stack(WEIGHTS, b"linked", b"file")


@pytest.mark.parametrize("text", ["{}", "[", '{"files": {}}', "\ud800".encode("utf-8", "surrogatepass")])
def test_a_source_that_no_download_wrote_says_nothing(folder: Path, text: str | bytes) -> None:
    (folder / "source.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert checkpoint_sha256(folder.parent) == hash_of_stack(WEIGHTS)
    with pytest.raises(UserError, match=f"source.json: found no readable source; delete {folder} and rerun"):
        check_source(folder, PART)


@pytest.mark.parametrize("part", [PART, PART.model_copy(update={"revision": "main"})])
def test_a_part_of_the_pinned_commit_is_accepted(folder: Path, part: PinnedPart) -> None:
    check_source(folder, part)
    check_source(folder.with_name("absent"), part)


@pytest.mark.parametrize("change", [{"repo": "other/target"}, {"revision": "b" * 40}])
def test_a_part_from_elsewhere_is_refused(folder: Path, change: dict[str, str]) -> None:
    part = PART.model_copy(update=change)
    words = f"was made from some/target at {'a' * 40}, not from {part.repo} at {part.revision}; delete it and rerun"
    with pytest.raises(UserError, match=words):
        check_source(folder, part)


def test_a_cleaned_cache_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / SHA256).unlink()
    with pytest.raises(UserError, match=rf"model.safetensors: leads to no file any more \(the .*; delete {folder} and"):
        check_source(folder, PART)
