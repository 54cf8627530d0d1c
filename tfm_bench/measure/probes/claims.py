"""Claims about what a round does, watched while real rounds run: one observation per prompt and temperature.

Columns: dataset, prompt, temperature, budget; trees and trees_as_claimed (Weaver calls of the torch builder, counted
against ceil(budget / width)); rounds and rounds_unwritten (verifications after which every committed key, value, state
and window is bit for bit what it was before); gdn_ms (Gated-DeltaNet verification of all layers, in a second run that
watches nothing else) of decode_ms.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm_bench.ablations import ProbeSettings
from tfm_bench.config import expansion_width
from tfm_bench.drafting.best_first import Children, Node, grow_tree
from tfm_bench.drafting.weaver_tree import TorchExpansion
from tfm_bench.engine import Arm, Draft, Stack, generate
from tfm_bench.measure.probe_records import Observation
from tfm_bench.measure.progress import with_progress
from tfm_bench.models.cache import TargetState
from tfm_bench.models.target import Target, TargetOutput
from tfm_bench.models.target_layers import GdnLayer
from tfm_bench.prompts.datasets import encode_for, load_prompts
from tfm_bench.tree import TokenTree

VERSION = 1
PROMPTS, TEMPERATURES = 3, (0.0, 1.0)


@dataclass
class Watch:
    """What was counted in the rounds of one generation."""

    trees: int = 0
    trees_as_claimed: int = 0
    rounds: int = 0
    rounds_unwritten: int = 0
    gdn_s: float = field(default=0.0)


def probe(stack: Stack, settings: ProbeSettings) -> Iterator[Observation]:
    """Decodes test prompts with `tfm` at the largest of the ablations' budgets."""
    ablations = settings.ablations
    budget = max(ablations.budgets)
    arm = Arm("tfm", budget, expansion_width(settings.expansion_width, budget))
    prompts = load_prompts(ablations.dataset, "test", Path(settings.stack.path) / "prompts", PROMPTS)
    jobs = [(temperature, index) for temperature in TEMPERATURES for index in range(len(prompts))]
    for temperature, index in with_progress(jobs, "claims"):
        options = {"temperature": temperature, "seed": settings.seed, "max_new_tokens": ablations.max_new_tokens}
        place = {"dataset": ablations.dataset, "prompt": index, "temperature": temperature, "budget": budget}
        ids = encode_for(settings.stack, stack.tokenizer, prompts[index])
        yield place | _observed(stack, arm, ids, options)


def _observed(stack: Stack, arm: Arm, ids: list[int], options: dict[str, Any]) -> Observation:
    watch = Watch()
    builders = dict(stack.builders) | {"tfm": _counting(watch)}
    generate(replace(stack, target=_unwritten(stack.target, watch), builders=builders), ids, arm, **options)
    timed = generate(replace(stack, target=_timed(stack.target, watch)), ids, arm, **options)
    return {
        "trees": watch.trees,
        "trees_as_claimed": watch.trees_as_claimed,
        "rounds": watch.rounds,
        "rounds_unwritten": watch.rounds_unwritten,
        "gdn_ms": watch.gdn_s * 1e3,
        "decode_ms": timed.decode_ms,
    }


def _counting(watch: Watch) -> Callable[[Stack, Arm, Draft], TokenTree]:
    """A builder of Weaver trees in torch that counts its calls."""

    def build(stack: Stack, arm: Arm, draft: Draft) -> TokenTree:
        calls, depths = 0, min(draft.hidden.shape[0], stack.weaver.weaver.config.K)
        score = TorchExpansion(
            stack.weaver, draft.target_hidden, draft.hidden[:depths], draft.logits[:depths].float(), arm.budget
        )

        def expand(nodes: list[Node]) -> Children:
            nonlocal calls
            calls += 1
            return score(nodes)

        tree = grow_tree(draft.anchor, expand, budget=arm.budget, expansion_width=arm.expansion_width, max_depth=depths)
        watch.trees += 1
        watch.trees_as_claimed += calls == math.ceil(arm.budget / arm.expansion_width)
        return tree

    return build


def _unwritten(target: Target, watch: Watch) -> Target:
    """A target that compares what is committed before and after every verification."""
    watched = copy.copy(target)

    def verify(state: TargetState, tree: TokenTree) -> TargetOutput:
        before = [part.clone() for part in committed(state)]
        output = target.verify(state, tree)
        watch.rounds += 1
        watch.rounds_unwritten += all(map(torch.equal, before, committed(state)))
        return output

    watched.verify = verify  # type: ignore[method-assign]
    return watched


def committed(state: TargetState) -> list[Tensor]:
    """Keys, values, states and windows of the committed tokens, and what hides the rest."""
    rows = slice(state.scratch, state.scratch + state.length)
    return [state.keys[:, :, rows], state.values[:, :, rows], state.recurrent, state.conv, state.hidden_context]


def _timed(target: Target, watch: Watch) -> Target:
    """A target that adds up the time of its Gated-DeltaNet verifications."""
    timed = copy.copy(target)
    timed.layers = [_timed_layer(layer, watch) if isinstance(layer, GdnLayer) else layer for layer in target.layers]
    # The prompt's chunks go through the same layers: only rounds count.
    timed.prefill = target.prefill  # type: ignore[method-assign]
    return timed


def _timed_layer(layer: GdnLayer, watch: Watch) -> GdnLayer:
    timed = copy.copy(layer)

    def verify(**inputs: Any) -> Any:
        start = _now(inputs["q"])
        found = layer.verify(**inputs)
        watch.gdn_s += _now(inputs["q"]) - start
        return found

    timed.verify = verify
    return timed


def _now(tensor: Tensor) -> float:
    """Seconds, after everything queued on a GPU has run."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()
