"""A stack, what its rounds are drafted by, and the arms that decode on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tfm_bench.config import DEFAULT_VARIANT, METHODS
from tfm_bench.drafting.chain import build_chain
from tfm_bench.drafting.ddtree import build_ddtree
from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.errors import UserError
from tfm_bench.models.capacity import CAPACITY, Capacity
from tfm_bench.models.device import choose_device
from tfm_bench.models.dflash_runtime import DrafterRuntime
from tfm_bench.models.graphed_drafter import GraphedDrafter
from tfm_bench.models.graphed_target import GraphedTarget
from tfm_bench.models.graphs import CudaGraphs
from tfm_bench.models.target import Target
from tfm_bench.models.weaver_files import load_weaver
from tfm_bench.stack_parts import announce_memory, check_fit, check_gdn, load_tokenizer
from tfm_bench.tree import TokenTree
from tfm_bench.verification.rules import SAMPLE_MATCH, Rule
from tfm_bench.verification.sample_match import KeyedNoise


@dataclass(frozen=True)
class Arm:
    """A method with its settings. budget: draft nodes without the anchor; expansion_width: nodes per Weaver call.

    variant: what an ablation changes in the stack for this arm, a name that tfm_bench.variants knows.
    """

    method: str
    budget: int = 0
    expansion_width: int = 0
    variant: str = DEFAULT_VARIANT

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"method: found {self.method!r}; accepted are {', '.join(METHODS)}")
        if self.budget < 0:
            raise UserError(f"budget: found {self.budget}; accepted is 0 or more")
        if self.method == "tfm" and self.expansion_width < 1:
            raise UserError(f"expansion_width: found {self.expansion_width}; tfm accepts 1 or more")


class Draft(NamedTuple):
    """What the tree of one round is built from.

    anchor: last emitted token, at absolute `position`; target_hidden [H] of the target where the anchor was drawn,
    after the final norm; hidden [D, H] and logits [D, V] of the drafter, row d for depth d + 1. noise: that of the
    target's draws; a builder that draws itself takes another seed.
    """

    anchor: int
    position: int
    target_hidden: Tensor
    hidden: Tensor
    logits: Tensor
    noise: KeyedNoise


Builder = Callable[["Stack", Arm, Draft], TokenTree]


def _build_weaver_tree(stack: Stack, arm: Arm, draft: Draft) -> TokenTree:
    width = min(arm.expansion_width, arm.budget)
    return stack.weaver.build(draft.anchor, draft.target_hidden, draft.hidden, draft.logits, arm.budget, width)


BUILDERS: Mapping[str, Builder] = {
    "dflash_chain": lambda _, arm, draft: build_chain(draft.anchor, draft.logits, arm.budget),
    "ddtree": lambda _, arm, draft: build_ddtree(draft.anchor, draft.logits, arm.budget),
    "tfm": _build_weaver_tree,
}


@dataclass(frozen=True)
class Stack:
    """A target with its drafter and Weaver, ready to decode one sequence at a time.

    directory: where it was loaded from; own_weaver: None for a stack that decodes without `tfm`; builders: method ->
    what builds its trees; rule: which drafts of a verified tree are accepted.
    """

    directory: Path
    target: Target
    drafter: DrafterRuntime
    own_weaver: WeaverRuntime | None
    tokenizer: PreTrainedTokenizerBase | None
    stop_ids: frozenset[int]
    builders: Mapping[str, Builder] = field(default_factory=lambda: BUILDERS)
    rule: Rule = SAMPLE_MATCH

    @property
    def block_size(self) -> int:
        """Rows that the drafter fills in one pass, the anchor's included."""
        return self.drafter.config.block_size

    @property
    def weaver(self) -> WeaverRuntime:
        """Raises UserError for a stack without one."""
        if self.own_weaver is None:
            raise UserError(f"method: found 'tfm'; {self.directory} has no Weaver, the other methods are accepted")
        return self.own_weaver

    @property
    def weaver_implementation(self) -> str:
        """What builds Weaver's trees: torch, compiled or triton; none for a stack without a Weaver."""
        return "none" if self.own_weaver is None else self.own_weaver.implementation

    @property
    def gdn_implementation(self) -> str:
        """What runs the target's Gated-DeltaNet layers: torch, compiled or triton."""
        return self.target.gdn_implementation

    @property
    def device(self) -> torch.device:
        """Where the target computes."""
        return self.target.device

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        dtype: str,
        gdn_verify: str | None,
        commit: str,
        with_weaver: bool = True,
        device: str = "cpu",
        graphs: bool = True,
        capacity: Capacity = CAPACITY,
    ) -> Stack:
        """Reads directory/{target,drafter,weaver}. Raises UserError for anything missing, damaged or misfit.

        gdn_verify: None for a target without Gated-DeltaNet layers, and only for such a one. device: auto, cpu or cuda;
        on a GPU the memory that sequences of `capacity` will take is printed first, and an error where it is not there;
        graphs: whether draft, verification and commit are replayed there from CUDA graphs.
        """
        kind, place = getattr(torch, dtype), choose_device(device)
        weaver = load_weaver(directory / "weaver", kind) if with_weaver else None
        if place.type == "cuda":
            announce_memory(directory, weaver, kind, (gdn_verify or "fused", commit), capacity)
        drafter = DrafterRuntime.from_pretrained(directory / "drafter", dtype=kind, device=place.type)
        target = Target.from_pretrained(
            directory / "target",
            dtype=kind,
            tap_layer_ids=drafter.config.target_layer_ids,
            gdn_verify=gdn_verify or "fused",
            commit=commit,
            device=place.type,
        )
        check_gdn(directory, target, gdn_verify)
        check_fit(directory, target, drafter, weaver)
        runtime = None
        if weaver is not None:
            runtime = WeaverRuntime(weaver.to(place), target.embedding, target.head.weight)
        tokenizer = load_tokenizer(directory / "target")
        stack = cls(directory, target, drafter, runtime, tokenizer, frozenset(target.stop_ids))
        return with_graphs(stack, capacity) if graphs and place.type == "cuda" else stack


def with_graphs(stack: Stack, capacity: Capacity) -> Stack:
    """The stack of a GPU that replays draft, verification and commit from CUDA graphs, for sequences of this capacity.

    It decodes one sequence at a time, and an observer has to copy what it wants to keep of a round's tensors.
    """
    # A pool each: what one leaves is read while the next one runs.
    room = capacity._replace(length=capacity.length + stack.block_size)
    target = GraphedTarget(stack.target, CudaGraphs(), room)
    return replace(stack, target=target, drafter=GraphedDrafter(stack.drafter, CudaGraphs(), room.length))
