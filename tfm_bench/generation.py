"""What a decode leaves: tokens, rounds and times; and the clock that splits the time of a round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch

from tfm_bench.config import STAGES
from tfm_bench.tree import TokenTree


@dataclass(frozen=True)
class Round:
    """One round. accepted: tokens emitted less one; a stop id or the length limit may cut the last round short.

    verify_width: rows that the target computed; depth: of the deepest drafted node; spine: drafts that the tree's
    spine alone, from the anchor always the best-scored child, would have had accepted, judged by the text and not by
    the round's acceptance. stage_ms, of a staged run: milliseconds by STAGES and "other".
    """

    accepted: int
    verify_width: int
    depth: int
    spine: int
    stage_ms: dict[str, float] | None = None

    @classmethod
    def of(cls, tree: TokenTree, accepted: int, text: Sequence[int], stage_ms: dict[str, float] | None) -> Round:
        """A round that verified `tree` and kept `accepted` drafts. text: all that was emitted after the anchor.

        `text` goes on beyond the round: a spine that matches more of it than the round accepted gives away an
        acceptance that stopped too early.
        """
        # The last token never counts as a draft, as in `accepted`.
        return cls(accepted, tree.width, _depth(tree), _common_prefix(_spine(tree), text[:-1]), stage_ms)


@dataclass(frozen=True)
class Generation:
    """What one prompt gave. tokens: everything emitted, the first token (drawn after prefill) and a stop id included.

    Times in milliseconds: prefill_ms up to the first token, the drafter's context included; decode_ms the rounds after
    it. verify_width: rows that the caches were made for, the most of any round.
    """

    tokens: list[int]
    rounds: list[Round]
    verify_width: int
    prefill_ms: float
    decode_ms: float

    @property
    def accepted(self) -> list[int]:
        """Per round, tokens emitted less one."""
        return [done.accepted for done in self.rounds]

    @property
    def round_stage_ms(self) -> dict[str, list[float]] | None:
        """Of a staged run: milliseconds of each stage, per round."""
        stages = [done.stage_ms for done in self.rounds if done.stage_ms is not None]
        if not stages:
            return None
        return {stage: [of_round[stage] for of_round in stages] for stage in (*STAGES, "other")}

    @property
    def stage_ms(self) -> dict[str, float] | None:
        """Of a staged run: milliseconds of each stage, summed over the rounds; together they are decode_ms."""
        stages = self.round_stage_ms
        return {stage: sum(values) for stage, values in stages.items()} if stages else None


class StageClock:
    """Splits the time of a staged run; an unstaged run only ever reads the clock at its ends."""

    def __init__(self, staged: bool, device: torch.device) -> None:
        self.staged, self.device = staged, device
        self.rounds: list[dict[str, float]] = []
        self._last = 0.0

    def now(self) -> float:
        """Seconds, after everything queued on a GPU has run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def start(self) -> float:
        """Seconds now; the first lap begins here."""
        self._last = self.now()
        return self._last

    def stop(self) -> float:
        """Seconds at the end of the last lap, or now where there are no laps."""
        return self._last if self.staged else self.now()

    def begin_round(self) -> None:
        """The laps that follow belong to a new round."""
        if self.staged:
            self.rounds.append(dict.fromkeys((*STAGES, "other"), 0.0))

    def lap(self, stage: str) -> None:
        """Books the time since the last lap on `stage`."""
        if self.staged:
            now = self.now()
            self.rounds[-1][stage] += (now - self._last) * 1e3
            self._last = now


def _depth(tree: TokenTree) -> int:
    """Of the deepest node that is no padding, straight from the parents: the structure costs more than that."""
    depths = [0]
    for parent in tree.parents[1 : tree.size].tolist():
        depths.append(depths[parent] + 1)
    return max(depths)


def _spine(tree: TokenTree) -> list[int]:
    """Tokens of the drafts that are, from the anchor down, the best-scored child of their parent."""
    parents, scores, tokens = tree.parents.tolist(), tree.edge_logprobs.tolist(), tree.tokens.tolist()
    best: dict[int, int] = {}
    for node in range(1, tree.size):
        if parents[node] not in best or scores[node] > scores[best[parents[node]]]:
            best[parents[node]] = node
    spine, node = [], 0
    while node in best:
        node = best[node]
        spine.append(tokens[node])
    return spine


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
