"""One round of a real generation, node by node: what was drafted, what the target thought of it, what was accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from tfm_bench.config import CellSettings
from tfm_bench.engine import Arm, Draft, generate
from tfm_bench.errors import UserError
from tfm_bench.measure.cells import load_stack
from tfm_bench.measure.files import write_text
from tfm_bench.measure.provenance import collect_provenance
from tfm_bench.models.target import TargetOutput
from tfm_bench.prompts.datasets import encode_for, load_prompts
from tfm_bench.tree import TokenTree
from tfm_bench.verification.sample_match import Acceptance

VERSION = 1
COLUMNS = [
    *["stack", "dataset", "split", "prompt_id", "temperature", "method", "budget", "expansion_width", "round", "node"],
    *["parent", "depth", "kind", "token_id", "token", "edge_probability", "path_probability", "target_probability"],
    *["accepted", "context", "device", "threads", "dtype", "measured_at"],
]
CONTEXT_CHARACTERS = 80

Row = dict[str, Any]


def example_tree(settings: CellSettings, output: Path) -> None:
    """Decode the first prompt of `settings` with its one arm and write the round that shows most, a row per node.

    That is the round with the most accepted drafts among those that accept a draft which is not its parent's
    best-scored child, or among all where there is none; the earliest of equals. The last round, which the end of the
    text cuts short, is left out where there are others. The bonus token has the last row. Raises UserError for bad
    input and for a text that ends before the first round. `context`: the end of the text before the anchor.
    """
    torch.set_num_threads(settings.stack.threads)
    stack = load_stack(settings.stack)
    folder = Path(settings.stack.path) / "prompts"
    (prompt,) = load_prompts(settings.dataset, settings.split, folder, 1)
    rounds: list[list[Row]] = []

    def observe(_draft: Draft | None, tree: TokenTree, verified: TargetOutput, accepted: Acceptance) -> None:
        rounds.append(round_rows(tree, verified.logits, accepted, settings.temperature))

    (arm,) = settings.arms
    prompt_ids = encode_for(settings.stack, stack.tokenizer, prompt)
    result = generate(
        stack,
        prompt_ids,
        Arm(**arm.model_dump()),
        temperature=settings.temperature,
        seed=settings.seed,
        max_new_tokens=settings.max_new_tokens,
        observer=observe,
    )
    if not rounds:
        raise UserError(f"{settings.dataset}, prompt {prompt.id}: found a text of one token; an example needs a round")
    number, tokenizer = telling_round(rounds), stack.tokenizer
    assert tokenizer is not None, "a stack that was loaded has one"
    before = [*prompt_ids, *result.tokens[: number + sum(result.accepted[:number])]]
    origin = collect_provenance(stack.device)
    table = pd.DataFrame(rounds[number]).assign(
        **{"stack": settings.stack.name, "dataset": settings.dataset, "split": settings.split, "prompt_id": prompt.id},
        **{"temperature": settings.temperature, **arm.model_dump(), "round": number, "dtype": settings.stack.dtype},
        **{"device": origin.device, "threads": origin.threads, "measured_at": origin.measured_at.isoformat()},
        context=visible(tokenizer.decode(before)[-CONTEXT_CHARACTERS:], blank=" "),
        token=[visible(tokenizer.decode([row["token_id"]])) for row in rounds[number]],
    )
    write_text(output, table[COLUMNS].to_csv(index=False, lineterminator="\n"))


def round_rows(tree: TokenTree, logits: Tensor, accepted: Acceptance, temperature: float) -> list[Row]:
    """A row per node that is no padding, in the order of the tree, and one for the bonus token.

    logits [N, V] of the target. edge_probability: the drafter's, given the path above; path_probability: their product;
    target_probability: the target's, given the same path, at the temperature.
    """
    parents, tokens, depths = tree.parents.tolist(), tree.tokens.tolist(), tree.depths.tolist()
    edges = tree.edge_logprobs.double().exp().tolist()
    rows: list[Row] = []
    for node in range(tree.size):
        row = {"node": node, "parent": parents[node], "depth": depths[node], "token_id": tokens[node]}
        drafted = {"kind": "draft", "edge_probability": edges[node]} if node else {"kind": "anchor"}
        above = rows[parents[node]]["path_probability"] if node else 1.0
        rows.append({**row, **drafted, "path_probability": above * edges[node], "accepted": node in accepted.path})
    last = accepted.path[-1]
    bonus = {"node": tree.size, "parent": last, "depth": depths[last] + 1, "token_id": accepted.bonus}
    rows.append({**bonus, "kind": "bonus", "accepted": True})
    for row in rows[1:]:
        row["target_probability"] = target_probability(logits[row["parent"]], row["token_id"], temperature)
    return rows


def target_probability(logits: Tensor, token: int, temperature: float) -> float:
    """Of one token under logits [V]; at temperature 0 it is 1 for the first of the largest and 0 for all others."""
    if temperature == 0:
        return float(int(logits.argmax()) == token)
    return (logits.double() / temperature).softmax(-1)[token].item()


def telling_round(rounds: list[list[Row]]) -> int:
    """Number of the round that example_tree writes."""
    whole = rounds[:-1] or rounds
    ranked = [(any(_against_the_drafter(rows)), sum(_drafts(rows))) for rows in whole]
    return ranked.index(max(ranked))


def _drafts(rows: list[Row]) -> Iterator[bool]:
    """Per draft whether it was accepted."""
    return (row["accepted"] for row in rows if row["kind"] == "draft")


def _against_the_drafter(rows: list[Row]) -> Iterator[bool]:
    """Per accepted draft whether the drafter scored a sibling higher."""
    drafts = [row for row in rows if row["kind"] == "draft"]
    for row in (row for row in drafts if row["accepted"]):
        siblings = [other["edge_probability"] for other in drafts if other["parent"] == row["parent"]]
        yield row["edge_probability"] < max(siblings)


def visible(text: str, blank: str = "␣") -> str:
    """Text for print on one line: blanks shown, control characters escaped."""
    return "".join(blank if c == " " else c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
