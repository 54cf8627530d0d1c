"""A made-up results/decode.csv whose speeds and acceptances are known."""

import itertools

import numpy as np
import pandas as pd

from tfm_bench.report.stage_times import STAGE_COLUMNS

# (method, budget, width): accepted drafts per round, milliseconds per round on dev and on test
ARMS = {
    ("ar", 0, 0): (0, 10.0, 10.0),
    ("dflash_chain", 8, 0): (1, 16.0, 16.0),
    ("dflash_chain", 15, 0): (1, 12.0, 12.0),
    ("ddtree", 8, 0): (1, 12.0, 12.0),
    ("ddtree", 64, 0): (2, 15.0, 15.0),
    ("tfm", 8, 1): (2, 13.0, 20.0),
    ("tfm", 64, 4): (3, 20.0, 13.0),
}
ROUNDS = 12


MACHINE = {
    "device": "a CPU",
    "threads": 2,
    "torch": "2.13.0",
    "dtype": "float32",
    "gdn_implementation": "torch",
    "measured_at": "2026-11-30",
}


def decode_rows(datasets=("math", "code"), temperatures=(0.0, 1.0), repeats=2, prompts=4) -> pd.DataFrame:
    """The control takes 2 % longer than `ar` in one repeat and as much less in the other."""
    rows = []
    arms = [*((*arm, False) for arm in ARMS), ("ar", 0, 0, True)]
    places = itertools.product(("dev", "test"), datasets, temperatures, range(repeats), range(prompts), arms)
    for split, dataset, temperature, repeat, prompt, (method, budget, width, control) in places:
        accepted, dev_ms, test_ms = ARMS[method, budget, width]
        jitter = (1 + 0.1 * prompt + 0.02 * repeat) * (1.02 ** (1 - 2 * repeat) if control else 1.0)
        staged = split == "test" and repeat == 0
        rows.append(
            {
                **{"stack": "tiny", "repeat": repeat, "split": split, "dataset": dataset, "temperature": temperature},
                **{
                    "prompt": prompt,
                    "method": method,
                    "budget": budget,
                    "expansion_width": width,
                    "variant": "default",
                    "rule": "sample_match",
                },
                **{"control": control, "status": "ok", "reason": None},
                **{"verify_width": budget + 1, "tokens": ROUNDS * (accepted + 1), "rounds": ROUNDS},
                **{"accepted_drafts_sum": ROUNDS * accepted, "prefill_ms": 5.0},
                "decode_ms": ROUNDS * jitter * (dev_ms if split == "dev" else test_ms),
                **{column: 2.0 * ROUNDS if staged else np.nan for column in STAGE_COLUMNS},
                **{"lossless": True, "first_divergence": np.nan, "degenerate": False, **MACHINE},
                "weaver_implementation": "compiled",
            }
        )
    return pd.DataFrame(rows)
