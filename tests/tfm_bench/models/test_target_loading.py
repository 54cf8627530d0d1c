"""A target from a checkpoint folder: strict, local, one-line errors."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tests.tfm_bench import user_errors
from tfm_bench.errors import UserError
from tfm_bench.models.target import Target
from tfm_bench.models.target_loading import is_hybrid, text_config


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        tie_word_embeddings=True,
    )
    model = Qwen3_5ForCausalLM(config)
    model.generation_config.eos_token_id = [4, 9]
    model.save_pretrained(tmp_path)
    return tmp_path


def load(folder):
    return Target.from_pretrained(folder, dtype=torch.float32, tap_layer_ids=[0, 2])


error_of = partial(user_errors.error_of, load)


def rewrite(folder, change):
    """Apply `change` to the tensors of the folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_loads_what_transformers_saved(folder):
    target = load(folder)
    library = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.arange(12)
    with torch.no_grad():
        expected = library(tokens[None]).logits[0, -1]
    actual = target.prefill(target.new_state(16, 1), tokens).logits[0]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert target.stop_ids == (4, 9)


def test_loads_in_bfloat16(folder):
    target = Target.from_pretrained(folder, dtype=torch.bfloat16, tap_layer_ids=[0])
    assert target.dtype == torch.bfloat16


def test_missing_tensor(folder):
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.linear_attn.A_log"))
    assert "tensor model.layers.1.linear_attn.A_log [2] is missing; the file and its config.json" in error_of(folder)


def test_unexpected_tensor(folder):
    rewrite(folder, lambda tensors: tensors.update(extra=torch.zeros(2)))
    assert "tensor extra [2] is unexpected" in error_of(folder)


def test_wrong_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    message = error_of(folder)
    assert "tensor model.layers.0.mlp.gate_proj.weight has shape [40, 32], config.json asks for [48, 32]" in message


def test_truncated_file(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "damaged or truncated" in error_of(folder)


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "model.safetensors: no such file" in error_of(folder)


def test_missing_folder(tmp_path):
    assert "No such file" in error_of(tmp_path / "absent")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("head_dim", "64"),
        ("hidden_size", -1),
        ("vocab_size", 0),
        ("vocab_size", True),
        ("num_hidden_layers", 10**12),
        ("intermediate_size", 10**30),
        ("linear_key_head_dim", 0),
        ("num_key_value_heads", []),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", "small"),
        ("rope_parameters", "plain"),
        ("rope_theta", {"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}),
        ("tie_word_embeddings", "yes"),
        ("layer_types", ["full_attention"]),
        ("layer_types", 3),
        ("pad_token_id", {}),
        ("hidden_act", None),
    ],
)
def test_a_key_without_sense_is_named(folder, key, value):
    config = json.loads((folder / "config.json").read_text())
    change = value if key == "rope_theta" else {key: value}
    (folder / "config.json").write_text(json.dumps(config | change))
    assert key in error_of(folder)
    with pytest.raises(UserError, match=key):
        is_hybrid(text_config(folder))


def test_what_torch_makes_of_a_key_is_one_line(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 10**12}))
    assert "transformers cannot build a model from it" in error_of(folder)


@pytest.mark.parametrize("text", ["{", json.dumps({"model_type": "no_such_model"}), json.dumps({"hidden_size": 3})])
def test_bad_config(folder, text):
    (folder / "config.json").write_text(text)
    error_of(folder)
