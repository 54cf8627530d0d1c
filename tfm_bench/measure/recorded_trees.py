"""Parents of the trees that real rounds of the stack verify: the shapes that kernels have to be fast on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from tfm_bench.config import Method, TreeSettings, expansion_width
from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.errors import UserError
from tfm_bench.kernel_config import RecordedKind
from tfm_bench.measure.cells import checkpoint_sha256, load_stack
from tfm_bench.measure.files import read_json_lines, write_text
from tfm_bench.measure.progress import with_progress
from tfm_bench.measure.provenance import Provenance, collect_provenance
from tfm_bench.prompts.datasets import Prompt, encode_for, load_prompts
from tfm_bench.tree import TokenTree

SCHEMA_VERSION = 1
VERSION = 1
TEMPERATURE = 1.0
METHODS: dict[RecordedKind, Method] = {"ddtree": "ddtree", "weaver": "tfm"}


class RecordedTree(BaseModel):
    """One full tree: `nodes` rows, anchor included, none of them padding. depth_sum: over all nodes, anchor 0."""

    schema_version: int = SCHEMA_VERSION
    tree: RecordedKind
    nodes: int
    dataset: str
    prompt_id: str
    round: int
    depth_sum: int
    parents: list[int]
    checkpoint_sha256: str
    settings: TreeSettings
    provenance: Provenance


def recorded_trees(settings: TreeSettings, output: Path) -> None:
    """Decode dev prompts with DDTree and Weaver and write the trees of their rounds, one JSON line each.

    Without Weaver where the stack has none. Every number of nodes is a budget of one less. Raises UserError for bad
    input and for a size that no round filled.
    """
    torch.set_num_threads(settings.stack.threads)
    stack = load_stack(settings.stack)
    origin = {
        "checkpoint_sha256": checkpoint_sha256(Path(settings.stack.path)),
        "settings": settings,
        "provenance": collect_provenance(stack.device),
    }
    jobs = [(kind, nodes) for kind in settings.kinds for nodes in settings.nodes]
    records = [
        record
        for kind, nodes in with_progress(jobs, "recorded trees", unit="sizes")
        for record in _record_size(stack, settings, kind, nodes, origin)
    ]
    write_text(output, "".join(record.model_dump_json() + "\n" for record in records))


def read_recorded_trees(path: Path) -> list[RecordedTree]:
    """Raises UserError naming file and line of what is not a recorded tree."""
    return read_json_lines(path, RecordedTree, "a recorded tree")


def median_tree(trees: list[RecordedTree], kind: RecordedKind, nodes: int) -> RecordedTree:
    """Of the trees of this kind and size the one with the median sum of depths (the lower one of two)."""
    fitting = [tree for tree in trees if tree.tree == kind and tree.nodes == nodes]
    if not fitting:
        raise UserError(f"recorded trees: none of kind {kind} with {nodes} nodes; delete the file and rerun")
    ranked = sorted(fitting, key=lambda tree: (tree.depth_sum, tree.dataset, tree.prompt_id, tree.round))
    return ranked[(len(ranked) - 1) // 2]


def _record_size(
    stack: Stack, settings: TreeSettings, kind: RecordedKind, nodes: int, origin: dict[str, Any]
) -> list[RecordedTree]:
    width = expansion_width(settings.expansion_width, nodes - 1) if kind == "weaver" else 0
    arm = Arm(METHODS[kind], budget=nodes - 1, expansion_width=width)
    records = []
    for seed, (dataset, prompt) in enumerate(_prompts(settings), start=settings.seed):
        for number, tree in enumerate(_trees_of(stack, settings, arm, prompt, seed)):
            if tree.size == nodes:
                place = {"tree": kind, "nodes": nodes, "dataset": dataset, "prompt_id": prompt.id, "round": number}
                shape = {"parents": tree.parents.tolist(), "depth_sum": int(tree.depths.sum())}
                records.append(RecordedTree.model_validate({**place, **shape, **origin}))
    if not records:
        raise UserError(f"kernels.grids: no round of {settings.stack.name} filled a {kind} tree of {nodes} nodes")
    return records


def _prompts(settings: TreeSettings) -> Iterator[tuple[str, Prompt]]:
    for dataset in settings.recorded.datasets:
        folder = Path(settings.stack.path) / "prompts"
        for prompt in load_prompts(dataset, "dev", folder, settings.recorded.prompts):
            yield dataset, prompt


def _trees_of(stack: Stack, settings: TreeSettings, arm: Arm, prompt: Prompt, seed: int) -> list[TokenTree]:
    """The trees of all rounds of one prompt."""
    trees: list[TokenTree] = []
    generate(
        stack,
        encode_for(settings.stack, stack.tokenizer, prompt),
        arm,
        temperature=TEMPERATURE,
        seed=seed,
        max_new_tokens=settings.recorded.max_new_tokens,
        observer=lambda _draft, tree, _output, _outcome: trees.append(tree),
    )
    return trees
