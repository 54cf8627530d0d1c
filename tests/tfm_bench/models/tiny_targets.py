"""Random models of a few layers, the library's forward over them, and trees: what the target's tests share."""

from __future__ import annotations

import copy
from functools import cache

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from tfm_bench.models.target import Target
from tfm_bench.tree import TokenTree

VOCAB = 97
KINDS = ("hybrid4", "hybrid8", "dense")
TAPS = {"hybrid4": [0, 3], "hybrid8": [1, 4, 7], "dense": [0, 2]}


@cache
def library_model(kind):
    """A random model whose logits depend strongly on every part of the context."""
    torch.manual_seed(3)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "tie_word_embeddings": kind != "hybrid4",
        "eos_token_id": [5, 7],
    }
    if kind == "dense":
        model = Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=3, **sizes))
    else:
        layers = int(kind.removeprefix("hybrid"))
        heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        dims = {"linear_key_head_dim": 16, "linear_value_head_dim": 24}
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(num_hidden_layers=layers, **heads, **dims, **sizes))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 0.1 if kind != "dense" and "linear_attn" not in name else 1.0, 0.2)
        elif parameter.ndim > 1:
            torch.nn.init.normal_(parameter, 0.0, 1.5 * parameter[0].numel() ** -0.5)
        else:
            torch.nn.init.normal_(parameter, -1.0, 1.0)
    return model.eval().requires_grad_(False)


@cache
def make_target(kind, **options):
    return Target(copy.deepcopy(library_model(kind)), tap_layer_ids=TAPS[kind], **options)


def library_forward(kind, tokens):
    """Logits [T, V] and residual streams after each layer, read by hooks: hidden_states would norm the last one."""
    model, streams = library_model(kind), []
    hooks = [layer.register_forward_hook(lambda *args: streams.append(args[-1])) for layer in model.model.layers]
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, [stream[0] for stream in streams]


def expected_taps(kind, streams):
    return torch.cat([streams[i] for i in TAPS[kind]], dim=-1)


def close(actual, expected, tolerance=2e-4):
    """Largest difference in units of the expected root mean square: residual streams are tens, logits ones."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance * expected.square().mean().sqrt()


def random_tokens(count, seed=0):
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def random_tree(anchor, nodes, seed, width=None):
    """Random shape; siblings may repeat a token, which verification does not mind."""
    generator = torch.Generator().manual_seed(seed)
    parents = [-1, *(int(torch.randint(max(0, i - 5), i, (), generator=generator)) for i in range(1, nodes))]
    tokens = [anchor, *random_tokens(nodes - 1, seed).tolist()]
    return TokenTree.from_lists(tokens, parents, [0.0] * nodes, width or nodes)


def chain_tree(tokens):
    return TokenTree.from_lists(tokens, list(range(-1, len(tokens) - 1)), [0.0] * len(tokens), len(tokens))
