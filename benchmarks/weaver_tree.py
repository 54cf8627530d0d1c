"""Time of a Weaver tree and of one Weaver node batch, compiled and torch, on random weights; JSON lines.

    python benchmarks/weaver_tree.py --output benchmarks/records/weaver_tree.jsonl

`tree_ms` is the median wall time of a whole `WeaverRuntime.build`; `node_batch_ms` is that divided by the number of
Weaver calls, so it holds a batch's share of prefix, candidate pools and frontier as well.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig

SIZES = {"hidden": 256, "rank": 128, "heads": 4, "mlp": 256, "vocab": 4096, "pool": 512, "depths": 15}
SPREAD, LIFT = 3.0, 15.0


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    lines = "".join(json.dumps(row) + "\n" for row in measure(args))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(lines, encoding="utf-8")
    else:
        sys.stdout.write(lines)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time Weaver trees and node batches.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, value in {**SIZES, "repeats": 200, "threads": 1, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="integer")
    parser.add_argument(
        "--budgets", type=int, nargs="+", default=[16, 32, 64, 128], help="draft nodes, anchor excluded"
    )
    parser.add_argument("--output", type=Path, help="file to write; without it, standard output")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    runtimes = make_runtimes(args)
    for confident in (False, True):
        inputs = make_inputs(args, confident)
        for budget in args.budgets:
            for width in sorted({1, math.ceil(budget / 16)}):
                for runtime in runtimes:
                    yield record(args, runtime, inputs, budget, width) | {"confident_drafter": confident}


def make_runtimes(args: argparse.Namespace) -> list[WeaverRuntime]:
    """The runtime that this machine gives and, where that is compiled, the torch path beside it."""
    config = WeaverConfig(args.hidden, args.hidden, args.rank, 1, args.heads, args.mlp, args.depths, args.pool)
    weaver = Weaver(config).requires_grad_(False)
    weaver.lm_head_query_in.weight.normal_(std=args.rank**-0.5)
    tables = (torch.randn(args.vocab, args.hidden), torch.randn(args.vocab, args.hidden) * args.hidden**-0.5)
    fast, plain = WeaverRuntime(weaver, *tables), WeaverRuntime(weaver, *tables, compiled=False)
    return [plain] if fast.implementation == "torch" else [fast, plain]


def make_inputs(args: argparse.Namespace, confident: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Flat marginals give shallow trees, which touch few pools; one likely token per depth gives deep ones."""
    logits = torch.randn(args.depths, args.vocab) * SPREAD
    if confident:
        logits[torch.arange(args.depths), torch.randint(args.vocab, (args.depths,))] += LIFT
    return torch.randn(args.hidden), torch.randn(args.depths, args.hidden), logits


def record(
    args: argparse.Namespace, runtime: WeaverRuntime, inputs: tuple[Tensor, Tensor, Tensor], budget: int, width: int
) -> dict[str, Any]:
    calls = math.ceil(budget / width)
    tree = runtime.build(0, *inputs, budget, width)
    times = [timed(lambda: runtime.build(0, *inputs, budget, width)) for _ in range(args.repeats)]
    low, tree_ms, high = statistics.quantiles(times, n=4)
    return {
        "benchmark": "weaver_tree",
        "implementation": runtime.implementation,
        "budget": budget,
        "expansion_width": width,
        "weaver_calls": calls,
        "deepest_node": int(tree.depths.max()),
        "tree_ms": round(tree_ms, 4),
        "tree_ms_quartiles": [round(low, 4), round(high, 4)],
        "node_batch_ms": round(tree_ms / calls, 4),
        **{key: getattr(args, key) for key in (*SIZES, "repeats", "threads", "seed")},
        "cpu": torch.cpu.get_capabilities().get("cpu_name", platform.processor()),
        "torch": torch.__version__,
    }


def timed(work: Callable[[], object]) -> float:
    """Wall time in milliseconds."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
