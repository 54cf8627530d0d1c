"""What it costs in whole decoding to keep the states of all nodes until the commit; JSON lines, a round's median time.

    python benchmarks/node_states.py --output benchmarks/records/node_states.jsonl

Rounds of DFlash-TfM with fused verification and commit by replay, with node recurrence and replay (which drops each
layer's states once the layer is through), and with node recurrence and a commit that selects the leaf's state, for
which the states of all layers are kept. The three take turns on the same prompts in one process.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.measure.provenance import collect_provenance
from tfm_bench.prompts.datasets import encode_prompt, load_prompts

KINDS = (("fused", "replay"), ("node_recurrent", "replay"), ("node_recurrent", "select"))
REPEATS, TOKENS = 3, 64


def main() -> None:
    """Prints or writes the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", type=Path, default=Path("checkpoints/tiny"))
    parser.add_argument("--dataset", default="math")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="file to write; without it, standard output")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    stacks = {kind: Stack.load(arguments.stack, dtype="float32", gdn_verify=kind[0], commit=kind[1]) for kind in KINDS}
    first = stacks[KINDS[0]]
    assert first.tokenizer is not None
    prompts = load_prompts(arguments.dataset, "test", arguments.stack / "prompts", arguments.prompts)
    arm = Arm("tfm", arguments.budget, -(-arguments.budget // 16))
    samples: dict[tuple[str, str], list[float]] = {kind: [] for kind in KINDS}
    for repeat in range(-1, REPEATS):  # the first is warmth
        for seed, prompt in enumerate(prompts):
            ids, shift = encode_prompt(first.tokenizer, prompt), (repeat + seed) % len(KINDS)
            for kind in (*KINDS[shift:], *KINDS[:shift]):
                done = generate(stacks[kind], ids, arm, temperature=1.0, seed=seed, max_new_tokens=TOKENS)
                if repeat >= 0:
                    samples[kind].append(done.decode_ms / len(done.rounds))
    provenance = collect_provenance(first.device)
    common = {
        "dataset": arguments.dataset,
        "temperature": 1.0,
        "budget": arguments.budget,
        "threads": arguments.threads,
    }
    common |= {"prompts": len(prompts), "repeats": REPEATS, "device": provenance.device, "commit": provenance.commit}
    lines = ""
    for (verify, commit), values in samples.items():
        low, median, high = (round(float(value), 2) for value in np.quantile(values, [0.2, 0.5, 0.8]))
        times = {"round_ms": median, "p20_ms": low, "p80_ms": high}
        lines += json.dumps({"gdn_verify": verify, "recurrent_commit": commit, **times, **common}) + "\n"
    if arguments.output:
        arguments.output.write_text(lines, encoding="utf-8")
    else:
        sys.stdout.write(lines)


if __name__ == "__main__":
    main()
