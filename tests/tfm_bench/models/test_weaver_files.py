"""Weaver checkpoints: both forms on disk round-trip, and whatever does not fit is one line that names it."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tfm_bench.errors import UserError
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig
from tfm_bench.models.weaver_files import load_weaver

SMALL = WeaverConfig(
    d_model=24, d_embed=20, d_rank=16, num_layers=1, num_heads=2, mlp_dim=12, K=6, candidate_pool_size=8
)


def random_weaver(version: int = 1, layers: int = 1, seed: int = 0) -> Weaver:
    torch.manual_seed(seed)
    weaver = Weaver(replace(SMALL, num_layers=layers, activation="swiglu" if version == 2 else None))
    for parameter in weaver.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return weaver.requires_grad_(False)


def write_folder(weaver: Weaver, folder) -> None:
    folder.mkdir(exist_ok=True)
    save_file(weaver.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(weaver.config.to_dict()))


def same_tensors(weaver: Weaver, other: Weaver) -> bool:
    mine, theirs = weaver.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("version", [1, 2])
def test_folder_round_trip(tmp_path, version):
    weaver = random_weaver(version, layers=2)
    write_folder(weaver, tmp_path / "weaver")
    loaded = load_weaver(tmp_path / "weaver")
    assert loaded.config == weaver.config
    assert same_tensors(loaded, weaver)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_published_pth(tmp_path, fused):
    weaver = random_weaver(layers=2)
    state = dict(weaver.state_dict())
    if fused:
        for layer in range(2):
            parts = [state.pop(f"blocks.{layer}.{name}_proj.weight") for name in "qkv"]
            state[f"blocks.{layer}.qkv_proj.weight"] = torch.cat(parts)
    config = {key: value for key, value in weaver.config.to_dict().items() if key not in ("encoder_mode", "score_head")}
    torch.save({"config": config, "state_dict": state, "metadata": {"speculator_kind": "x"}}, tmp_path / "w.pth")
    loaded = load_weaver(tmp_path / "w.pth", dtype=torch.bfloat16)
    assert same_tensors(loaded, weaver.to(torch.bfloat16))


def test_version_comes_from_the_keys(tmp_path):
    weaver = random_weaver(version=2)
    config = {key: value for key, value in weaver.config.to_dict().items() if key != "activation"}
    torch.save({"config": config, "state_dict": weaver.state_dict()}, tmp_path / "w.pth")
    assert load_weaver(tmp_path / "w.pth").config.version == 2


def drop(state):
    del state["pos_emb"], state["out_norm.bias"]


def rename(state):
    state["surplus.weight"] = state["out_norm.bias"].clone()


def reshape(state):
    state["token_in.bias"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda state: state.pop("out_norm.bias"), ["out_norm.bias [16] is missing"]),
        (rename, ["surplus.weight [16] is unexpected"]),
        (reshape, ["token_in.bias has shape [3]", "[16]"]),
        (drop, ["no Weaver", "pos_emb"]),
    ],
)
def test_damaged_tensors_are_listed(tmp_path, damage, words):
    write_folder(random_weaver(), tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    damage(state)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError) as caught:
        load_weaver(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in [str(tmp_path / "model.safetensors"), *words])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"d_rank": None}, ["lacks", "d_rank"]),
        ({"colour": 3}, ["unknown", "colour"]),
        ({"encoder_mode": 1}, ["encoder_mode", "1"]),
        ({"score_head": 2}, ["score_head", "2"]),
        ({"activation": "relu"}, ["activation", "relu"]),
        ({"num_heads": 3}, ["num_heads 3"]),
        ({"K": "15"}, ["K", "'15'"]),
    ],
)
def test_config_errors_name_the_key(change, words):
    values = {key: value for key, value in (SMALL.to_dict() | change).items() if value is not None}
    with pytest.raises(UserError) as caught:
        WeaverConfig.from_dict(values, "some/config.json")
    assert all(word in str(caught.value) for word in ["some/config.json", *words])


@pytest.mark.parametrize("content", [b"not a checkpoint", b""])
@pytest.mark.parametrize("name", ["w.pth", "weaver/model.safetensors"])
def test_unreadable_files(tmp_path, content, name):
    write_folder(random_weaver(), tmp_path / "weaver")
    (tmp_path / name).write_bytes(content)
    path = tmp_path / "weaver" if "/" in name else tmp_path / name
    with pytest.raises(UserError, match="damaged") as caught:
        load_weaver(path)
    assert "\n" not in str(caught.value)


def test_missing_files_and_foreign_pth(tmp_path):
    with pytest.raises(UserError, match="absent"):
        load_weaver(tmp_path / "absent.pth")
    torch.save({"weights": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="config and state_dict"):
        load_weaver(tmp_path / "w.pth")
    write_folder(random_weaver(), tmp_path / "weaver")
    (tmp_path / "weaver" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: no such file"):
        load_weaver(tmp_path / "weaver")


def test_shards_round_trip(tmp_path):
    weaver = random_weaver(layers=2)
    state, names = weaver.state_dict(), sorted(weaver.state_dict())
    weight_map = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: state[name] for name in names if weight_map[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps(weaver.config.to_dict()))
    assert same_tensors(load_weaver(tmp_path), weaver)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({1: 2}, "config key 1 is int"),
        ({"d_model": True}, "config key d_model is True"),
        ({"d_rank": 10**12}, "config key d_rank is 1000000000000"),
        ({"num_layers": 10**12}, "config key num_layers is 1000000000000"),
        ({"rope_base": "x"}, "config key rope_base is 'x'"),
        ({"rope_base": 0}, "config key rope_base is 0"),
        ({"rope_base": float("nan")}, "config key rope_base is nan"),
    ],
)
def test_config_values_of_a_wrong_kind_name_the_key(tmp_path, change, words):
    weaver = random_weaver()
    torch.save({"config": weaver.config.to_dict() | change, "state_dict": weaver.state_dict()}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=rf"w\.pth: {words}"):
        load_weaver(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensor: tensor.int(), "is of int32; accepted are float64"),
        (lambda tensor: tensor.to_sparse(), "is sparse"),
        (lambda tensor: tensor.to("meta"), "is sparse or without values"),
    ],
)
def test_tensors_of_a_wrong_kind_are_named(tmp_path, change, words):
    weaver = random_weaver()
    state = weaver.state_dict() | {"pos_emb": change(weaver.state_dict()["pos_emb"])}
    torch.save({"config": weaver.config.to_dict(), "state_dict": state}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=rf"w\.pth: tensor pos_emb {words}"):
        load_weaver(tmp_path / "w.pth")


def test_a_stack_without_a_weaver_says_so(tmp_path):
    with pytest.raises(UserError, match=r"weaver: not there, so that the stack has no Weaver"):
        load_weaver(tmp_path / "weaver")
    (tmp_path / "w.pth").symlink_to(tmp_path / "cleaned")
    for path in (tmp_path, tmp_path / "w.pth"):
        with pytest.raises(UserError, match=r"w\.pth: leads to no file any more"):
            load_weaver(path)


def test_damaged_pth_is_listed_too(tmp_path):
    weaver = random_weaver()
    state = {key: value for key, value in weaver.state_dict().items() if key != "token_in.bias"}
    torch.save({"config": weaver.config.to_dict(), "state_dict": state}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"w\.pth: tensor token_in\.bias \[16\] is missing"):
        load_weaver(tmp_path / "w.pth")
    torch.save({"config": weaver.config.to_dict() | {"activation": "swiglu"}, "state_dict": state}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="swiglu"):
        load_weaver(tmp_path / "w.pth")
