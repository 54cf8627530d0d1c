"""Stands in for tfm_bench.engine: deterministic text, known acceptance and known times, no model and no torch."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from pathlib import Path

DRAFTS_PER_ROUND = {"ar": 0, "dflash_chain": 1, "ddtree": 2, "tfm": 3}
ROUND_MS = {"ar": 10.0, "dflash_chain": 12.0, "ddtree": 15.0, "tfm": 16.0}
STAGES = ("draft", "tree", "verify", "accept", "commit", "other")


@dataclass(frozen=True)
class Arm:
    method: str
    budget: int = 0
    expansion_width: int = 0


@dataclass
class Generation:
    tokens: list[int]
    accepted: list[int]
    verify_width: int
    prefill_ms: float
    decode_ms: float
    stage_ms: dict[str, float] | None


class Tokenizer:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@dataclass
class Weaver:
    implementation: str = "fake"


@dataclass
class Stack:
    name: str
    tokenizer: Tokenizer
    stop_ids: list[int]
    block_size: int = 16
    gdn_implementation: str = "fake"
    device: str = "cpu"
    weaver: Weaver = field(default_factory=lambda: Weaver())

    @classmethod
    def load(cls, directory: Path, *, dtype: str, gdn_verify: str, commit: str) -> Stack:
        return cls(directory.name, Tokenizer(), [0])


def generate(
    stack: Stack,
    prompt_ids: list[int],
    arm: Arm,
    *,
    temperature: float,
    seed: int,
    max_new_tokens: int,
    staged: bool = False,
) -> Generation:
    text = random.Random(f"{prompt_ids} {seed} {temperature}")
    drafts = DRAFTS_PER_ROUND[arm.method]
    rounds = math.ceil((max_new_tokens - 1) / (drafts + 1))
    decode_ms = rounds * ROUND_MS[arm.method]
    stage_ms = dict.fromkeys(STAGES, decode_ms / len(STAGES)) if staged else None
    tokens = [text.randrange(1, 4096) for _ in range(max_new_tokens)]
    return Generation(tokens, [drafts] * rounds, arm.budget + 1, 5.0, decode_ms, stage_ms)
