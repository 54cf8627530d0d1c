"""Made-up tables of known speeds, for comparisons of runs."""

import itertools

import numpy as np
import pandas as pd

ROUND_MS = {"ar": 10.0, "ddtree": 15.0, "tfm": 16.0}
DRAFTS = {"ar": 0, "ddtree": 2, "tfm": 3}
ROUNDS, PROMPTS, REPEATS, NOISE = 30, 8, 2, 0.02


def decode_rows(seed: int = 0) -> pd.DataFrame:
    """Two datasets, A/A control included; times scatter by NOISE around known ones."""
    rng = np.random.default_rng(seed)
    arms = [("ar", 0, False), ("ar", 0, True), ("ddtree", 15, False), ("tfm", 15, False)]
    rows = [
        {
            **{"stack": "tiny", "repeat": repeat, "split": split, "dataset": dataset, "temperature": 1.0},
            **{"prompt": prompt, "method": method, "budget": budget, "expansion_width": int(method == "tfm")},
            "variant": "default",
            **{"control": control, "status": "ok", "reason": None, "tokens": ROUNDS * (DRAFTS[method] + 1)},
            "rounds": ROUNDS,
            "decode_ms": ROUNDS * ROUND_MS[method] * (1 + 0.1 * prompt) * rng.normal(1, NOISE),
            **{"tokens_sha256": f"{dataset} {prompt}", "lossless": True},
            **{"dtype": "float32", "device": "Some CPU", "threads": 2, "torch": "2.13.0"},
        }
        for split, dataset, repeat, prompt, (method, budget, control) in itertools.product(
            ("dev", "test"), ("math", "code"), range(REPEATS), range(PROMPTS), arms
        )
    ]
    return pd.DataFrame(rows)


def kernel_rows(factor: float = 1.0) -> pd.DataFrame:
    """gdn_verify.csv: two arms on one problem, `factor` times as slow."""
    problem = {"implementation": "torch", "shapes": "27b", "tree": "weaver", "nodes": 16, "batch": 1, "cache": "cold"}
    machine = {"device": "Some CPU", "threads": 2, "dtype": "float32"}
    times = {"median_ms": 2.0 * factor, "p20_ms": 1.9 * factor, "p80_ms": 2.1 * factor}
    return pd.DataFrame(
        [{**problem, "arm": arm, "phase": "verify", "status": "ok", **machine, **times} for arm in ("fused", "node")]
    )
