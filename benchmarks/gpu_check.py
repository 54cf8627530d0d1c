"""What tests without a GPU cannot see: whether replayed CUDA graphs emit the tokens of the same kernels without graphs.

    python benchmarks/gpu_check.py

Decodes prompts of the shipped stack on the GPU, one after the other in one process, by every method, in both dtypes, at
both temperatures. Exit code 1 where tokens differ. Takes a minute; run it before anything is measured on a new GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.measure.progress import with_progress
from tfm_bench.models.capacity import Capacity
from tfm_bench.prompts.datasets import encode_prompt, load_prompts

STACK = Path(__file__).parents[1] / "checkpoints" / "tiny"
ARMS = (
    Arm("ar"),
    Arm("dflash_chain", budget=15),
    Arm("ddtree", budget=64),
    Arm("tfm", budget=16, expansion_width=1),
    Arm("tfm", budget=64, expansion_width=4),
)
PROMPTS, TOKENS = 3, 96
ROOM = Capacity(length=512, width=65)


def differences(
    one: Stack, other: Stack, prompts: Sequence[list[int]], arms: Sequence[Arm], temperature: float, tokens: int
) -> Iterator[str]:
    """A line for each arm and prompt on which two stacks emit different tokens; each also against its own AR."""
    plain: dict[int, list[int]] = {}
    for arm in arms:
        for index, ids in enumerate(prompts):
            options = {"temperature": temperature, "seed": index, "max_new_tokens": tokens}
            found, expected = (generate(stack, ids, arm, **options).tokens for stack in (other, one))
            place = f"{arm.method}, budget {arm.budget}, T = {temperature:g}, prompt {index}"
            if found != expected:
                yield f"{place}: differs from token {_first(found, expected)} on"
            if expected != plain.setdefault(index, expected):
                yield f"{place}: plain decoding emits other tokens from {_first(expected, plain[index])} on"


def _first(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def main() -> int:
    """0 where all tokens are equal; in bfloat16 only graphs count, as trees of other widths round otherwise."""
    if not torch.cuda.is_available():
        print("no GPU here", file=sys.stderr)
        return 2
    lines: list[str] = []
    runs = [(dtype, temperature) for dtype in ("float32", "bfloat16") for temperature in (0.0, 1.0)]
    for dtype, temperature in with_progress(runs, "gpu_check", unit="runs"):
        options = {"dtype": dtype, "gdn_verify": "fused", "commit": "replay", "device": "cuda", "capacity": ROOM}
        eager, graphed = (Stack.load(STACK, **options, graphs=graphs) for graphs in (False, True))
        assert eager.tokenizer is not None
        prompts = [encode_prompt(eager.tokenizer, p) for p in load_prompts("math", "dev", STACK / "prompts", PROMPTS)]
        found = differences(eager, graphed, prompts, ARMS, temperature, TOKENS)
        lines += [f"{dtype}: {line}" for line in found if dtype == "float32" or "differs" in line]
    print("\n".join(lines) or f"all tokens are equal on {torch.cuda.get_device_name()}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
