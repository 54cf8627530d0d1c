"""Every drafter of the ablation at every place of the same text: what a tree drafted there would have had accepted.

sample_match accepts the drafts that the text carries on with, so no tree has to be verified, and all drafters are asked
the same questions; rounds of decoding begin where the drafts of the arm itself ended. Observations, one per prompt, arm
and depth from 1: prompt, method, variant, budget, depth; reached, places where the tree has all drafts above that depth
accepted and the text goes on; accepted, those of them where it has one there too; spine_reached and spine_accepted, the
same of the spine, from the anchor always the best-scored child.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tfm_bench.ablations import ProbeSettings, drafting_arms
from tfm_bench.engine import Arm, Draft, Stack, generate
from tfm_bench.generation import Round
from tfm_bench.measure.progress import with_progress
from tfm_bench.models.target import TargetOutput
from tfm_bench.prompts.datasets import encode_for, load_prompts
from tfm_bench.tree import TokenTree
from tfm_bench.variants import variant_of
from tfm_bench.verification.sample_match import Acceptance

VERSION = 1
NO_TOKEN = -1


class Place(NamedTuple):
    """Drafts accepted of one tree, and of its spine; known: tokens of the text after the anchor."""

    accepted: int
    spine: int
    known: int


def probe(stack: Stack, settings: ProbeSettings) -> Iterable[dict[str, Any]]:
    """Observations of the module's docstring; the prompts and seeds begin with those of the ablation's cells."""
    ablations = settings.ablations
    prompts = load_prompts(ablations.dataset, "test", stack.directory / "prompts", ablations.drafting.prompts)
    arms = [Arm(**arm.model_dump()) for arm in drafting_arms(settings)]
    stacks = {name: variant_of(stack, name) for name in dict.fromkeys(arm.variant for arm in arms)}
    for index, prompt in enumerate(with_progress(prompts, "drafting")):
        ids = encode_for(settings.stack, stack.tokenizer, prompt)
        places = places_of_prompt(stack, stacks, arms, ids, settings, settings.seed + index)
        for arm, of_arm in places.items():
            drafted = {"prompt": index, "method": arm.method, "variant": arm.variant, "budget": arm.budget}
            for depth in range(1, stack.block_size):
                yield {**drafted, "depth": depth, **counts(of_arm, depth)}


def places_of_prompt(
    stack: Stack, stacks: dict[str, Stack], arms: list[Arm], ids: list[int], settings: ProbeSettings, seed: int
) -> dict[Arm, list[Place]]:
    """One text, decoded token by token, and per arm what its trees at all places but the last would have given."""
    trees: dict[Arm, list[TokenTree]] = {arm: [] for arm in arms}

    def observe(draft: Draft | None, _tree: TokenTree, _output: TargetOutput, _outcome: Acceptance) -> None:
        assert draft is not None, "the drafter runs in every round"
        for arm in arms:
            own = stacks[arm.variant]
            trees[arm].append(own.builders[arm.method](own, arm, draft))

    ablations = settings.ablations
    text = generate(
        replace(stack, builders={"tfm": lambda _stack, _arm, draft: TokenTree.chain([draft.anchor], [0.0])}),
        ids,
        Arm("tfm", 1, 1),
        temperature=ablations.temperature,
        seed=seed,
        max_new_tokens=ablations.max_new_tokens,
        observer=observe,
    ).tokens
    return {
        arm: [place_of(tree, text[index:]) for index, tree in enumerate(of_arm, start=1)]
        for arm, of_arm in trees.items()
    }


def place_of(tree: TokenTree, following: Sequence[int]) -> Place:
    """What a tree would have had accepted where the text goes on with `following`."""
    node, accepted = 0, 0
    for token in following:
        if token not in tree.children[node]:
            break
        node, accepted = tree.children[node][token], accepted + 1
    # Round.of leaves out the last token of a text, which there is no draft.
    return Place(accepted, Round.of(tree, accepted, [*following, NO_TOKEN], None).spine, len(following))


def counts(places: Iterable[Place], depth: int) -> dict[str, int]:
    """reached, accepted, spine_reached and spine_accepted at one depth."""
    judged = [place for place in places if place.known >= depth]
    return {
        "reached": sum(place.accepted >= depth - 1 for place in judged),
        "accepted": sum(place.accepted >= depth for place in judged),
        "spine_reached": sum(place.spine >= depth - 1 for place in judged),
        "spine_accepted": sum(place.spine >= depth for place in judged),
    }
