"""The AR arm against transformers' own generate on the same model, and the cost of verification by width.

The AR arm of every comparison is a tree of one node that goes through the decode loop like any other; it has to be at
least as fast as the library's loop, or speedups over it mean nothing. Both run interleaved, greedy, fp32, on the same
prompt, in one process, prefill included. Writes JSON lines: one per arm, one for the ratio, one per verify width.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.measure.provenance import collect_provenance
from tfm_bench.models.target import Target
from tfm_bench.prompts.datasets import encode_prompt, load_prompts
from tfm_bench.tree import TokenTree

WIDTHS = (1, 5, 9, 16, 33, 65)
CONTEXT = 150


def own_decode(stack: Stack, prompt: list[int], new_tokens: int) -> list[int]:
    """The AR arm as every cell runs it."""
    return generate(stack, prompt, Arm("ar"), temperature=0.0, seed=0, max_new_tokens=new_tokens).tokens


def library_decode(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    """transformers.generate, greedy, with its cache; without stop ids, so that both arms write equally many tokens."""
    ids = torch.tensor([prompt])
    config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, use_cache=True, pad_token_id=0)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return out[0, len(prompt) :].tolist()


def compare(stack: Stack, model: Any, prompt: list[int], new_tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Interleaved runs of both arms: median tokens per second, the median of the paired ratios, and token identity."""
    arms = {
        "ar": lambda: own_decode(stack, prompt, new_tokens),
        "transformers_generate": lambda: library_decode(model, prompt, new_tokens),
    }
    rates: dict[str, list[float]] = {name: [] for name in arms}
    texts = {name: run() for name, run in arms.items()}  # also the warm-up
    for _ in range(repeats):
        for name, run in arms.items():
            start = time.perf_counter()
            run()
            rates[name].append(new_tokens / (time.perf_counter() - start))
    records: list[dict[str, Any]] = [
        {"record": "arm", "arm": name, "tokens_per_second": round(statistics.median(rate), 1), "runs": len(rate)}
        for name, rate in rates.items()
    ]
    ratio = statistics.median(a / b for a, b in zip(*rates.values(), strict=True))
    same = texts["ar"] == texts["transformers_generate"]
    return [*records, {"record": "ratio", "ar_over_transformers": round(ratio, 2), "same_tokens": same}]


def verify_times(target: Target, repeats: int) -> list[dict[str, Any]]:
    """Median and least milliseconds of one verify by width, on random trees at one context length."""
    records = []
    generator = torch.Generator().manual_seed(1)
    context = torch.randint(0, target.vocab_size, (CONTEXT,), generator=generator)
    for width in WIDTHS:
        state = target.new_state(CONTEXT + 8, width)
        target.prefill(state, context)
        parents = [-1, *(int(torch.randint(max(0, i - 6), i, (), generator=generator)) for i in range(1, width))]
        times = []
        for _ in range(repeats):
            tree = TokenTree.from_lists([1] * width, parents, [0.0] * width, width)
            start = time.perf_counter()
            target.verify(state, tree)
            times.append(1e3 * (time.perf_counter() - start))
        times_ms = {"ms": round(statistics.median(times), 3), "ms_min": round(min(times), 3)}
        records.append({"record": "verify", "width": width, "context": CONTEXT, **times_ms})
    return records


def main() -> None:
    """Prints the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", type=Path, default=Path("checkpoints/tiny"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    loaded = Stack.load(arguments.stack, dtype="float32", gdn_verify="fused", commit="replay")
    stack = dataclasses.replace(loaded, stop_ids=frozenset())
    # A copy of its own: the target takes over the storage of its model, and the library's arm keeps the library's.
    library = AutoModelForCausalLM.from_pretrained(arguments.stack / "target", dtype=torch.float32).eval()
    library.generation_config.eos_token_id = None
    prompt = encode_prompt(stack.tokenizer, load_prompts("math", "test", arguments.stack / "prompts", 1)[0])
    environment = {"record": "environment", **collect_provenance(stack.device).model_dump(mode="json")}
    records = [
        environment,
        *compare(stack, library, prompt, arguments.new_tokens, arguments.repeats),
        *verify_times(stack.target, 15 * arguments.repeats),
    ]
    for record in records:
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
