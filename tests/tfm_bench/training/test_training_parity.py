"""Training sees what decoding will see: the two are separate code, compared on the same prefixes.

A misfit between them (a path shifted by one, the wrong tap) costs acceptance and breaks nothing, so only this finds it.
Stored features are bf16: they are compared with the target's to that precision, and then feed both sides.
"""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tfm_bench.drafting.best_first import Node
from tfm_bench.drafting.weaver_tree import TorchExpansion, WeaverRuntime
from tfm_bench.models.dflash import DFlashDrafter
from tfm_bench.models.dflash_config import DFlashConfig
from tfm_bench.models.dflash_runtime import DrafterRuntime
from tfm_bench.models.target import Target
from tfm_bench.training.blocks import RegeneratedText
from tfm_bench.training.dflash import BLOCK_SIZE, draft_hidden, drafter_config
from tfm_bench.training.regenerate import regenerated_files, write_features
from tfm_bench.training.weaver import POOL, new_weaver, pool_distributions
from tfm_bench.tree import TokenTree

VOCAB, HIDDEN, MASK_ID = POOL + 40, 48, 1
LENGTHS, PROMPTS = [40, 31, 36], [3, 9, 5]
SEQUENCES = [
    (torch.randint(2, VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist(), prompt)
    for length, prompt in zip(LENGTHS, PROMPTS, strict=True)
]
BF16 = {"rtol": 2**-7, "atol": 1e-3}
FP32 = {"rtol": 1e-4, "atol": 2e-4}


def sharpened(module):
    """Weights large enough that every input matters, and no gradients."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else parameter.data.add_(torch.rand(()))
    return module.requires_grad_(False)


def new_model():
    """Eight layers: the taps are five different ones."""
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=8,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        tie_word_embeddings=False, eos_token_id=5,
    )  # fmt: skip
    return sharpened(Qwen3_5ForCausalLM(config))


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Training's text, batch and models, and decoding's runtimes over the same weights and files."""
    torch.manual_seed(3)
    output = tmp_path_factory.mktemp("stack")
    new_model().save_pretrained(output / "target")
    model = Qwen3_5ForCausalLM.from_pretrained(output / "target", dtype=torch.float32)
    drafter = sharpened(DFlashDrafter(DFlashConfig.from_dict(drafter_config(model, MASK_ID))))
    weaver = sharpened(new_weaver(model))
    sequences_path, features_path = regenerated_files(output)
    write_features(model, SEQUENCES, features_path, lambda line: None)
    sequences_path.write_text(json.dumps(SEQUENCES))
    text = RegeneratedText(output, model, block_size=BLOCK_SIZE)
    taps = drafter.config.target_layer_ids
    target = Target.from_pretrained(output / "target", dtype=torch.float32, tap_layer_ids=taps)
    return SimpleNamespace(
        text=text,
        batch=text.batch("train", rows=2, anchors=4, key=[0]),
        drafter=drafter,
        weaver=weaver,
        target=target,
        drafter_runtime=DrafterRuntime(copy.deepcopy(drafter)),
        weaver_runtime=WeaverRuntime(copy.deepcopy(weaver), target.embedding, target.head.weight, children=POOL),
    )


def blocks(batch):
    """(row, a, ids before the anchor, anchor, labels inside the sequence) of every anchor."""
    for row, ids in enumerate(batch.ids.tolist()):
        tokens = next(tokens for tokens, _ in SEQUENCES if ids[: len(tokens)] == tokens)
        for a, anchor in enumerate(batch.anchors[row].tolist()):
            yield row, a, tokens[:anchor], tokens[anchor], tokens[anchor + 1 :][: BLOCK_SIZE - 1]


def prefilled(target, prefix):
    """A state that holds the prefix, and the target's output for it."""
    state = target.new_state(len(prefix), BLOCK_SIZE)
    return state, target.prefill(state, torch.tensor(prefix))


def drafted(sides, row, prefix, anchor):
    """Drafter hidden [D, H] as a round computes it, its context appended in two pieces."""
    runtime, target = sides.drafter_runtime, sides.target
    context = runtime.new_state(len(prefix))
    features = sides.batch.features[row, : len(prefix)]
    runtime.append(context, features[:2], 0)
    runtime.append(context, features[2:], 2)
    block = torch.tensor([anchor] + [MASK_ID] * (BLOCK_SIZE - 1))
    return runtime.draft(context, target.embed(block), len(prefix))


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, expected, **tolerance)


def test_batch_has_blocks_that_end_early_and_blocks_that_do_not(sides):
    lengths = [len(labels) for *_, labels in blocks(sides.batch)]
    assert sides.batch.valid.sum(-1).flatten().tolist() == lengths
    assert min(lengths) < BLOCK_SIZE - 1 == max(lengths)
    assert len({len(prefix) for _, _, prefix, _, _ in blocks(sides.batch)}) > 4


def test_features_are_those_of_prefill(sides):
    for row, a, prefix, _, _ in blocks(sides.batch):
        output = prefilled(sides.target, prefix)[1]
        close(sides.batch.features[row, : len(prefix)], output.taps, BF16)
        close(sides.batch.target_hidden[row, a], output.hidden[-1], BF16)


def test_draft_hidden_is_that_of_a_round(sides):
    hidden = draft_hidden(sides.drafter, sides.text, sides.batch)
    for row, a, prefix, anchor, _ in blocks(sides.batch):
        close(hidden[row, a], drafted(sides, row, prefix, anchor), FP32)


def test_weaver_distributions_are_those_of_a_tree(sides):
    """Along the labels by node steps; at the root also by the tree that a round would verify."""
    pools, log_q = pools_and(sides, 1)
    for row, a, prefix, anchor, labels in blocks(sides.batch):
        hidden = drafted(sides, row, prefix, anchor)
        inputs = (sides.batch.target_hidden[row, a], hidden, sides.target.lm_head(hidden))
        expand = TorchExpansion(sides.weaver_runtime, *inputs, budget=BLOCK_SIZE)
        for depth, token in enumerate([anchor, *labels[:-1]]):
            (tokens,), (scores,) = expand([Node(depth, token, depth - 1, depth)])
            close(log_q[row, a, depth], in_order(pools[row, a, depth], tokens, scores), FP32)
        tree = sides.weaver_runtime.build(anchor, *inputs, budget=POOL, expansion_width=POOL)
        root = in_order(pools[row, a, 0], tree.tokens[1:].tolist(), tree.edge_logprobs[1:].tolist())
        close(log_q[row, a, 0], root, FP32)


def test_target_distribution_is_that_of_verification(sides):
    pools, p = pools_and(sides, 0)
    for row, a, prefix, anchor, labels in blocks(sides.batch):
        state, _ = prefilled(sides.target, prefix)
        chain = [anchor, *labels[:-1]]
        logits = sides.target.verify(state, TokenTree.chain(chain, [0.0] * len(chain))).logits
        expected = logits.gather(-1, pools[row, a, : len(chain)]).log_softmax(-1)
        close(p[row, a, : len(chain)].log(), expected, {"rtol": 0, "atol": 0.05})


def pools_and(sides, index):
    """Candidates [R, A, D, C] by descending draft logit, and one of `pool_distributions`, both by anchor."""
    rows = sides.batch.anchors.shape
    logits = draft_hidden(sides.drafter, sides.text, sides.batch) @ sides.text.head.T
    distributions = pool_distributions(sides.weaver, sides.drafter, sides.text, sides.batch)
    return logits.topk(POOL, dim=-1).indices, distributions[index].unflatten(0, rows)


def in_order(pool, tokens, scores):
    """scores [C] of `tokens`, in the order of the pool [C]."""
    score_of = dict(zip(tokens, scores, strict=True))
    return torch.tensor([score_of[token] for token in pool.tolist()])
