"""The probe of the drafting ablation: places of one text judge every tree as verifying it there would."""

import dataclasses
import itertools

import pytest
import torch

from tests.tfm_bench.tiny_stack import SHIPPED, random_stack, shipped_stack
from tfm_bench.ablations import drafting_arms, probe_settings
from tfm_bench.config import load_config, read_yaml
from tfm_bench.engine import Arm, generate
from tfm_bench.measure.probes.drafting import Place, counts, place_of, places_of_prompt, probe
from tfm_bench.tree import TokenTree
from tfm_bench.variants import variant_of

PROMPT = [3, 9, 4]


@pytest.fixture
def settings():
    defaults = read_yaml(SHIPPED.parents[1] / "config" / "default.yaml")
    ablations = defaults["ablations"] | {"budgets": [9, 4], "max_new_tokens": 20, "drafting": {"prompts": 2}}
    changed = {"ablations": ablations, "stack": defaults["stack"] | {"path": str(SHIPPED)}}
    return probe_settings(load_config(defaults | changed), "drafting")


def test_arms_are_those_of_the_least_budget_and_of_what_the_stack_has(settings, tmp_path):
    (tmp_path / "controls" / "one").mkdir(parents=True)
    (tmp_path / "controls" / "one" / "config.json").write_text("{}")
    stack = settings.stack.model_copy(update={"path": str(tmp_path)})
    arms = drafting_arms(settings.model_copy(update={"stack": stack}))
    assert {arm.budget for arm in arms} == {4}
    assert [(arm.method, arm.variant) for arm in arms] == [
        *(("dflash_chain", "default"), ("dflash_chain", "chain_sampled"), ("ddtree", "default"), ("tfm", "default")),
        *(("tfm", "weaver_no_residual"), ("tfm", "weaver_wrong_parent"), ("tfm", "weaver_one")),
    ]


def all_paths(tree):
    """Every path of the tree below the anchor, by enumeration of its nodes."""
    return {tuple(int(tree.tokens[i]) for i in tree.structure.path_to(n)[1:]) for n in range(tree.size)}


@pytest.mark.parametrize("seed", range(8))
def test_a_place_is_judged_by_the_paths_of_its_tree(seed):
    """Accepted: the longest prefix of the text among all paths. Spine: children with the best edge, one by one."""
    generator = torch.Generator().manual_seed(seed)
    tokens, parents, edges = [0], [-1], [0.0]
    for node in range(1, 12):
        parent = int(torch.randint(node, (1,), generator=generator))
        taken = {tokens[i] for i in range(1, node) if parents[i] == parent}
        tokens.append(next(t for t in torch.randperm(16, generator=generator).tolist() if t not in taken))
        parents.append(parent)
        edges.append(-float(torch.rand(1, generator=generator)))
    tree = TokenTree.from_lists(tokens, parents, edges, 14)
    for text in [*map(list, all_paths(tree)), [99], []]:
        for following in (text, [*text, 98, 97], text[:-1]):
            place = place_of(tree, following)
            expected = max(len(p) for p in all_paths(tree) if list(p) == following[: len(p)])
            node, spine = 0, 0
            while children := [i for i in range(1, 12) if parents[i] == node]:
                node = max(children, key=lambda i: edges[i])
                if spine >= len(following) or tokens[node] != following[spine]:
                    break
                spine += 1
            assert place == Place(expected, spine, len(following))


def test_counts_leave_out_what_the_end_of_the_text_hides():
    places = [Place(2, 1, 5), Place(0, 0, 4), Place(3, 3, 3), Place(1, 0, 1)]
    assert counts(places, 1) == {"reached": 4, "accepted": 3, "spine_reached": 4, "spine_accepted": 2}
    assert counts(places, 2) == {"reached": 2, "accepted": 2, "spine_reached": 2, "spine_accepted": 1}
    assert counts(places, 4) == {"reached": 0, "accepted": 0, "spine_reached": 0, "spine_accepted": 0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounds_of_decoding_are_among_the_places(settings, temperature):
    """Where an arm's round begins, it accepts in decoding what the probe says that it would have there."""
    ablations = settings.ablations.model_copy(update={"temperature": temperature, "max_new_tokens": 40})
    settings = settings.model_copy(update={"ablations": ablations})
    stack = random_stack()
    arms = [Arm("dflash_chain", 7), Arm("dflash_chain", 7, 0, "chain_sampled"), Arm("ddtree", 9), Arm("tfm", 9, 1)]
    arms += [Arm("tfm", 9, 1, f"weaver_{name}") for name in ("no_residual", "wrong_parent")]
    stacks = {arm.variant: variant_of(stack, arm.variant) for arm in arms}
    places = places_of_prompt(stack, stacks, arms, PROMPT, settings, seed=2)
    accepted = 0
    for arm in arms:
        options = {"temperature": temperature, "seed": 2, "max_new_tokens": 40}
        result = generate(stacks[arm.variant], PROMPT, arm, **options)
        assert len(places[arm]) == len(result.tokens) - 1
        start = 0
        for done in result.rounds[:-1]:
            assert places[arm][start][:2] == (done.accepted, done.spine)
            start += done.accepted + 1
            accepted += done.accepted
    assert temperature == 0 or accepted > 5


def test_the_probe_of_the_shipped_stack(settings):
    stack = dataclasses.replace(shipped_stack(), stop_ids=frozenset())
    rows = list(probe(stack, settings))
    arms = {(row["method"], row["variant"]) for row in rows}
    assert len(rows) == 2 * len(arms) * 15
    first = [row for row in rows if row["depth"] == 1]
    assert {row["reached"] for row in first} == {19}, "every place of 20 tokens but the last"
    spine = {(row["prompt"], row["method"], row["variant"]): row["spine_accepted"] for row in first}
    for prompt in range(2):  # the anchor is shown to both as it is
        assert spine[prompt, "tfm", "weaver_wrong_parent"] == spine[prompt, "tfm", "default"]
    for one, two in itertools.pairwise(rows):
        if one["depth"] < two["depth"]:
            assert two["reached"] <= one["accepted"]
