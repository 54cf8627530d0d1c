"""One decode loop for all methods: draft, tree, verify, accept, commit.

Plain decoding is a tree that holds the anchor alone, so every method shares the target's kernels, caches, sampling and
clock, and no baseline runs slower code than the method that it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
from tfm_bench.generation import Generation, Round, StageClock
from tfm_bench.models.capacity import CAPACITY, Capacity
from tfm_bench.models.device import choose_device
from tfm_bench.models.dflash_runtime import DrafterRuntime, DrafterState
from tfm_bench.models.graphed_drafter import GraphedDrafter
from tfm_bench.models.graphed_target import GraphedTarget
from tfm_bench.models.graphs import CudaGraphs
from tfm_bench.models.target import Target, TargetOutput
from tfm_bench.models.weaver_files import load_weaver
from tfm_bench.stack_parts import announce_memory, check_fit, check_gdn, load_tokenizer
from tfm_bench.tree import TokenTree
from tfm_bench.verification.rules import SAMPLE_MATCH, Rule
from tfm_bench.verification.sample_match import Acceptance, KeyedNoise, draw


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
Observer = Callable[["Draft | None", TokenTree, TargetOutput, Acceptance], None]


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
            announce_memory(directory, weaver, kind, gdn_verify or "fused", capacity)
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


@torch.inference_mode()
def generate(
    stack: Stack,
    prompt_ids: Sequence[int],
    arm: Arm,
    *,
    temperature: float,
    seed: int,
    max_new_tokens: int,
    staged: bool = False,
    observer: Observer | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
) -> Generation:
    """Decodes one prompt; with sample_match the tokens depend on prompt, temperature and seed, never on the arm.

    observer: sees the draft (None in plain decoding), tree, target output and acceptance of every round, before the
    commit; its time counts as accept. on_tokens is handed what is new, after prefill and after every round; its own
    time counts as decoding. What either raises ends the generation. Raises UserError for an empty prompt or
    max_new_tokens below 1.
    """
    if not prompt_ids or max_new_tokens < 1:
        raise UserError(f"found {len(prompt_ids)} prompt tokens and max_new_tokens {max_new_tokens}; 1 is the least")
    sequence = _Sequence(stack, arm, len(prompt_ids) + max_new_tokens, observer)
    noise = KeyedNoise(seed)
    clock = StageClock(staged, stack.device)
    start = clock.now()
    tokens = [sequence.prefill(prompt_ids, temperature, noise)]
    rounds: list[tuple[TokenTree, int]] = []  # tree and drafts kept; described once the clock has stopped
    after_prefill = clock.start()
    if on_tokens is not None:
        on_tokens(list(tokens))
    while not _finished(tokens, stack.stop_ids, max_new_tokens):
        clock.begin_round()
        tree, emitted = sequence.round(tokens[-1], temperature, noise, clock)
        kept = _up_to_stop(emitted, stack.stop_ids)[: max_new_tokens - len(tokens)]
        rounds.append((replace(tree), len(kept) - 1))  # a copy, without the structure that it has cached
        tokens += kept
        if on_tokens is not None:
            on_tokens(kept)
        clock.lap("other")
    decode_ms = (clock.stop() - after_prefill) * 1e3
    stages = clock.rounds if staged else [None] * len(rounds)
    return Generation(
        tokens=tokens,
        rounds=_describe(rounds, tokens, stages),
        verify_width=sequence.verify_width,
        prefill_ms=(after_prefill - start) * 1e3,
        decode_ms=decode_ms,
    )


def _describe(
    rounds: list[tuple[TokenTree, int]], tokens: list[int], stages: Sequence[dict[str, float] | None]
) -> list[Round]:
    """The rounds that emitted `tokens`, of which the first one came from prefill."""
    described, start = [], 1
    for (tree, accepted), stage_ms in zip(rounds, stages, strict=True):
        described.append(Round.of(tree, accepted, tokens[start:], stage_ms))
        start += accepted + 1
    return described


def _finished(tokens: list[int], stop_ids: Collection[int], max_new_tokens: int) -> bool:
    return tokens[-1] in stop_ids or len(tokens) >= max_new_tokens


def _up_to_stop(tokens: list[int], stop_ids: Collection[int]) -> list[int]:
    """tokens up to and including the first stop id."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens


class _Round(NamedTuple):
    """A drafted tree, and the tokens that the round emits after the anchor, the bonus last."""

    tree: TokenTree
    emitted: list[int]


class _Sequence:
    """Caches of one sequence and the rounds that advance it."""

    def __init__(self, stack: Stack, arm: Arm, length: int, observer: Observer | None) -> None:
        self.stack, self.arm, self.observer = stack, arm, observer
        self.drafts = arm.method != "ar" and arm.budget > 0
        horizon = stack.block_size - 1
        # Depth, not budget, bounds what the last round can emit beyond the limit.
        room = length + (horizon if self.drafts else 0)
        self.verify_width = 1
        if self.drafts:
            self.verify_width += min(arm.budget, horizon) if arm.method == "dflash_chain" else arm.budget
        self.state = stack.target.new_state(room, self.verify_width)
        self.context: DrafterState | None = stack.drafter.new_state(room) if self.drafts else None
        self.block: Tensor | None = self._masked_block() if self.drafts else None
        self.target_hidden: Tensor | None = None
        stack.target.prepare(self.state, self.verify_width, horizon + 1)
        if self.context is not None:
            stack.drafter.prepare(self.context)

    def _masked_block(self) -> Tensor:
        """Embeddings [block, H] of [anchor, MASK, ...]; row 0 is written anew every round."""
        config = self.stack.drafter.config
        return self.stack.target.embed(torch.full((config.block_size,), config.mask_token_id))

    def prefill(self, prompt_ids: Sequence[int], temperature: float, noise: KeyedNoise) -> int:
        """Commits the prompt and draws the first token, the anchor of the first round."""
        output = self.stack.target.prefill(self.state, torch.tensor(prompt_ids))
        self._remember(output.taps, output.hidden[-1], start=0)
        return draw(output.logits[-1], temperature, noise, len(prompt_ids))

    def round(self, anchor: int, temperature: float, noise: KeyedNoise, clock: StageClock) -> _Round:
        """One round."""
        draft, tree = self._propose(anchor, noise, clock)
        output = self.stack.target.verify(self.state, tree)
        clock.lap("verify")
        accept = self.stack.rule.accept
        outcome = accept(tree, output.logits, temperature=temperature, noise=noise, start=self.state.length)
        if self.observer is not None:
            self.observer(draft, tree, output, outcome)
        emitted = [*tree.tokens[outcome.path[1:]].tolist(), outcome.bonus]
        clock.lap("accept")
        self._commit(output, outcome.path)
        clock.lap("commit")
        return _Round(tree, emitted)

    def _propose(self, anchor: int, noise: KeyedNoise, clock: StageClock) -> tuple[Draft | None, TokenTree]:
        if self.context is None or self.block is None:
            return None, TokenTree.chain([anchor], [0.0])
        assert self.target_hidden is not None, "prefill comes first"
        target, drafter = self.stack.target, self.stack.drafter
        self.block[0] = target.embed(torch.tensor([anchor]))[0]
        hidden = drafter.draft(self.context, self.block, self.state.length)
        logits = target.lm_head(hidden)
        clock.lap("draft")
        draft = Draft(anchor, self.state.length, self.target_hidden, hidden, logits, noise)
        tree = self.stack.builders[self.arm.method](self.stack, self.arm, draft)
        clock.lap("tree")
        return draft, tree

    def _commit(self, output: TargetOutput, path: list[int]) -> None:
        start = self.state.length
        rows = self.stack.target.commit(self.state, path)
        self._remember(output.taps.index_select(0, rows), output.hidden[path[-1]], start)

    def _remember(self, taps: Tensor, hidden: Tensor, start: int) -> None:
        """Feeds tokens committed from position `start` on to the drafter's context; hidden [H] is the last one's."""
        self.target_hidden = hidden
        if self.context is not None:
            self.stack.drafter.append(self.context, taps, start)
