"""Plain decoding through the tree code against transformers' own generate, and the cost of verification by width.

The plain arm of every comparison is a tree of one node that goes through verify and commit like any other; it has to
be at least as fast as the library's loop on the same model, or speedups over it mean nothing. Both run interleaved,
greedy, on the same prompt, in one process. Writes JSON lines: one per arm, one for the ratio, one per verify width.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tfm_bench.models.target import Target
from tfm_bench.tree import TokenTree

WIDTHS = (1, 9, 17, 33, 65)
CONTEXT = 150


def random_model() -> Any:
    """12 layers (3:1), hidden 256, random weights: the shape class of the embedded stack."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        tie_word_embeddings=True,
    )
    return Qwen3_5ForCausalLM(config).eval().requires_grad_(False)


def own_decode(target: Target, prompt: Tensor, new_tokens: int) -> list[int]:
    """Greedy decoding, one verified root per token."""
    state = target.new_state(prompt.shape[0] + new_tokens, 1)
    tokens = [int(target.prefill(state, prompt).logits[0].argmax())]
    while len(tokens) < new_tokens:
        tree = TokenTree.from_lists([tokens[-1]], [-1], [0.0], 1)
        tokens.append(int(target.verify(state, tree).logits[0].argmax()))
        target.commit(state, [0])
    return tokens


def library_decode(model: Any, prompt: Tensor, new_tokens: int) -> list[int]:
    """transformers.generate, greedy, with its cache; stop ids are off so that both arms write equally many tokens."""
    out = model.generate(
        prompt[None],
        attention_mask=torch.ones_like(prompt[None]),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )
    return out[0, prompt.shape[0] :].tolist()


def compare(target: Target, model: Any, prompt: Tensor, new_tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Interleaved runs of both arms: medians of tokens per second, prefill included, and whether the tokens agree."""
    arms = {
        "ar": lambda: own_decode(target, prompt, new_tokens),
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


def verify_times(target: Target, prompt: Tensor, repeats: int) -> list[dict[str, Any]]:
    """Median milliseconds of verify, and of verify with commit of a short path, by width at one context length."""
    records = []
    generator = torch.Generator().manual_seed(1)
    for width in WIDTHS:
        state = target.new_state(CONTEXT + 8, width)
        target.prefill(state, prompt[:CONTEXT])
        parents = [-1, *(int(torch.randint(max(0, i - 6), i, (), generator=generator)) for i in range(1, width))]
        tree = TokenTree.from_lists([1] * width, parents, [0.0] * width, width)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            target.verify(state, tree)
            times.append(1e3 * (time.perf_counter() - start))
        median, best = statistics.median(times), min(times)
        records.append(
            {"record": "verify", "width": width, "context": CONTEXT, "ms": round(median, 3), "ms_min": round(best, 3)}
        )
    return records


def environment(threads: int) -> dict[str, Any]:
    """What the numbers depend on."""
    cpu = next((x.split(":")[1].strip() for x in _cpuinfo() if x.startswith("model name")), "unknown")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"record": "environment", "cpu": cpu, "threads": threads, "dtype": "float32", **versions}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, help="folder of a target checkpoint")
    source.add_argument("--random", action="store_true", help="a random model of 12 layers, hidden 256")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    if arguments.random:
        own, library = random_model(), random_model()
    else:
        # Two copies: the target takes over the storage of its model, and the library's arm keeps its own layout.
        own, library = (
            AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32) for _ in range(2)
        )
    target = Target(own.eval().requires_grad_(False), tap_layer_ids=[1])
    prompt = torch.randint(0, target.vocab_size, (CONTEXT,), generator=torch.Generator().manual_seed(0))
    records = [
        environment(arguments.threads),
        *compare(target, library.eval(), prompt, arguments.new_tokens, arguments.repeats),
        *verify_times(target, prompt, 15 * arguments.repeats),
    ]
    for record in records:
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
