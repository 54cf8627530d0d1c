"""A whole chain decode on a dense target against transformers' own DFlash generation: same tokens, same rounds."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig
from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import MuseGlimmerAssistantModel

from tests.tfm_bench.models.tiny_drafters import make_config
from tfm_bench.drafting.chain import build_chain
from tfm_bench.models.dflash import DFlashDrafter, block_masks, block_positions
from tfm_bench.models.dflash_config import FULL
from tfm_bench.models.dflash_runtime import DrafterRuntime
from tfm_bench.models.target import Target
from tfm_bench.verification.sample_match import KeyedNoise, accept

VOCAB, PROMPT, NEW_TOKENS, BLOCK, TAPS = 31, 6, 60, 6, (0, 2)
CONFIG = make_config((FULL, FULL), block_size=BLOCK, mask_token_id=1, target_layer_ids=TAPS)


@pytest.fixture(scope="module")
def library_target():
    torch.manual_seed(5)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    config = Qwen3Config(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=4, **heads)
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, 0.0, 1.5 * parameter.shape[-1] ** -0.5)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def text(library_target):
    """The target's own greedy continuation."""
    return library_generate(library_target, torch.arange(PROMPT))


@pytest.fixture(scope="module")
def drafter(library_target, text):
    """Fitted a little to that one text, so that rounds of many lengths occur."""
    torch.manual_seed(1)
    model = DFlashDrafter(CONFIG)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    states = library_target(text[None], output_hidden_states=True).hidden_states
    features = torch.cat([states[i + 1] for i in TAPS], dim=-1)
    context = torch.arange(len(text))[None]
    for _ in range(60):
        anchors = torch.randint(1, len(text) - BLOCK, (1, 8))
        positions = block_positions(anchors, BLOCK)
        blocks = torch.full((1, 8, BLOCK), CONFIG.mask_token_id)
        blocks[:, :, 0] = text[anchors]
        embeddings = library_target.model.embed_tokens(blocks.flatten(1))
        hidden = model(features, embeddings, context, positions, block_masks(anchors, len(text), CONFIG))
        drafted = hidden.unflatten(1, (8, BLOCK))[:, :, 1:].flatten(0, 2)
        labels = text[positions].unflatten(1, (8, BLOCK))[:, :, 1:].flatten()
        optimizer.zero_grad()
        cross_entropy(library_target.lm_head(drafted), labels).backward()
        optimizer.step()
    return model.requires_grad_(False)


def library_generate(model, prompt, **options):
    """[prompt and continuation], greedy."""
    options |= {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    return model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]), **options)[0]


def own_chain(model, drafter, prompt):
    """Tokens and lengths of the sequence before each round."""
    target = Target(copy.deepcopy(model), tap_layer_ids=TAPS)
    runtime = DrafterRuntime(copy.deepcopy(drafter))
    room = len(prompt) + NEW_TOKENS + BLOCK
    state, context = target.new_state(room, BLOCK), runtime.new_state(room)
    output = target.prefill(state, prompt)
    runtime.append(context, output.taps, 0)
    tokens, starts = [int(output.logits[0].argmax())], []
    while len(tokens) < NEW_TOKENS:
        start = state.length
        starts.append(start)
        block = torch.tensor([tokens[-1]] + [CONFIG.mask_token_id] * (BLOCK - 1))
        draft = target.lm_head(runtime.draft(context, target.embed(block), start))
        tree = build_chain(tokens[-1], draft, BLOCK - 1)
        output = target.verify(state, tree)
        accepted = accept(tree, output.logits, temperature=0.0, noise=KeyedNoise(0), start=start)
        target.commit(state, accepted.path)
        runtime.append(context, output.taps[accepted.path], start)
        tokens += [*tree.tokens[accepted.path[1:]].tolist(), accepted.bonus]
    return tokens[:NEW_TOKENS], starts


def library_chain(model, drafter, prompt, monkeypatch):
    """The same from transformers: its generator is asked once per round, with the sequence that ends in the anchor."""
    sizes = {k: v for k, v in dataclasses.asdict(CONFIG).items() if k not in ("rope_theta", "is_causal")}
    sizes |= {"rope_parameters": {"rope_type": "default", "rope_theta": CONFIG.rope_theta}}
    sizes |= {"layer_types": [FULL, FULL], "target_layer_ids": list(TAPS)}
    assistant = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**sizes)).eval()
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    assistant.load_state_dict({renamed.get(name, name): tensor for name, tensor in drafter.state_dict().items()})
    starts, original = [], DFlashTokenCandidateGenerator.get_candidates

    def recorded(self, input_ids, *args, **kwargs):
        starts.append(input_ids.shape[1] - 1)
        return original(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(DFlashTokenCandidateGenerator, "get_candidates", recorded)
    out = library_generate(model, prompt, assistant_model=assistant, speculation_type="dflash")
    return out[len(prompt) :].tolist(), starts[1:]


def test_chain_equals_transformers_dflash(library_target, text, drafter, monkeypatch):
    prompt = text[:PROMPT]
    tokens, starts = own_chain(library_target, drafter, prompt)
    expected, expected_starts = library_chain(library_target, drafter, prompt, monkeypatch)
    assert tokens == expected == text[PROMPT:].tolist()
    lengths = {b - a for a, b in itertools.pairwise(starts)}
    assert len(lengths) > 2, "the drafter was fitted too little or too much for this test to say anything"
    # Near its length limit the library stops drafting; up to there every round has to start where ours does.
    common = [start for start in expected_starts if start < PROMPT + NEW_TOKENS - BLOCK - 1]
    assert starts[: len(common)] == common
    assert len(common) > 5
