"""What a GPU does differently, forced on the CPU: noise drawn in torch, all draws at once, trees moved in one copy."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.tfm_bench.tiny_stack import VOCAB, random_stack
from tfm_bench.engine import Arm, generate
from tfm_bench.errors import UserError
from tfm_bench.models import target as target_module
from tfm_bench.models.device import choose_device
from tfm_bench.models.tree_transfer import packed, tree_on, unpacked
from tfm_bench.tree import TokenTree
from tfm_bench.verification.philox import gumbel_rows, raw_words
from tfm_bench.verification.rules import Rule
from tfm_bench.verification.sample_match import NO_TOKEN, KeyedNoise, accept, accept_at_once, draw, draw_rows

ARMS = [
    Arm("ar"),
    Arm("dflash_chain", budget=7),
    Arm("ddtree", budget=12),
    Arm("tfm", budget=12, expansion_width=2),
]


@pytest.mark.parametrize("seed", [0, 1, 12345678901234567, 2**63 - 1, 2**63, 2**64 - 1])
def test_words_are_those_of_numpy(seed):
    positions = [0, 1, 77, 2**40]
    words = raw_words(seed, torch.tensor(positions), 1003).numpy().view(np.uint64)
    for row, position in zip(words, positions, strict=True):
        stream = np.random.Philox(key=seed, counter=[0, 0, 0, position])
        np.testing.assert_array_equal(row, stream.random_raw(1003))


def test_noise_is_that_of_the_cpu_stream():
    noise = KeyedNoise(9)
    rows = gumbel_rows(9, torch.tensor([3, 4]), 50_000)
    expected = torch.stack([noise.gumbel(position, 50_000) for position in (3, 4)])
    assert rows.dtype is torch.float32
    # The logarithms of torch and numpy may differ in the last bit of fp64.
    torch.testing.assert_close(rows, expected, rtol=2e-7, atol=1e-9)
    assert (rows == expected).float().mean() > 0.9999


def random_problem(seed):
    """A tree whose nodes carry what the target draws, or not, by chance; tokens of siblings differ."""
    generator = torch.Generator().manual_seed(seed)
    parents, tokens, taken = [-1], [0], {0: set()}
    for node in range(1, 14):
        parent = int(torch.randint(0, node, (), generator=generator))
        free = [token for token in range(6) if token not in taken[parent]]
        if not free:
            continue
        token = free[int(torch.randint(0, len(free), (), generator=generator))]
        taken[parent].add(token)
        taken[len(parents)] = set()
        parents.append(parent)
        tokens.append(token)
    tree = TokenTree.from_lists(tokens, parents, [0.0] * len(tokens), 16)
    return tree, torch.randn(16, 6, generator=generator)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_all_draws_at_once_accept_what_single_draws_accept(temperature):
    depths = set()
    for seed in range(60):
        tree, logits = random_problem(seed)
        options = {"temperature": temperature, "noise": KeyedNoise(seed), "start": 5 * seed}
        found = accept_at_once(tree, logits, **options)
        assert found == accept(tree, logits, **options)
        depths.add(len(found.path))
    assert len(depths) > 2


def test_equal_logits_go_to_the_lowest_token_and_bf16_is_drawn_in_fp32():
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=torch.bfloat16)
    assert draw_rows(logits, torch.tensor([0, 1]), 0.0, KeyedNoise(0), 0) == [1, 0]


def test_nan_matters_only_on_the_path():
    tree = TokenTree.from_lists([9, 1, 2], [-1, 0, 0], [0.0] * 3, 3)
    logits = torch.zeros(3, 4)
    logits[0, 1], logits[2, 0] = 5.0, math.nan
    options = {"temperature": 0.0, "noise": KeyedNoise(0), "start": 7}
    assert draw_rows(logits, tree.depths, 0.0, KeyedNoise(0), 8) == [1, 0, NO_TOKEN]
    assert accept_at_once(tree, logits, **options) == accept(tree, logits, **options)
    logits[1, 3] = math.nan
    with pytest.raises(FloatingPointError, match="position 9 hold NaN"):
        accept_at_once(tree, logits, **options)
    with pytest.raises(UserError, match="temperature: found -1"):
        accept_at_once(tree, logits, temperature=-1, noise=KeyedNoise(0), start=0)


def test_a_tree_survives_the_move_in_one_piece():
    tree, _ = random_problem(3)
    tokens, moved = unpacked(packed(tree.tokens, tree.structure))
    assert tokens.tolist() == tree.tokens.tolist()
    for name in ("parents", "depths", "ancestors", "conv_taps"):
        found, expected = getattr(moved, name), getattr(tree.structure, name)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    same, structure = tree_on(tree.tokens, tree.structure, torch.device("cpu"))
    assert same is tree.tokens
    assert structure is tree.structure


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_emits_the_tokens_of_plain_decoding_on_the_path_of_a_gpu(temperature, monkeypatch):
    options = {"temperature": temperature, "seed": 4, "max_new_tokens": 40}
    expected = generate(random_stack(), [3, 1, 4], Arm("ar"), **options).tokens
    moved = []

    def always_moved(tokens, structure, device):
        moved.append(tokens.shape[0])
        return unpacked(packed(tokens, structure).to(device))

    def draw_at_once(logits, temperature, noise, position):
        return draw_rows(logits[None], torch.zeros(1, dtype=torch.int64), temperature, noise, position)[0]

    monkeypatch.setattr(target_module, "tree_on", always_moved)
    monkeypatch.setattr("tfm_bench.engine.draw", draw_at_once)
    stack = dataclasses.replace(random_stack(), rule=Rule("sample_match", accept_at_once))
    for arm in ARMS:
        found = generate(stack, [3, 1, 4], arm, **options)
        assert found.tokens == expected
        assert sum(found.accepted) > 0 or arm.method == "ar"
    assert set(moved) == {3, 1, 8, 13}
    assert draw(torch.zeros(VOCAB), 0.0, KeyedNoise(0), 0) == 0


def test_a_device_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match=r"stack\.device: found cuda, but torch sees no GPU"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == choose_device("cuda").type == "cuda"
    assert choose_device("cpu").type == "cpu"
