"""Stands in for tfm_bench.engine: deterministic text, known acceptance and known times, no model."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tfm_bench.generation import Generation, Round

DRAFTS_PER_ROUND = {"ar": 0, "dflash_chain": 1, "ddtree": 2, "tfm": 3}
ROUND_MS = {"ar": 10.0, "dflash_chain": 12.0, "ddtree": 15.0, "tfm": 16.0}
SLEEP_S = float(os.environ.get("FAKE_ENGINE_SLEEP_S", "0"))  # of every generation, to be killed in
STAGES = ("draft", "tree", "verify", "accept", "commit", "other")


@dataclass(frozen=True)
class Arm:
    method: str
    budget: int = 0
    expansion_width: int = 0
    variant: str = "default"


class Draft:
    """A name that signatures of variants need."""


class Tokenizer:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@dataclass
class Rule:
    name: str = "sample_match"


@dataclass
class Stack:
    directory: Path
    tokenizer: Tokenizer
    stop_ids: list[int]
    block_size: int = 16
    gdn_implementation: str = "fake"
    device: str = "cpu"
    weaver_implementation: str = "fake"
    rule: Rule = field(default_factory=lambda: Rule())

    @classmethod
    def load(cls, directory: Path, **_: object) -> Stack:
        return cls(directory, Tokenizer(), [0])


def generate(
    stack: Stack,
    prompt_ids: list[int],
    arm: Arm,
    *,
    temperature: float,
    seed: int,
    max_new_tokens: int,
    staged: bool = False,
    observer: object = None,
) -> Generation:
    time.sleep(SLEEP_S)
    text = random.Random(f"{prompt_ids} {seed} {temperature}")
    drafts, round_ms = DRAFTS_PER_ROUND[arm.method], ROUND_MS[arm.method]
    stage_ms = dict.fromkeys(STAGES, round_ms / len(STAGES)) if staged else None
    width = arm.budget + 1
    full, rest = divmod(max_new_tokens - 1, drafts + 1)
    rounds = [Round(drafts, width, drafts, min(drafts, 1), stage_ms)] * full
    if rest:
        rounds = [*rounds, Round(rest - 1, width, drafts, min(rest - 1, 1), stage_ms)]
    tokens = [text.randrange(1, 4096) for _ in range(max_new_tokens)]
    return Generation(tokens, rounds, width, 5.0, len(rounds) * round_ms)
