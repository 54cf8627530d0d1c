"""How children per node and pool size bound a TfM tree where the target's text is uncertain: acceptance, no times.

The published Weaver expands 8 children per node from a pool of 512. On text with much entropy (chat at T = 1) a DDTree
may open more siblings than that. Writes JSON lines: one for DDTree, one per pool and children, on the same prompts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import torch

from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.measure.provenance import collect_provenance
from tfm_bench.models.weaver_files import load_weaver
from tfm_bench.prompts.datasets import Prompt, encode_prompt, load_prompts

SETTINGS = ((512, 8), (4096, 8), (512, 32), (4096, 32), (4096, 64))


def acceptance_length(stack: Stack, prompts: list[Prompt], arm: Arm, temperature: float) -> float:
    """Tokens per round over all prompts, up to 128 tokens each."""
    tokens = rounds = 0
    for seed, prompt in enumerate(prompts):
        ids = encode_prompt(stack.tokenizer, prompt)
        generation = generate(stack, ids, arm, temperature=temperature, seed=seed, max_new_tokens=128)
        tokens += len(generation.tokens) - 1
        rounds += len(generation.accepted)
    return round(tokens / rounds, 3)


def main() -> None:
    """Prints the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", type=Path, default=Path("checkpoints/tiny"))
    parser.add_argument("--dataset", default="chat")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--prompts", type=int, default=14)
    parser.add_argument("--budget", type=int, default=64)
    arguments = parser.parse_args()
    stack = Stack.load(arguments.stack, dtype="float32", gdn_verify="fused", commit="replay")
    weaver = load_weaver(arguments.stack / "weaver", torch.float32)
    prompts = load_prompts(arguments.dataset, "test", arguments.stack / "prompts", arguments.prompts)
    setting = {"dataset": arguments.dataset, "temperature": arguments.temperature, "prompts": len(prompts)}
    common = {**setting, "budget": arguments.budget, "commit": collect_provenance(stack.device).commit}
    width = -(-arguments.budget // 16)
    length = acceptance_length(stack, prompts, Arm("ddtree", arguments.budget), arguments.temperature)
    records = [{"method": "ddtree", **common, "acceptance_length": length}]
    for pool, children in SETTINGS:
        runtime = WeaverRuntime(
            weaver, stack.target.embedding, stack.target.head.weight, pool_size=pool, children=children
        )
        arm, changed = Arm("tfm", arguments.budget, width), dataclasses.replace(stack, own_weaver=runtime)
        length = acceptance_length(changed, prompts, arm, arguments.temperature)
        records.append({"method": "tfm", **common, "pool": pool, "children": children, "acceptance_length": length})
    sys.stdout.write("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    main()
