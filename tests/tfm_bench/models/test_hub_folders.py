"""What stands where a download is to go, and whether its files are what the hub's cache says that they are."""

from __future__ import annotations

import json
import os

import pytest

from tests.tfm_bench.models.hub_parts import SHARDS, WEAVER, error_of, pin, sha256, target_pin, weaver_pin
from tfm_bench.models import hub

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_what_is_no_folder_is_left_alone(local_hub, tmp_path, kind):
    place = tmp_path / "target"
    if kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path if kind == "link" else tmp_path / "absent")
    assert f"{place}: is a {kind.split()[-1]}; move it out of the way" in error_of(pin(), place)
    assert place.is_symlink() == (kind != "file")
    assert not local_hub.requests


def test_links_of_the_users_own_are_left_alone_and_those_of_a_download_are_not(local_hub, tmp_path):
    folder, own = tmp_path / "target", tmp_path / "fine-tuned.safetensors"
    own.write_bytes(b"mine")
    hub.download(target_pin(), folder)
    (folder / SHARDS[0]).unlink()
    (folder / SHARDS[0]).symlink_to(own)
    assert f"holds {SHARDS[0]}, which no download put there" in error_of(target_pin(), folder)
    assert (folder / SHARDS[0]).readlink() == own
    (folder / SHARDS[0]).unlink()
    hub.download(target_pin(), folder)
    assert (folder / SHARDS[0]).read_bytes() == b"first" * 1000


@pytest.mark.parametrize("shard", ["..", ".", "", "a/b.safetensors", "a\0.safetensors", "a" * 5000, INDEX, 3])
def test_an_index_names_nothing_but_files_beside_it(local_hub, tmp_path, shard):
    local_hub.files["some/target"][INDEX] = json.dumps({"weight_map": {"a": shard}}).encode()
    assert "tensor a stands in" in error_of(target_pin(), tmp_path / "target")


def test_a_damaged_file_is_found_without_a_pinned_hash(local_hub, tmp_path):
    hub.download(weaver_pin(), tmp_path / "weaver")
    (tmp_path / "weaver" / "w.pth").resolve().write_bytes(WEAVER[:-1] + b"?")
    unpinned = pin("some/weaver", files=["folder/w.pth"])
    message = error_of(unpinned, tmp_path / "again")
    assert f"published is {sha256(WEAVER)} for folder/w.pth of some/weaver" in message


def test_a_store_of_blobs_with_other_names_is_looked_through(local_hub, tmp_path):
    """As huggingface_hub keeps what it downloads by Xet: two links, the second to a name that is no sha256."""
    hub.download(weaver_pin(), tmp_path / "weaver")
    blob = (tmp_path / "weaver" / "w.pth").readlink()
    store = tmp_path / "cache" / "blobs" / "ab" / ("ab" * 32)
    store.parent.mkdir(parents=True)
    blob.rename(store)
    blob.symlink_to(os.path.relpath(store, blob.parent))
    hub.download(pin("some/weaver", files=["folder/w.pth"]), tmp_path / "weaver")
    assert (tmp_path / "weaver" / "w.pth").readlink() == blob
    assert (tmp_path / "weaver" / "w.pth").read_bytes() == WEAVER
