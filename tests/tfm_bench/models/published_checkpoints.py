"""Checkpoints with the names, dtypes and files of the published ones, in small: what the tests of loading share."""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file

from tests.tfm_bench.models.published_shapes import (
    GDN_DIM,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KEY_HEADS,
    KV_HEADS,
    MLP,
    PATCH,
    VALUE_HEADS,
    VISION,
    VISION_MLP,
    VOCAB,
)

END_IDS = [7, 5]

TEXT_CONFIG = {
    "model_type": "qwen3_5_text",
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "head_dim": HEAD_DIM,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": GDN_DIM,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "linear_value_head_dim": GDN_DIM,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 4,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "vocab_size": VOCAB,
}
VISION_CONFIG = {
    "model_type": "qwen3_5",
    "depth": 1,
    "hidden_size": VISION,
    "intermediate_size": VISION_MLP,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": HIDDEN,
    "patch_size": PATCH,
}
DENSE_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "max_window_layers": 36,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 3,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}
DRAFTER_CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "model_type": "qwen3",
    "attention_bias": False,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 95, "target_layer_ids": [0, 1, 2]},
    "dtype": "bfloat16",
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "max_window_layers": 5,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 5,
    "num_key_value_heads": KV_HEADS,
    "num_target_layers": 4,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "use_sliding_window": True,
    "vocab_size": VOCAB,
}
WEAVER_CONFIG = {
    "d_model": HIDDEN,
    "d_embed": HIDDEN,
    "d_rank": 32,
    "num_layers": 1,
    "num_heads": 2,
    "mlp_dim": 24,
    "K": 15,
    "candidate_pool_size": 16,
}


def multimodal_config(*, tied):
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": TEXT_CONFIG,
        "tie_word_embeddings": tied,
        "vision_config": VISION_CONFIG,
    }


def random_tensors(shapes, dtype=torch.bfloat16, seed=0):
    """Values at which every part of a model has a say. Gated-DeltaNet decays and norms are fp32, as published."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        wide = "linear_attn.A_log" in name or "linear_attn.norm" in name
        if name.endswith("norm.weight") or "norm_" in name or "layernorm" in name:
            around_one = "linear_attn" in name or "language_model" not in name
            tensors[name] = (1.0 if around_one else 0.0) + 0.2 * noise
        elif len(shape) > 1:
            tensors[name] = 1.5 * noise * noise[0].numel() ** -0.5
        else:
            tensors[name] = noise - 1.0
        tensors[name] = tensors[name].to(torch.float32 if wide else dtype)
    return tensors


def write_sharded(folder, config, tensors, shards=3):
    """A folder as published: config.json, generation_config.json, shards and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors)
    files = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    parts = {file: names[i::shards] for i, file in enumerate(files)}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: file for file, held in parts.items() for name in held},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END_IDS}))
    return folder


def write_drafter(folder, tensors, layer_types, window=None):
    """A drafter as published: one file of weights and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = DRAFTER_CONFIG | {"layer_types": layer_types, "sliding_window": window}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_weaver(folder, tensors, version=1):
    """A Weaver as published: one pickled dict of config and state_dict, nothing else in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    extra = {"activation": "swiglu", "rope_base": 10000.0} if version == 2 else {}
    torch.save({"config": WEAVER_CONFIG | extra, "state_dict": tensors}, folder / "small_weaver.pth")
    return folder
