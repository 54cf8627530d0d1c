"""A made-up decode table of ablation cells: arms of known acceptance and round time, with A/A control and stages."""

import itertools
from collections.abc import Mapping, Sequence

import pandas as pd

from tfm_bench.measure.rounds import RoundsRecord
from tfm_bench.report.ablation_data import AblationData
from tfm_bench.report.stage_times import STAGE_COLUMNS

ROUNDS, NOISE = 20, 0.02
# Share of a staged round that each stage takes, without inner timers' cost.
SHARES = dict(zip(STAGE_COLUMNS, (0.2, 0.1, 0.5, 0.1, 0.05, 0.05), strict=True))
Arm = tuple[str, int, int, str]
MACHINE = {"stack": "tiny", "device": "Some CPU", "threads": 2, "torch": "2.13.0", "dtype": "float32"}


def arm_frame(
    arms: Mapping[Arm, tuple[float, float]],
    *,
    temperatures: Sequence[float] = (1.0,),
    lengths: Sequence[int] = (100,),
    prompts: int = 5,
    staged_prompts: int = 3,
    implementations: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """arms: (method, budget, width, variant) -> accepted drafts and milliseconds per round, `ar` among them.

    Prompts differ by 10 % in time. implementations: by variant, where it is not compiled.
    """
    runs = [*((*arm, False) for arm in arms), ("ar", 0, 0, "default", True)]
    rows = []
    for temperature, length, prompt, run in itertools.product(temperatures, lengths, range(prompts), runs):
        method, budget, width, variant, control = run
        accepted, round_ms = arms[method, budget, width, variant]
        milliseconds = ROUNDS * round_ms * (1 + 0.1 * prompt) * (1 + NOISE * (-1) ** prompt if control else 1)
        staged = prompt < staged_prompts and not control
        rows.append(
            {
                **MACHINE,
                **{"split": "test", "dataset": "math", "temperature": temperature, "repeat": 0, "prompt": prompt},
                **{"prompt_tokens": length, "method": method, "budget": budget, "expansion_width": width},
                **{"variant": variant, "rule": "sample_match", "control": control, "status": "ok", "reason": None},
                **{"verify_width": budget + 1, "rounds": ROUNDS, "accepted_drafts_sum": round(ROUNDS * accepted)},
                **{"tokens": round(ROUNDS * (accepted + 1)), "decode_ms": milliseconds},
                **{stage: share * milliseconds if staged else None for stage, share in SHARES.items()},
                **{"lossless": True, "degenerate": False, "measured_at": "2026-11-30T08:00:00+00:00"},
                "gdn_implementation": (implementations or {}).get(variant, "compiled"),
                "weaver_implementation": "compiled",
            }
        )
    return pd.DataFrame(rows).astype(dict.fromkeys(STAGE_COLUMNS, float))


def ablation_data(decode: pd.DataFrame, rounds: Sequence[RoundsRecord] = ()) -> AblationData:
    """What a report module reads."""
    return AblationData(decode=decode, rounds=list(rounds), probe=[])
