"""One decode loop for all methods: draft, tree, verify, accept, commit.

Plain decoding is a tree that holds the anchor alone, so every method shares the target's kernels, caches, sampling and
clock, and no baseline runs slower code than the method that it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_bench.errors import UserError
from tfm_bench.generation import Generation, Round, StageClock
from tfm_bench.models.dflash_runtime import DrafterState
from tfm_bench.models.target import TargetOutput
from tfm_bench.stack import BUILDERS, Arm, Builder, Draft, Stack, with_graphs
from tfm_bench.tree import TokenTree
from tfm_bench.verification.sample_match import Acceptance, KeyedNoise, draw

__all__ = ["BUILDERS", "Arm", "Builder", "Draft", "Generation", "Observer", "Stack", "generate", "with_graphs"]

Observer = Callable[[Draft | None, TokenTree, TargetOutput, Acceptance], None]


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
