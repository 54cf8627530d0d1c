"""The decode loop: every method emits what plain decoding emits, whatever the tree, the GDN path and the commit."""

import dataclasses
import json
import shutil
from functools import cache

import pytest
import torch

from kernels.gdn_tree import TORCH
from tests.tfm_bench.tiny_stack import SHIPPED, VOCAB, random_stack, random_target, shipped_stack
from tfm_bench.config import METHODS, STAGES, STATE_STORING
from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.errors import UserError
from tfm_bench.verification.sample_match import KeyedNoise

SMALL_ARMS = [Arm("dflash_chain", 7), Arm("ddtree", 9), Arm("tfm", 9, 1), Arm("tfm", 9, 4)]
EDGE_ARMS = [
    Arm(method, budget, width)
    for method, width in (("dflash_chain", 0), ("ddtree", 0), ("tfm", 3))
    for budget in (0, 1, 7, 8, 300)
]
GDN_MODES = [(verify, commit) for verify in TORCH.verify for commit in ("replay", "fold")]
GDN_MODES += [(verify, "select") for verify in STATE_STORING]
LONG_ARMS = [Arm("dflash_chain", 15), Arm("ddtree", 16), Arm("tfm", 32, 2)]
# Budget 9 decodes greedily, the others sample.
LONG_SMALL_ARMS = [Arm("ar"), Arm("dflash_chain", 7), Arm("ddtree", 8), Arm("tfm", 8, 2), Arm("tfm", 9, 1)]
LONG = 520


def ids(arms):
    return [f"{arm.method}-{arm.budget}-{arm.expansion_width}" for arm in arms]


def decode(stack, arm, prompt=(3, 9, 4), *, temperature=1.0, tokens=60, seed=2, staged=False):
    return generate(stack, prompt, arm, temperature=temperature, seed=seed, max_new_tokens=tokens, staged=staged)


def shipped_prompt(stack):
    turn = [{"role": "user", "content": "Tom has 12 apples and buys 3 bags of 4. How many apples does he have?"}]
    return stack.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)


def library_tokens(kind, prompt, count, *, temperature, seed):
    """The library's forward over the whole prefix for every token, with the keyed noise added by hand."""
    tokens = list(prompt)
    for _ in range(count):
        logits = random_target(kind)(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        if temperature:
            logits = logits / temperature + KeyedNoise(seed).gumbel(len(tokens), VOCAB)
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_plain_decoding_is_the_librarys_own(kind, temperature):
    expected = library_tokens(kind, (3, 9, 4), 40, temperature=temperature, seed=2)
    result = decode(random_stack(kind), Arm("ar"), temperature=temperature, tokens=40)
    assert result.tokens == expected
    assert result.accepted == [0] * 39


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("arm", SMALL_ARMS, ids=ids(SMALL_ARMS))
def test_every_method_emits_the_tokens_of_plain_decoding(kind, temperature, arm):
    stack = random_stack(kind)
    expected = decode(stack, Arm("ar"), temperature=temperature)
    result = decode(stack, arm, temperature=temperature)
    assert result.tokens == expected.tokens
    if temperature:
        assert sum(result.accepted) > 0


@cache
def long_text(temperature):
    """What plain decoding by the default GDN path writes, far beyond the end of the answer."""
    stack = shipped_stack()
    return decode(stack, Arm("ar"), shipped_prompt(stack), temperature=temperature, tokens=LONG).tokens


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("arm", LONG_ARMS, ids=ids(LONG_ARMS))
def test_shipped_stack_is_lossless_over_long_texts(temperature, arm):
    stack = shipped_stack()
    result = decode(stack, arm, shipped_prompt(stack), temperature=temperature, tokens=LONG)
    assert result.tokens == long_text(temperature)
    assert len(result.tokens) == LONG
    assert sum(result.accepted) > LONG / 10


@pytest.mark.parametrize(("gdn_verify", "commit"), GDN_MODES)
def test_gdn_paths_and_commits_of_the_shipped_stack_are_lossless_over_long_texts(gdn_verify, commit):
    stack = shipped_stack(gdn_verify, commit)
    result = decode(stack, Arm("tfm", 16, 1), shipped_prompt(stack), temperature=1.0, tokens=LONG)
    assert result.tokens == long_text(1.0)


@cache
def long_random_text(temperature):
    return decode(random_stack(), Arm("ar"), temperature=temperature, tokens=LONG).tokens


@pytest.mark.parametrize(("gdn_verify", "commit"), GDN_MODES)
@pytest.mark.parametrize("arm", LONG_SMALL_ARMS, ids=ids(LONG_SMALL_ARMS))
def test_every_method_gdn_path_and_commit_is_lossless_over_long_texts(gdn_verify, commit, arm):
    stack, temperature = random_stack("hybrid", gdn_verify, commit), 0.0 if arm.budget == 9 else 1.0
    assert decode(stack, arm, temperature=temperature, tokens=LONG).tokens == long_random_text(temperature)


@pytest.mark.parametrize("arm", EDGE_ARMS, ids=ids(EDGE_ARMS))
@pytest.mark.parametrize("prompt", [(6,), tuple(i % VOCAB for i in range(70))], ids=["one_token", "two_pieces"])
def test_odd_budgets_and_prompts(arm, prompt):
    stack = random_stack()
    expected = decode(stack, Arm("ar"), prompt, tokens=30).tokens
    assert decode(stack, arm, prompt, tokens=30).tokens == expected


@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
@pytest.mark.parametrize("arm", [Arm("ar"), *SMALL_ARMS], ids=ids([Arm("ar"), *SMALL_ARMS]))
def test_the_length_limit_is_exact(tokens, arm):
    stack = random_stack()
    result = decode(stack, arm, tokens=tokens)
    assert result.tokens == decode(stack, Arm("ar"), tokens=30).tokens[:tokens]
    assert sum(accepted + 1 for accepted in result.accepted) == tokens - 1


@pytest.mark.parametrize("method", ["dflash_chain", "ddtree", "tfm"])
def test_a_stop_id_inside_an_accepted_path_ends_the_text(method):
    stack = shipped_stack()
    prompt = shipped_prompt(stack)
    arm = Arm(method, 15, 1 if method == "tfm" else 0)
    free = decode(stack, arm, prompt, temperature=0.0, tokens=120)
    inside = middle_of_an_accepted_path(free)
    stop = free.tokens[inside]
    stopped = decode(dataclasses.replace(stack, stop_ids=frozenset({stop})), arm, prompt, temperature=0.0, tokens=120)
    first = free.tokens.index(stop)
    assert stopped.tokens == free.tokens[: first + 1]
    assert sum(accepted + 1 for accepted in stopped.accepted) == len(stopped.tokens) - 1


def middle_of_an_accepted_path(generation):
    """Index of a token that is neither the last of its round nor a repetition of an earlier one."""
    end = 1
    for accepted in generation.accepted:
        for index in range(end, end + accepted - 1):
            if index < len(generation.tokens) and generation.tokens[index] not in generation.tokens[:index]:
                return index
        end += accepted + 1
    raise AssertionError("no round accepted two new tokens")


def test_every_stop_id_counts():
    stack = random_stack()
    free = decode(stack, Arm("ar"), tokens=60).tokens
    stops = {free[20], free[40]}
    first = min(free.index(stop) for stop in stops)
    result = decode(dataclasses.replace(stack, stop_ids=frozenset(stops)), Arm("tfm", 9, 2), tokens=60)
    assert result.tokens == free[: first + 1]


def test_stage_times_sum_to_the_decode_time():
    result = decode(random_stack(), Arm("tfm", 9, 2), staged=True)
    assert set(result.stage_ms) == {*STAGES, "other"}
    assert sum(result.stage_ms.values()) == pytest.approx(result.decode_ms)
    assert min(result.stage_ms[stage] for stage in STAGES) > 0
    assert decode(random_stack(), Arm("tfm", 9, 2)).stage_ms is None


def test_verify_width_is_the_budget_and_the_anchor():
    widths = {arm: decode(random_stack(), arm, tokens=5).verify_width for arm in (Arm("ar"), *SMALL_ARMS)}
    assert [*widths.values()] == [1, 8, 10, 10, 10]


def test_seeds_change_sampled_text_and_leave_greedy_text_alone():
    stack = random_stack()
    assert decode(stack, Arm("ar"), seed=1).tokens != decode(stack, Arm("ar"), seed=2).tokens
    greedy = [decode(stack, Arm("ar"), seed=seed, temperature=0.0).tokens for seed in (1, 2)]
    assert greedy[0] == greedy[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Arm("eagle"), "accepted are ar, dflash_chain, ddtree, tfm"),
        (lambda: Arm("ddtree", -1), "budget"),
        (lambda: Arm("tfm", 8), "expansion_width"),
        (lambda: decode(random_stack(), Arm("ar"), prompt=()), "0 prompt tokens"),
        (lambda: decode(random_stack(), Arm("ar"), tokens=0), "max_new_tokens 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("drafter", {"hidden_size": 64}, "drafter"),
        ("weaver", {"d_embed": 64}, "weaver"),
        (
            "drafter",
            {"dflash_config": {"mask_token_id": 9999, "target_layer_ids": [1, 3, 5, 7, 9]}},
            "mask_token_id is 9999",
        ),
        ("target", None, "tokenizer.json"),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_one_line(tmp_path, part, change, message):
    folder = tmp_path / "stack"
    shutil.copytree(SHIPPED, folder)
    if change is None:
        (folder / part / "tokenizer.json").write_text("{ damaged")
    else:
        config = folder / part / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(UserError, match=message) as caught:
        Stack.load(folder, dtype="float32", gdn_verify="fused", commit="replay")
    assert "\n" not in str(caught.value)


def test_every_method_has_an_arm_here():
    assert {arm.method for arm in (Arm("ar"), *SMALL_ARMS)} == set(METHODS)
