"""Published layouts in small: they load, compute what the library computes, and nothing missing or foreign slips in."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForConditionalGeneration, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    apply_rotary_pos_emb,
)

from tests.tfm_bench.models import published_checkpoints as published
from tests.tfm_bench.models import published_shapes as shapes_of
from tests.tfm_bench.user_errors import error_of
from tfm_bench.models.dflash_config import FULL, SLIDING
from tfm_bench.models.dflash_runtime import DrafterRuntime
from tfm_bench.models.target import Target
from tfm_bench.models.weaver_files import load_weaver

LAYERS, WINDOW = [SLIDING] * 4 + [FULL], 20
TARGETS = {
    "qwen36-27b": (published.multimodal_config(tied=False), shapes_of.multimodal_shapes(tied=False)),
    "qwen35-4b": (published.multimodal_config(tied=True), shapes_of.multimodal_shapes(tied=True)),
    "qwen3-4b": (published.DENSE_CONFIG | {"tie_word_embeddings": True}, shapes_of.dense_shapes(tied=True)),
    "qwen3-8b": (published.DENSE_CONFIG | {"tie_word_embeddings": False}, shapes_of.dense_shapes(tied=False)),
}
UNUSED = ("model.visual.", "mtp.")


def write_target(folder, name, tensors=None):
    config, shapes = TARGETS[name]
    return published.write_sharded(folder, config, tensors or published.random_tensors(shapes))


def load_target(folder, dtype=torch.float32):
    return Target.from_pretrained(folder, dtype=dtype, tap_layer_ids=[0, 2])


@pytest.mark.parametrize("name", TARGETS)
def test_a_published_target_computes_what_the_library_computes(tmp_path, name):
    write_target(tmp_path, name)
    library_class = Qwen3_5ForConditionalGeneration if "vision_config" in TARGETS[name][0] else Qwen3ForCausalLM
    library = library_class.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = torch.randint(0, shapes_of.VOCAB, (20,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = library(tokens[None]).logits[0, -1]
    target = load_target(tmp_path)
    actual = target.prefill(target.new_state(32, 1), tokens).logits[0]
    assert expected.std() > 0.3
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4)
    assert target.stop_ids == tuple(published.END_IDS)


def test_a_target_loads_in_its_own_dtype(tmp_path):
    target = load_target(write_target(tmp_path, "qwen36-27b"), torch.bfloat16)
    assert target.dtype == torch.bfloat16
    stored = {k: v for file in tmp_path.glob("*.safetensors") for k, v in load_file(file).items()}
    assert torch.equal(target.embedding, stored["model.language_model.embed_tokens.weight"])


def test_one_level_of_a_multimodal_config_says_that_the_head_is_tied(tmp_path):
    config = published.multimodal_config(tied=False)
    config["text_config"] = config["text_config"] | {"tie_word_embeddings": True}
    tensors = published.random_tensors(shapes_of.multimodal_shapes(tied=True))
    load_target(published.write_sharded(tmp_path, config, tensors))


def used(name):
    return [tensor for tensor in TARGETS[name][1] if not tensor.startswith(UNUSED)]


@pytest.mark.parametrize(
    ("name", "tensor"), [(name, tensor) for name in ("qwen36-27b", "qwen3-4b") for tensor in used(name)]
)
def test_each_tensor_of_a_target_is_needed_in_its_shape_and_no_other_beside_it(tmp_path, name, tensor):
    shapes = TARGETS[name][1]
    tensors = published.random_tensors(shapes)
    lacking = {key: value for key, value in tensors.items() if key != tensor}
    message = error_of(load_target, write_target(tmp_path / "lacking", name, lacking))
    assert f"tensor {tensor} {list(shapes[tensor])} is missing;" in message
    longer = torch.cat([tensors[tensor], tensors[tensor][:1]])
    message = error_of(load_target, write_target(tmp_path / "longer", name, tensors | {tensor: longer}))
    assert f"tensor {tensor} has shape {list(longer.shape)}, config.json asks for {list(shapes[tensor])};" in message
    message = error_of(load_target, write_target(tmp_path / "beside", name, tensors | {f"{tensor}_scale": longer}))
    assert f"tensor {tensor}_scale {list(longer.shape)} is unexpected;" in message


@pytest.mark.parametrize(
    "tensor", ["visual.proj.weight", "mtp_head.weight", "model.visuals.weight", "model.norm.weight"]
)
def test_only_vision_tower_and_mtp_heads_are_left_out(tmp_path, tensor):
    tensors = published.random_tensors(TARGETS["qwen36-27b"][1])
    message = error_of(load_target, write_target(tmp_path, "qwen36-27b", tensors | {tensor: torch.zeros(2)}))
    assert f"tensor {tensor} [2] is unexpected" in message


def test_text_alone_has_no_parts_to_leave_out(tmp_path):
    tensors = published.random_tensors(TARGETS["qwen3-4b"][1]) | {"mtp.fc.weight": torch.zeros(2)}
    assert "tensor mtp.fc.weight [2] is unexpected" in error_of(
        load_target, write_target(tmp_path, "qwen3-4b", tensors)
    )


def test_an_index_and_its_shards_belong_together(tmp_path):
    folder = write_target(tmp_path, "qwen3-4b")
    index = folder / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    moved = min(values["weight_map"])
    right = values["weight_map"].pop(moved)
    index.write_text(json.dumps(values))
    assert f"tensor {moved} of {right} is not listed" in error_of(load_target, folder)
    wrong = next(file for file in sorted(set(values["weight_map"].values())) if file != right)
    index.write_text(json.dumps({"weight_map": values["weight_map"] | {moved: wrong}}))
    assert f"tensor {moved} is not in {wrong}" in error_of(load_target, folder)
    index.write_text(json.dumps({"weight_map": values["weight_map"] | {moved: "../elsewhere.safetensors"}}))
    assert f"tensor {moved} stands in '../elsewhere.safetensors'; accepted" in error_of(load_target, folder)
    index.write_text(json.dumps({"weight_map": values["weight_map"] | {moved: right}}))
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    assert "holds both" in error_of(load_target, folder)


def naive_draft(tensors, features, block, start, layer_types):
    """The drafter by loops over rows and keys, with the library's norm, MLP and rotary function: [block, H]."""
    heads, kv_heads, dim = shapes_of.HEADS, shapes_of.KV_HEADS, shapes_of.HEAD_DIM

    def norm(name, x):
        module = Qwen3RMSNorm(x.shape[-1], 1e-6)
        module.weight.data = tensors[f"{name}.weight"].float()
        return module(x)

    def linear(name, x):
        return x @ tensors[f"{name}.weight"].float().T

    positions = torch.arange(start + block.shape[0]).float()
    angles = torch.outer(positions, 1e7 ** -(torch.arange(0, dim, 2).float() / dim)).repeat(1, 2)
    cos, sin = angles.cos()[None], angles.sin()[None]
    context, x = norm("hidden_norm", linear("fc", features)), block
    for i, kind in enumerate(layer_types):
        prefix = f"layers.{i}"
        n = norm(f"{prefix}.input_layernorm", x)
        both = torch.cat([context, n])
        q = norm(f"{prefix}.self_attn.q_norm", linear(f"{prefix}.self_attn.q_proj", n).view(-1, heads, dim))
        k = norm(f"{prefix}.self_attn.k_norm", linear(f"{prefix}.self_attn.k_proj", both).view(-1, kv_heads, dim))
        v = linear(f"{prefix}.self_attn.v_proj", both).view(-1, kv_heads, dim)
        # Padded to the length of the keys, for the library turns both with the same rows.
        padded = torch.cat([torch.zeros(start, heads, dim), q])
        q, k = (
            y[0].transpose(0, 1)
            for y in apply_rotary_pos_emb(padded.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
        )
        rows = []
        for row in range(start, start + block.shape[0]):
            causal = kind == SLIDING
            seen = [j for j in range(start + block.shape[0]) if not causal or (j <= row and row - j < WINDOW)]
            out = []
            for head in range(heads):
                group = head // (heads // kv_heads)
                weights = (k[seen, group] @ q[row, head] * dim**-0.5).softmax(0)
                out.append(weights @ v[seen, group])
            rows.append(torch.cat(out))
        x = x + linear(f"{prefix}.self_attn.o_proj", torch.stack(rows))
        mlp = Qwen3MLP(
            SimpleNamespace(hidden_size=shapes_of.HIDDEN, intermediate_size=shapes_of.MLP, hidden_act="silu")
        )
        mlp.load_state_dict({k: tensors[f"{prefix}.mlp.{k}"].float() for k in mlp.state_dict()})
        x = x + mlp(norm(f"{prefix}.post_attention_layernorm", x))
    return norm("norm", x)


@pytest.mark.parametrize("layer_types", [LAYERS, [FULL] * 5], ids=["qwen36-27b", "qwen3-4b"])
@pytest.mark.parametrize("length", [3, WINDOW - 16, WINDOW, 40])
@torch.no_grad()
def test_a_published_drafter_equals_loops(tmp_path, layer_types, length):
    tensors = published.random_tensors(shapes_of.drafter_shapes())
    published.write_drafter(tmp_path, tensors, layer_types, WINDOW if SLIDING in layer_types else None)
    runtime = DrafterRuntime.from_pretrained(tmp_path, dtype=torch.float32)
    generator = torch.Generator().manual_seed(length)
    features = torch.randn(length, 3 * shapes_of.HIDDEN, generator=generator)
    block = torch.randn(16, shapes_of.HIDDEN, generator=generator)
    state = runtime.new_state(64)
    runtime.append(state, features, 0)
    actual = runtime.draft(state, block, length)
    expected = naive_draft(tensors, features, block, length, layer_types)[1:]
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def load_drafter(folder):
    return DrafterRuntime.from_pretrained(folder, dtype=torch.bfloat16)


@pytest.mark.parametrize("tensor", shapes_of.drafter_shapes())
def test_each_tensor_of_a_drafter_is_needed_in_its_shape_and_no_other_beside_it(tmp_path, tensor):
    shapes = shapes_of.drafter_shapes()
    tensors = published.random_tensors(shapes)
    longer = torch.cat([tensors[tensor], tensors[tensor][:1]])
    cases = {
        f"tensor {tensor} {list(shapes[tensor])} is missing;": {k: v for k, v in tensors.items() if k != tensor},
        f"tensor {tensor} has shape {list(longer.shape)}, config.json asks": tensors | {tensor: longer},
        f"tensor {tensor}_scale {list(longer.shape)} is unexpected;": tensors | {f"{tensor}_scale": longer},
    }
    for words, damaged in cases.items():
        assert words in error_of(load_drafter, published.write_drafter(tmp_path, damaged, LAYERS, WINDOW))


WEAVERS = {"v1": (1, False), "v1-fused": (1, True), "v2": (2, False)}


@pytest.mark.parametrize("name", WEAVERS)
def test_a_published_weaver_loads_from_its_file_and_from_its_folder(tmp_path, name):
    version, fused = WEAVERS[name]
    tensors = published.random_tensors(shapes_of.weaver_shapes(version, fused=fused), torch.float32)
    published.write_weaver(tmp_path, tensors, version)
    from_folder, from_file = load_weaver(tmp_path), load_weaver(tmp_path / "small_weaver.pth")
    assert from_folder.config == from_file.config
    assert from_folder.config.version == version
    for weaver in (from_folder, from_file):
        state = weaver.state_dict()
        if fused:
            parts = [state.pop(f"blocks.0.{part}_proj.weight") for part in "qkv"]
            state["blocks.0.qkv_proj.weight"] = torch.cat(parts)
        assert state.keys() == tensors.keys()
        assert all(torch.equal(state[key], tensors[key]) for key in tensors)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [(name, key) for name, (v, fused) in WEAVERS.items() for key in shapes_of.weaver_shapes(v, fused=fused)],
)
def test_each_tensor_of_a_weaver_is_needed_in_its_shape_and_no_other_beside_it(tmp_path, name, tensor):
    version, fused = WEAVERS[name]
    shapes = shapes_of.weaver_shapes(version, fused=fused)
    tensors = published.random_tensors(shapes, torch.float32)
    longer = torch.cat([tensors[tensor]] * 3)  # a fused projection of three times its rows can still be split
    cases = {
        f"tensor {tensor} has shape {list(longer.shape)}, config.json asks": tensors | {tensor: longer},
        f"tensor {tensor}_scale {list(longer.shape)} is unexpected;": tensors | {f"{tensor}_scale": longer},
    }
    for words, damaged in cases.items():
        assert words in error_of(load_weaver, published.write_weaver(tmp_path, damaged, version))
    lacking = {key: value for key, value in tensors.items() if key != tensor}
    message = error_of(load_weaver, published.write_weaver(tmp_path, lacking, version))
    if tensor in ("pos_emb", "blocks.0.gate_up_proj.weight"):  # what tells v1 from v2
        assert f"(tensor {tensor})" in message
    else:  # a fused file without its projection lacks the three that stand for it
        missing = tensor.replace("qkv_proj", "q_proj") if fused else tensor
        assert f"tensor {missing} " in message
        assert "is missing;" in message


def test_a_folder_holds_one_weaver(tmp_path):
    published.write_weaver(tmp_path, published.random_tensors(shapes_of.weaver_shapes(), torch.float32))
    (tmp_path / "other.pth").write_bytes((tmp_path / "small_weaver.pth").read_bytes())
    assert "other.pth and small_weaver.pth; accepted is one Weaver" in error_of(load_weaver, tmp_path)


def test_a_weaver_holds_tensors_alone(tmp_path):
    tensors = published.random_tensors(shapes_of.weaver_shapes(), torch.float32) | {"out_norm.bias": 3}
    published.write_weaver(tmp_path, tensors)
    assert "'out_norm.bias' of type int; accepted are tensors" in error_of(load_weaver, tmp_path)
