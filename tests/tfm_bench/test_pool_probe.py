"""The probe of the pool ablation: ranks by sorting, places by hand."""

import dataclasses

import pytest
import torch

from tests.tfm_bench.tiny_stack import SHIPPED, VOCAB, random_stack, shipped_stack
from tfm_bench.ablations import probe_settings
from tfm_bench.config import load_config, read_yaml
from tfm_bench.engine import Arm, generate
from tfm_bench.measure.probes.pool import probe, ranks_of_prompt, round_ranks

PROMPT = [3, 9, 4]


def settings_for(sizes, **changes):
    defaults = read_yaml(SHIPPED.parents[1] / "config" / "default.yaml")
    pool = {"sizes": sizes, "budget": 9}
    ablations = defaults["ablations"] | {"max_new_tokens": 24, "prompts": 2, "pool": pool} | changes
    return probe_settings(load_config(defaults | {"ablations": ablations}), "pool")


@pytest.mark.parametrize("seed", range(5))
def test_rank_is_the_place_in_a_stable_sort(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 4, (6, VOCAB), generator=generator).float()  # ties everywhere
    tokens = torch.randint(VOCAB, (6,), generator=generator).tolist()
    expected = [
        (depth, sorted(range(VOCAB), key=lambda t: (-float(row[t]), t)).index(token))
        for depth, (row, token) in enumerate(zip(logits, tokens, strict=True), start=1)
    ]
    assert list(round_ranks(logits, tokens, ())) == expected


def test_nothing_is_counted_beyond_a_stop_id_or_the_block():
    logits = torch.randn(3, VOCAB)
    assert [depth for depth, _ in round_ranks(logits, [4, 5, 6, 7], {5})] == [1, 2]
    assert [depth for depth, _ in round_ranks(logits, [4, 5, 6, 7], {9})] == [1, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_round_counts_its_accepted_drafts_and_the_bonus(temperature):
    stack, settings = random_stack(), settings_for([8], temperature=temperature)
    ranks = ranks_of_prompt(stack, PROMPT, settings, seed=2)
    arm = Arm("tfm", 9, 1)
    result = generate(stack, PROMPT, arm, temperature=temperature, seed=2, max_new_tokens=24)
    horizon = stack.block_size - 1
    whole = sum(min(done.accepted + 1, horizon) for done in result.rounds)
    assert whole <= ranks.total() <= whole + horizon, "the limit may cut the last round of the text, not of the probe"
    assert sum(n for (depth, _), n in ranks.items() if depth == 1) == len(result.rounds)
    # A draft is accepted from the pool of 12, so no accepted depth ranks beyond it.
    deepest = max(depth for depth, _ in ranks)
    assert all(rank < VOCAB for _, rank in ranks)
    assert deepest >= max(result.accepted)


def test_the_probe_of_the_shipped_stack_counts_outside_by_size():
    stack = dataclasses.replace(shipped_stack(), stop_ids=frozenset())
    sizes = [1, 8, 4096]
    rows = list(probe(stack, settings_for(sizes)))
    assert {row["pool_size"] for row in rows} == set(sizes)
    for size in sizes:
        own = [row for row in rows if row["pool_size"] == size]
        assert [(row["prompt"], row["depth"]) for row in own] == sorted({(r["prompt"], r["depth"]) for r in rows})
        assert all(0 <= row["outside"] <= row["tokens"] for row in own)
        assert size < 4096 or sum(row["outside"] for row in own) == 0
    totals = [sum(row["outside"] for row in rows if row["pool_size"] == size) for size in sizes]
    assert totals[0] > totals[1] >= totals[2]
