"""How far each sampler's law is from the target's, and what it accepts: exactly, on real rounds of the stack.

Observations, one per round and sampler: prompt and round (from 0), method, budget, rule; outcomes: sequences of random
choices that the sampler could make; text_variation and first_token_variation: total variation between the target's law
and that of the text which the round begins (what it emits, continued by the target), and of its first token alone;
accepted_drafts: expected in this round; matched_drafts: expected under sample_match. The rounds are those of decoding
under sample_match, and all rules are asked about the same ones. Nothing is sampled: every random choice is enumerated
(tfm_bench.verification.enumeration). Where that takes more than MOST_OUTCOMES, a sampler's results are None.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tfm_bench.ablations import ProbeSettings
from tfm_bench.config import TREE_METHODS, expansion_width
from tfm_bench.engine import Arm, Draft, Stack, generate
from tfm_bench.errors import UserError
from tfm_bench.measure.progress import with_progress
from tfm_bench.models.target import TargetOutput
from tfm_bench.prompts.datasets import Prompt, encode_for, load_prompts
from tfm_bench.tree import TokenTree
from tfm_bench.verification.enumeration import outcomes
from tfm_bench.verification.rules import TRAVERSAL_SAMPLERS
from tfm_bench.verification.sample_match import Acceptance
from tfm_bench.verification.traversal import Array, Sampler, TargetRows, walk

VERSION = 1
BUDGET = 6  # outcomes grow with the factorial of siblings
MOST_OUTCOMES = 5000
MOST_TOKENS = 48  # of each prompt; rounds are like one another, prompts are not


class Enumerated(NamedTuple):
    """What a sampler does with one tree, over all its choices."""

    outcomes: int
    text_variation: float | None
    first_token_variation: float | None
    accepted_drafts: float | None


def probe(stack: Stack, settings: ProbeSettings) -> Iterable[dict[str, Any]]:
    """Rounds of every tree method, BUDGET drafts each. Raises UserError at temperature 0, where there is no law."""
    ablations = settings.ablations
    if ablations.temperature == 0:
        raise UserError("ablations.temperature: found 0; acceptance_rule accepts a positive number")
    prompts = load_prompts(ablations.dataset, "test", stack.directory / "prompts", ablations.prompts)
    for index, prompt in enumerate(with_progress(prompts, "acceptance_rule")):
        for method in TREE_METHODS:
            yield from _rounds(stack, settings, method, index, prompt)


def enumerate_sampler(tree: TokenTree, rows: TargetRows, sampler: Sampler) -> Enumerated:
    """Distance from the target's law, and expected accepted drafts.

    A text leaves the tree at some node, and from there on both laws are in proportion to each other: so the law of the
    node is all that has to be compared, and for the first token, whether it is at the anchor or below which child.
    """
    found = list(islice(outcomes(lambda choices: walk(tree, rows, sampler, choices)), MOST_OUTCOMES + 1))
    if len(found) > MOST_OUTCOMES:
        return Enumerated(len(found), None, None, None)
    arrived, left, accepted = np.zeros(tree.size), np.zeros(tree.size), 0.0
    for probability, (path, bonus) in found:
        accepted += probability * (len(path) - 1)
        below = tree.children[path[-1]]
        for token, child in below.items():
            arrived[child] += probability * bonus[token]
        left[path[-1]] += probability * (1 - sum(bonus[token] for token in below))
    written = np.zeros(tree.size)
    written[0] = 1
    difference = leaving_law(tree, rows, arrived, left) - leaving_law(tree, rows, written, np.zeros(tree.size))
    first = np.bincount(_first_nodes(tree), weights=difference)
    return Enumerated(len(found), float(np.abs(difference).sum() / 2), float(np.abs(first).sum() / 2), accepted)


def leaving_law(tree: TokenTree, rows: TargetRows, arrived: Array, left: Array) -> Array:
    """[N] probability that a text's last node in the tree is this one.

    arrived [N]: probability that the target goes on alone from the node; left [N]: that the text left it otherwise.
    """
    arrived, left = arrived.copy(), left.copy()
    for node, below in enumerate(tree.children):
        shares = {child: rows.edge_probability[child] for child in below.values()}
        left[node] += arrived[node] * (1 - sum(shares.values()))
        for child, share in shares.items():
            arrived[child] += arrived[node] * share
    return left


def _first_nodes(tree: TokenTree) -> list[int]:
    """Per node the child of the anchor that it is below, or is; the anchor for itself."""
    first = [0]
    for node, parent in enumerate(tree.parents[1 : tree.size].tolist(), start=1):
        first.append(node if parent == 0 else first[parent])
    return first


def matched_drafts(tree: TokenTree, rows: TargetRows) -> float:
    """Expected accepted drafts of sample_match: the target's probability of writing each node's path, summed."""
    written = [1.0]
    for node, parent in enumerate(tree.parents[1 : tree.size].tolist(), start=1):
        written.append(written[parent] * rows.edge_probability[node])
    return sum(written[1:])


def _rounds(stack: Stack, settings: ProbeSettings, method: str, index: int, prompt: Prompt) -> list[dict[str, Any]]:
    ablations = settings.ablations
    width = expansion_width(settings.expansion_width, BUDGET) if method == "tfm" else 0
    observed: list[dict[str, Any]] = []

    def observe(_draft: Draft | None, tree: TokenTree, output: TargetOutput, _outcome: Acceptance) -> None:
        rows = TargetRows(tree, output.logits, ablations.temperature)
        place = {"prompt": index, "round": len(observed) // len(TRAVERSAL_SAMPLERS), "method": method, "budget": BUDGET}
        matched = matched_drafts(tree, rows)
        for rule, sampler in TRAVERSAL_SAMPLERS.items():
            found = enumerate_sampler(tree, rows, sampler)._asdict()
            observed.append({**place, "rule": rule, **found, "matched_drafts": matched})

    generate(
        stack,
        encode_for(settings.stack, stack.tokenizer, prompt),
        Arm(method, budget=BUDGET, expansion_width=width),
        temperature=ablations.temperature,
        seed=settings.seed + index,
        max_new_tokens=min(MOST_TOKENS, ablations.max_new_tokens),
        observer=observe,
    )
    return observed
