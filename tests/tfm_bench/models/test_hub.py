"""Downloads of published checkpoints, against a hub on the loopback interface."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalEntryNotFoundError

from tests.tfm_bench.models.hub_parts import SHARDS, TARGET, WEAVER, error_of, pin, sha256, target_pin, weaver_pin
from tests.tfm_bench.models.local_hub import COMMIT
from tfm_bench.errors import UserError
from tfm_bench.models import hub

ROOT = Path(__file__).parents[3]


def test_an_index_brings_its_shards_and_nothing_else(local_hub, tmp_path):
    folder = tmp_path / "stack" / "target"
    hub.download(target_pin(optional=["chat_template.jinja", "preprocessor_config.json"]), folder)
    names = {"config.json", "model.safetensors.index.json", "preprocessor_config.json", *SHARDS}
    assert {file.name for file in folder.iterdir()} == names | {"source.json"}
    assert all((folder / name).read_bytes() == TARGET[name] for name in names)
    assert sorted(local_hub.downloads()) == sorted(names)


def test_source_says_what_came_from_where(local_hub, tmp_path):
    hub.download(weaver_pin(), tmp_path / "weaver")
    assert json.loads((tmp_path / "weaver" / "source.json").read_text()) == {
        "repo": "some/weaver",
        "commit": COMMIT,
        "files": {"w.pth": {"bytes": len(WEAVER), "sha256": sha256(WEAVER), "pinned": True}},
    }


def test_main_is_recorded_as_the_commit_that_it_was(local_hub, tmp_path):
    hub.download(target_pin(revision="main"), tmp_path / "target")
    source = json.loads((tmp_path / "target" / "source.json").read_text())
    assert source["commit"] == COMMIT
    assert source["files"]["config.json"]["pinned"] is False


def test_what_is_cached_is_fetched_once_and_serves_offline(local_hub, tmp_path, monkeypatch):
    part = target_pin(optional=["chat_template.jinja"])
    hub.download(part, tmp_path / "one")
    seen = len(local_hub.downloads())
    hub.download(part, tmp_path / "one")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.download(part, tmp_path / "two")
    assert len(local_hub.downloads()) == seen
    assert (tmp_path / "two" / "source.json").read_text() == (tmp_path / "one" / "source.json").read_text()


def test_a_broken_connection_goes_on_where_it_broke(local_hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 8000)  # 10 MB for real: more than the file has
    local_hub.broken["folder/w.pth"] = 20_000
    hub.download(weaver_pin(), tmp_path / "weaver")
    assert (tmp_path / "weaver" / "w.pth").read_bytes() == WEAVER
    ranges = [header for method, _, header in local_hub.requests if method == "GET"]
    assert ranges == [None, "bytes=16000-"]


def test_a_failed_download_keeps_the_files_that_are_complete(local_hub, tmp_path):
    second = local_hub.files["some/target"].pop(SHARDS[1])
    assert f"{SHARDS[1]}: no such file in the repository" in error_of(target_pin(), tmp_path / "target")
    assert not (tmp_path / "target").exists()
    local_hub.files["some/target"][SHARDS[1]] = second
    hub.download(target_pin(), tmp_path / "target")
    assert local_hub.downloads().count(SHARDS[0]) == 1


def test_a_wrong_sha256_leaves_nothing_behind(local_hub, tmp_path):
    message = error_of(weaver_pin(b"other"), tmp_path / "weaver")
    assert f"sha256 is {sha256(WEAVER)}, pinned is {sha256(b'other')} for folder/w.pth of some/weaver" in message
    assert "remove it and download again" in message
    assert not (tmp_path / "weaver").exists()


def test_a_damaged_file_in_the_cache_is_found_and_named(local_hub, tmp_path):
    hub.download(weaver_pin(), tmp_path / "weaver")
    blob = (tmp_path / "weaver" / "w.pth").resolve()
    blob.write_bytes(WEAVER[:-1] + b"?")
    assert str(blob) in error_of(weaver_pin(), tmp_path / "again")
    blob.unlink()
    hub.download(weaver_pin(), tmp_path / "again")
    assert (tmp_path / "again" / "w.pth").read_bytes() == WEAVER


def test_a_shard_is_checked_too_and_one_that_is_none_is_refused(local_hub, tmp_path):
    assert f"for {SHARDS[1]}" in error_of(target_pin(sha256={SHARDS[1]: sha256(b"x")}), tmp_path / "target")
    unknown = "model-00009-of-00009.safetensors"
    assert unknown in error_of(target_pin(sha256={unknown: sha256(b"x")}), tmp_path / "target")


def test_a_new_download_replaces_the_old_one_whole(local_hub, tmp_path):
    folder = tmp_path / "target"
    hub.download(target_pin(), folder)
    hub.download(pin(), folder)
    assert {file.name for file in folder.iterdir()} == {"config.json", "source.json"}


def test_weights_put_there_by_hand_are_left_alone(local_hub, tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"mine")
    assert "holds model.safetensors, which no download put there" in error_of(target_pin(), folder)
    assert (folder / "model.safetensors").read_bytes() == b"mine"
    assert not local_hub.requests


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (pin("some/absent"), "some/absent at cccc.*: no such repository, or a private one; check stack.parts"),
        (pin("some/closed"), "licence has to be accepted"),
        (pin(revision="d" * 40), "no such revision; check stack.parts"),
        (pin(files=["absent.json"]), "absent.json: no such file in the repository"),
    ],
    ids=["repository", "gated", "revision", "file"],
)
def test_what_the_hub_refuses_is_one_line_with_a_remedy(local_hub, tmp_path, part, words):
    local_hub.gated.add("some/closed")
    with pytest.raises(UserError, match=words):
        hub.download(part, tmp_path / "part")


def failing(error):
    """A download that ends in an error."""

    def fail(*arguments, **options):
        raise error

    return fail


def refused(reason):
    """What the library raises for a file that is not in the cache where the hub did not give it, for a reason."""
    error = LocalEntryNotFoundError("not in the cache")
    error.__cause__ = reason
    return error


def test_no_network_and_offline_are_told_apart(local_hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message = error_of(pin(), tmp_path / "part")
    assert f"config.json: not in {tmp_path / 'cache'}, and HF_HUB_OFFLINE is set" in message
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "hf_hub_download", failing(refused(HTTPError("connection refused"))))
    assert f"{local_hub.url} cannot be reached; check the network" in error_of(pin(), tmp_path / "part")


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, r"log in \(hf auth login or HF_TOKEN\)"),
        (403, "log in .* as somebody who may read it"),
        (404, "check stack.parts, and HF_ENDPOINT if it is set"),
        (429, "too many requests: wait some minutes"),
        (503, "try again later"),
    ],
)
def test_a_hub_that_refuses_is_not_taken_for_one_that_is_not_there(local_hub, tmp_path, monkeypatch, status, remedy):
    answer = SimpleNamespace(status_code=status, headers={}, request=None)
    monkeypatch.setattr(hub, "hf_hub_download", failing(refused(HfHubHTTPError("no", response=answer))))
    with pytest.raises(UserError, match=rf"{local_hub.url} answered with status {status}; {remedy}"):
        hub.download(pin(), tmp_path / "part")


def test_a_refusal_comes_through_the_library_as_it_is(local_hub, tmp_path):
    local_hub.status = 403
    assert "answered with status 403" in error_of(pin(), tmp_path / "part")


def test_an_optional_file_that_may_exist_is_missed_offline(local_hub, tmp_path, monkeypatch):
    hub.download(pin(), tmp_path / "part")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "chat_template.jinja: not in" in error_of(pin(optional=["chat_template.jinja"]), tmp_path / "more")


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left in .*cache.*HF_HOME"),
        (RuntimeError("Data processing error: IO Error: No space left on device (os error 28)"), "no space left"),
        (RuntimeError("xet: connection reset\nbacktrace"), r"the download failed \(xet: connection reset\)"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), r"the download failed \(.*Permission denied"),
    ],
    ids=["disk-full", "disk-full-xet", "xet", "permission"],
)
def test_what_fails_on_this_side_is_one_line(local_hub, tmp_path, monkeypatch, failure, words):
    monkeypatch.setattr(hub, "hf_hub_download", failing(failure))
    with pytest.raises(UserError, match=words) as caught:
        hub.download(pin(), tmp_path / "part")
    assert "\n" not in str(caught.value)


def test_the_environment_decides_on_cache_and_network(local_hub, tmp_path):
    script = (
        "import sys; from pathlib import Path; from tfm_bench.errors import UserError\n"
        "from tfm_bench.models.hub import download; from tfm_bench.stack_config import PinnedPart\n"
        "try: download(PinnedPart.model_validate_json(sys.argv[1]), Path(sys.argv[2]))\n"
        "except UserError as error: sys.exit(str(error))\n"
    )

    def run(folder, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        environment |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": local_hub.url, **variables}
        command = [sys.executable, "-c", script, weaver_pin().model_dump_json(), str(folder)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    home = str(tmp_path / "home")
    assert run(tmp_path / "one", HF_HOME=home).returncode == 0
    assert (tmp_path / "one" / "w.pth").resolve().is_relative_to(home)
    assert run(tmp_path / "two", HF_HOME=home, HF_HUB_OFFLINE="1").returncode == 0
    empty = run(tmp_path / "three", HF_HOME=str(tmp_path / "other"), HF_HUB_OFFLINE="1")
    assert empty.returncode == 1
    assert "HF_HUB_OFFLINE is set" in empty.stderr
