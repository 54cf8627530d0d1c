"""Rounds of the engine on a stack with the shapes of a real one and random weights: what each stage costs.

The loop, the kernels, the caches and the clock are those of every other measurement. Only what random weights would
spoil is made up: trees get a shape that real ones have, and of every tree as many drafts are accepted as configured,
after the same draws.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from tfm_bench.config import STATE_STORING, LatencySettings, expansion_width
from tfm_bench.engine import BUILDERS, Arm, Builder, Draft, Stack, generate, with_graphs
from tfm_bench.generation import Generation
from tfm_bench.latency_config import GdnVerify, LatencyRun
from tfm_bench.measure.device_lock import device_lock
from tfm_bench.measure.files import require_disk, write_text
from tfm_bench.measure.latency_records import LatencyRecord, Stage
from tfm_bench.measure.progress import with_progress
from tfm_bench.measure.provenance import Provenance, collect_provenance
from tfm_bench.models.capacity import Capacity
from tfm_bench.models.graphed_target import GraphedTarget
from tfm_bench.models.memory_plan import available_memory, memory_plan, plan_table, require_memory
from tfm_bench.random_stack import all_layers, random_stack, stack_configs
from tfm_bench.tree import TokenTree
from tfm_bench.verification.rules import Rule
from tfm_bench.verification.sample_match import Acceptance, KeyedNoise, draw, draw_rows

VERSION = 1
DISK_MEGABYTES = 10
TEMPERATURE = 1.0
WARM_ROUNDS = 2
STAGES: tuple[Stage, ...] = get_args(Stage)

Samples = dict[Stage, list[float]]


class LatencyArm(NamedTuple):
    """An arm, and the method by which its Gated-DeltaNet layers verify."""

    arm: Arm
    gdn_verify: GdnVerify


def latency_cell(settings: LatencySettings, output: Path) -> None:
    """Measure every arm and write its records, one JSON line per stage, to `output`.

    Waits while another process measures on the device. An arm that does not fit into its memory says so, without time;
    a stack that does not is a UserError with the number of GB missing, before anything is made.
    """
    require_disk(output, DISK_MEGABYTES)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device_lock(device.type):
        torch.set_num_threads(settings.threads)
        provenance, latency = collect_provenance(device), settings.latency
        _announce_memory(latency, device)
        start = time.monotonic()
        stack = random_stack(latency.shapes, layers=latency.layers, dtype=getattr(torch, latency.dtype), device=device)
        stack = with_graphs(stack, _capacity(latency, stack.block_size)) if device.type == "cuda" else stack
        print(f"latency: stack made after {time.monotonic() - start:.1f} s", file=sys.stderr)
        records = list(_measure(stack, settings, provenance))
    write_text(output, "".join(record.model_dump_json() + "\n" for record in records))


def _announce_memory(latency: LatencyRun, device: torch.device) -> None:
    """Prints the memory plan, with the states that the greediest method stores; refuses what does not fit."""
    configs = stack_configs(latency.shapes, latency.layers)
    greediest = next((method for method in latency.gdn_verify if method in STATE_STORING), "fused")
    room = _capacity(latency, configs.drafter.block_size)
    plan = memory_plan(configs, getattr(torch, latency.dtype), room, gdn_verify=greediest)
    print(plan_table(plan), end="", file=sys.stderr)
    if device.type == "cuda":
        require_memory(plan, torch.cuda.mem_get_info()[0], torch.cuda.get_device_name())
    elif (free := available_memory()) is not None:
        require_memory(plan, free, "this machine")


def latency_arms(config: LatencyRun, block_size: int) -> list[LatencyArm]:
    """Plain decoding, the chain, and at every budget DDTree and Weaver trees of every width that is not above it.

    Every way to verify runs once per budget, with the Weaver tree of the automatic width; the others vary one thing.
    """
    first, chain = config.gdn_verify[0], block_size - 1
    arms = [LatencyArm(Arm("ar"), first), LatencyArm(Arm("dflash_chain", budget=chain), first)]
    arms += [LatencyArm(Arm("ddtree", budget=budget), first) for budget in config.budgets]
    widths: list[int | Literal["auto"]] = ["auto", *config.expansion_widths]
    for budget, width in product(config.budgets, widths):
        nodes = expansion_width(width, budget)
        methods = config.gdn_verify if width == "auto" else [first]
        arms += [LatencyArm(Arm("tfm", budget=budget, expansion_width=nodes), method) for method in methods]
    return [arm for arm in dict.fromkeys(arms) if arm.arm.expansion_width <= max(arm.arm.budget, 1)]


def latency_tree(width: int, horizon: int) -> list[int]:
    """Parents of a tree of `width` nodes: a spine as deep as drafts go, then siblings level by level, two per node.

    Drafted trees of 64 nodes reach the drafter's horizon and have most of their nodes near the anchor.
    """
    spine = min(width - 1, horizon)
    parents, depths = [-1, *range(spine)], list(range(spine + 1))
    candidates = iter(range(width))
    while len(parents) < width:
        node = next(candidates)
        for _ in range(min(2, width - len(parents)) if depths[node] < horizon else 0):
            parents.append(node)
            depths.append(depths[node] + 1)
    return parents


def _measure(stack: Stack, settings: LatencySettings, provenance: Provenance) -> Iterator[LatencyRecord]:
    """Arms take turns: every one once for warmth, then `repeats` times with and without inner timers."""
    arms, latency = latency_arms(settings.latency, stack.block_size), settings.latency
    reasons: dict[LatencyArm, str] = {}
    # Once per method, as graphs belong to the target that recorded them.
    stacks = {method: _verified_by(stack, method) for method in latency.gdn_verify}
    samples: dict[LatencyArm, Samples] = {arm: {stage: [] for stage in STAGES} for arm in arms}
    for repeat, arm in with_progress(list(product(range(-1, latency.repeats), arms)), "latency", unit="runs"):
        if arm in reasons:
            continue
        try:
            _run(stacks[arm.gdn_verify], arm, latency, samples[arm], warm=repeat < 0)
        except torch.OutOfMemoryError as error:
            reasons[arm] = str(error).partition("\n")[0]
            _forget(stacks[arm.gdn_verify])
    for arm, stage in product(arms, STAGES):
        yield _record(stacks[arm.gdn_verify], arm, stage, samples[arm][stage], reasons.get(arm), settings, provenance)


def _run(stack: Stack, arm: LatencyArm, latency: LatencyRun, samples: Samples, *, warm: bool) -> None:
    """One generation with inner timers and one without; times of a warm-up are dropped."""
    prepared = _prepared(stack, accepted_drafts(arm.arm, latency))
    if warm:
        _generate(prepared, arm, latency, WARM_ROUNDS, staged=False)
        return
    stages = _generate(prepared, arm, latency, latency.rounds, staged=True).round_stage_ms
    assert stages is not None
    for stage in STAGES[:-1]:
        samples[stage] += stages[stage]
    whole = _generate(prepared, arm, latency, latency.rounds, staged=False)
    samples["round"].append(whole.decode_ms / len(whole.rounds))


def _generate(stack: Stack, arm: LatencyArm, latency: LatencyRun, rounds: int, *, staged: bool) -> Generation:
    vocab = stack.target.vocab_size
    prompt = torch.randint(0, vocab, (latency.context,), generator=torch.Generator().manual_seed(0)).tolist()
    # The first token comes from the prefill.
    tokens = 1 + rounds * (accepted_drafts(arm.arm, latency) + 1)
    return generate(stack, prompt, arm.arm, temperature=TEMPERATURE, seed=0, max_new_tokens=tokens, staged=staged)


def accepted_drafts(arm: Arm, latency: LatencyRun) -> int:
    """Drafts that every round of the arm is made to accept."""
    return 0 if arm.method == "ar" else latency.accepted


def _prepared(stack: Stack, accepted: int) -> Stack:
    """The stack with builders whose trees have a known shape, and a walk that accepts so many drafts."""
    builders = {method: _shaped(builder) for method, builder in BUILDERS.items()}
    return replace(stack, builders=builders, rule=Rule("forced", _Forced(accepted)))


def _forget(stack: Stack) -> None:
    """Gives up the memory of a run that found too little, so that it fails no arm but its own."""
    if isinstance(stack.target, GraphedTarget):
        stack.target.forget()
        torch.cuda.empty_cache()


def _verified_by(stack: Stack, method: str) -> Stack:
    target = stack.target
    return stack if method == target.gdn_verify else replace(stack, target=target.with_gdn_verify(method))


def _capacity(latency: LatencyRun, block_size: int) -> Capacity:
    """What the longest of all sequences needs."""
    return Capacity(
        latency.context + 1 + latency.rounds * (latency.accepted + 1), max(*latency.budgets, block_size) + 1
    )


def _shaped(builder: Builder) -> Builder:
    """The builder, whose tree is then hung up anew: random weights give trees of one level. A chain stays one."""

    def build(stack: Stack, arm: Arm, draft: Draft) -> TokenTree:
        tree = builder(stack, arm, draft)
        if arm.method == "dflash_chain":
            return tree
        parents = torch.tensor(latency_tree(tree.width, stack.block_size - 1))
        return replace(tree, parents=parents, size=tree.width)

    return build


class _Forced(NamedTuple):
    """Draws what sample_match draws on this device, and goes on down the spine whatever that was."""

    accepted: int

    def __call__(
        self, tree: TokenTree, logits: Tensor, *, temperature: float, noise: KeyedNoise, start: int
    ) -> Acceptance:
        path = list(range(self.accepted + 1))
        if logits.is_cuda:
            drawn = draw_rows(logits, tree.depths, temperature, noise, start + 1)
        else:
            drawn = [draw(logits[node], temperature, noise, start + node + 1) for node in path]
        return Acceptance(path, drawn[self.accepted])


def _record(
    stack: Stack,
    arm: LatencyArm,
    stage: Stage,
    samples: list[float],
    reason: str | None,
    settings: LatencySettings,
    provenance: Provenance,
) -> LatencyRecord:
    target, latency = stack.target, settings.latency
    return LatencyRecord(
        method=arm.arm.method,
        budget=arm.arm.budget,
        expansion_width=arm.arm.expansion_width,
        gdn_verify=arm.gdn_verify,
        verify_width=arm.arm.budget + 1,
        stage=stage,
        status="ok" if reason is None else "failed",
        reason=reason,
        samples_ms=samples if reason is None else [],
        target_layers=latency.layers,
        all_layers=all_layers(latency.shapes),
        accepted_drafts=accepted_drafts(arm.arm, latency),
        launch="graphs" if isinstance(target, GraphedTarget) and target.records else "eager",
        gdn_implementation=target.gdn_implementation,
        weaver_implementation=stack.weaver.implementation,
        settings=settings,
        provenance=provenance,
    )
