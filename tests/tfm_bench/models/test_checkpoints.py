"""Strict loading: what is wrong with a checkpoint is said in one line."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tfm_bench.errors import UserError
from tfm_bench.models.checkpoints import file_sha256, load_pickled, load_strict, read_json


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2, bias=False)})


@pytest.fixture
def folder(tmp_path, module):
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    return tmp_path


def error_of(action):
    with pytest.raises(UserError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_loads_a_folder_or_a_file(folder, module, name):
    assert_same(load_strict(module, folder / name), module.state_dict())


def test_loads_against_a_state_dict_on_meta(folder, module):
    assert_same(load_strict(module.to("meta").state_dict(), folder), load_strict(module, folder))


def test_loads_shards(tmp_path, module):
    state = module.state_dict()
    parts = {
        "model-00001-of-00002.safetensors": ["a.weight"],
        "model-00002-of-00002.safetensors": ["a.bias", "b.weight"],
    }
    for file, names in parts.items():
        save_file({name: state[name] for name in names}, tmp_path / file)
    weight_map = {name: file for file, names in parts.items() for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_same(load_strict(module, tmp_path), state)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors: no such file" in error_of(lambda: load_strict(module, tmp_path))


def test_every_problem_is_listed(folder):
    other = nn.ModuleDict({"a": nn.Linear(4, 2), "c": nn.Linear(2, 2, bias=False)})
    message = error_of(lambda: load_strict(other, folder))
    assert message == (
        f"{folder}: tensor a.weight has shape [2, 3], config.json asks for [2, 4]; tensor c.weight [2, 2] is missing; "
        "tensor b.weight [2, 2] is unexpected; the file and its config.json do not belong together."
    )


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_truncated_file(folder, module, keep):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert f"{file}: damaged or truncated" in error_of(lambda: load_strict(module, folder))


def test_garbage_file(folder, module):
    (folder / "model.safetensors").write_bytes(b"\xff" * 500)
    assert "damaged or truncated" in error_of(lambda: load_strict(module, folder))


@pytest.mark.parametrize("name", ["absent", "absent.safetensors"])
def test_missing_path(tmp_path, module, name):
    assert f"{tmp_path / name}: no such file" in error_of(lambda: load_strict(module, tmp_path / name))


def test_folder_without_weights(tmp_path, module):
    assert "model.safetensors: no such file" in error_of(lambda: load_strict(module, tmp_path))


@pytest.mark.parametrize("text", ["{", "", "[1]", "\x00", "[" * 100_000])
def test_unreadable_json(tmp_path, text):
    file = tmp_path / "config.json"
    file.write_text(text)
    assert str(file) in error_of(lambda: read_json(file))


def test_json_of_undecodable_bytes(tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(b"\xff\xfe\xfa")
    assert "not readable as JSON" in error_of(lambda: read_json(file))


def test_missing_json(tmp_path):
    assert "No such file" in error_of(lambda: read_json(tmp_path / "config.json"))


class Harmful:
    """A pickle of this object would run code when loaded without weights_only."""

    def __reduce__(self):
        return (print, ("executed",))


def test_pickle_is_read_without_running_it(tmp_path, capsys):
    file = tmp_path / "weaver.pth"
    torch.save({"config": {"K": 15}, "state_dict": {"w": torch.ones(2)}}, file)
    assert load_pickled(file)["config"] == {"K": 15}
    torch.save({"state_dict": Harmful()}, file)
    assert "more than tensors" in error_of(lambda: load_pickled(file))
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64])
def test_tensors_of_no_plain_floats_are_refused(folder, module, dtype):
    state = module.state_dict()
    save_file(state | {"b.weight": state["b.weight"].to(dtype)}, folder / "model.safetensors")
    message = error_of(lambda: load_strict(module, folder))
    assert "model.safetensors: tensor b.weight is of " in message
    assert "; accepted are float64, float32, float16, bfloat16." in message


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_tensors_of_plain_floats_are_read(folder, module, dtype):
    state = {name: tensor.to(dtype) for name, tensor in module.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    assert_same(load_strict(module, folder), state)


@pytest.mark.parametrize("read", [read_json, load_pickled, file_sha256, lambda path: load_strict({}, path)])
def test_a_link_that_leads_nowhere_says_what_to_do(tmp_path, read):
    link = tmp_path / "model.safetensors"
    link.symlink_to(tmp_path / "cleaned")
    message = error_of(lambda: read(link))
    assert message.startswith(f"{link}: leads to no file any more (the cache was cleaned")
    assert message.endswith(f"delete {tmp_path} and rerun")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_with_a_wrong_byte_is_damaged_whatever_torch_makes_of_it(tmp_path):
    file = tmp_path / "weaver.pth"
    torch.save({"config": {"K": 15}, "state_dict": {"w": torch.ones(2)}}, file)
    whole = file.read_bytes()
    start = whole.index(b"data.pkl") + len(b"data.pkl")
    damaged = set()
    for place in range(start, start + 200):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            load_pickled(file)
        except UserError as error:
            damaged.add(str(error))
    assert f"{file}: damaged, or holds more than tensors and plain values." in damaged
    assert not any("\n" in message or "\x1b" in message or "torch.load" in message for message in damaged)


@pytest.mark.parametrize("keep", [0, 10, -20])
def test_truncated_pickle(tmp_path, keep):
    file = tmp_path / "weaver.pth"
    torch.save({"state_dict": {"w": torch.ones(2)}}, file)
    file.write_bytes(file.read_bytes()[:keep])
    assert str(file) in error_of(lambda: load_pickled(file))


def test_missing_pickle(tmp_path):
    assert "No such file" in error_of(lambda: load_pickled(tmp_path / "weaver.pth"))


def test_sha256(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(b"abc" * 100)
    assert file_sha256(file) == hashlib.sha256(b"abc" * 100).hexdigest()
    assert "No such file" in error_of(lambda: file_sha256(tmp_path / "absent"))
