"""Stands in for tfm_bench.engine in a server process: text and acceptance by a rule, no model, nothing to import."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

VOCAB, PER_ROUND = 4096, {"ar": 1, "dflash_chain": 2, "ddtree": 3, "tfm": 4}
ROUND_S = 0.002


@dataclass(frozen=True)
class Arm:
    method: str
    budget: int = 0
    expansion_width: int = 0


class Tokenizer:
    def decode(self, tokens, skip_special_tokens):
        """Separators of lines that do not separate lines of a stream."""
        return "a\u2028b\u0085c\x0b" * len(tokens)


@dataclass
class Stack:
    directory: Path = Path("scripted")
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    stop_ids: frozenset = frozenset()
    block_size: int = 8
    target: object = field(
        default_factory=lambda: SimpleNamespace(vocab_size=VOCAB, config=SimpleNamespace(max_position_embeddings=4096))
    )


def text_of(ids, temperature, seed, count):
    """What every method writes."""
    rule = random.Random(f"{list(ids)} {temperature} {seed}")
    return [rule.randrange(VOCAB) for _ in range(count)]


def generate(stack, ids, arm, *, temperature, seed, max_new_tokens, on_tokens):
    tokens = text_of(ids, temperature, seed, max_new_tokens)
    on_tokens(tokens[:1])
    for start in range(1, max_new_tokens, PER_ROUND[arm.method]):
        time.sleep(ROUND_S)
        on_tokens(tokens[start : start + PER_ROUND[arm.method]])
