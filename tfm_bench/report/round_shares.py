"""Shares of rounds, from the companions of the raw files: what single rounds accepted, not their mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tfm_bench.errors import UserError
from tfm_bench.measure.rounds import RoundsRecord, read_rounds
from tfm_bench.measure.statistics import Array, Rate
from tfm_bench.report.arms import ARM_KEYS, OK, ArmData

VERSION = 1
PLACE = ["dataset", "temperature", "repeat"]
KEYS = [*PLACE, "prompt", *ARM_KEYS]

Index = dict[tuple[object, ...], RoundsRecord]


class OneRound(NamedTuple):
    """accepted: drafts; depth: of the deepest node of its tree."""

    accepted: int
    depth: int


def read_test_rounds(paths: Iterable[Path]) -> Index:
    """Rounds of the test split by KEYS, without the A/A control. Raises UserError for damaged lines."""
    index: Index = {}
    for path in paths:
        split, *place = _place(path)
        for record in read_rounds(path) if split == "test" else ():
            if not record.control:
                index[(*place, record.prompt, *(getattr(record, key) for key in ARM_KEYS))] = record
    return index


def rounds_of(arm: ArmData, index: Index) -> list[list[OneRound]]:
    """Whole rounds of every generation of an arm, in the order of ArmData.matrix.

    The last round of a generation is left out: the length limit or a stop token cuts it short.
    """
    records = [index[key] for key in arm.ok[KEYS].itertuples(index=False, name=None)]
    return [[*map(OneRound, record.accepted[:-1], record.depth[:-1])] for record in records]


def share_of_rounds(arm: ArmData, index: Index, holds: Callable[[OneRound], bool]) -> Rate:
    """Rounds for which something holds, over all whole rounds."""
    rounds, shape = rounds_of(arm, index), (-1, arm.prompts)
    counts: Array = np.array([sum(map(holds, generation)) for generation in rounds], dtype=float)
    return Rate(counts.reshape(shape), np.array([*map(len, rounds)], dtype=float).reshape(shape))


def arms_of_one_width(arms: Iterable[ArmData]) -> list[ArmData]:
    """One arm per drafting method, as wide as the longest chain, which no budget makes longer.

    A method that has no such budget gives its next wider one, or else its widest. Arms that failed or are not lossless
    are left out; without a chain the narrowest arms are compared.
    """
    drafting = [arm for arm in arms if arm.method != "ar" and arm.status == OK]
    longest = max((arm.budget for arm in drafting if arm.method == "dflash_chain"), default=0)
    chosen: dict[str, ArmData] = {}
    for arm in sorted(drafting, key=lambda arm: (arm.budget < longest, abs(arm.budget - longest))):
        chosen.setdefault(arm.method, arm)
    return [chosen[method] for method in dict.fromkeys(arm.method for arm in drafting)]


def of_arm(arm: ArmData, dataset: str, temperature: float) -> dict[str, object]:
    """The columns that say what a share is a share of."""
    return {
        "stack": arm.rows["stack"].iloc[0],
        "dataset": dataset,
        "temperature": temperature,
        "method": arm.method,
        "budget": arm.budget,
        "expansion_width": arm.expansion_width,
        "prompts": arm.prompts,
    }


def method_label(label: str, rows: pd.DataFrame) -> str:
    """A method's name with the budget that its rows have: not always the same for all methods."""
    return f"{label} (B = {'/'.join(map(str, rows['budget'].unique()))})"


def _place(path: Path) -> tuple[str, str, float, int]:
    """results/raw/test.math.t100.r0.rounds.jsonl -> ("test", "math", 1.0, 0)."""
    try:
        split, dataset, temperature, repeat = path.name.removesuffix(".rounds.jsonl").split(".")
        return split, dataset, int(temperature.removeprefix("t")) / 100, int(repeat.removeprefix("r"))
    except ValueError:
        accepted = "<split>.<dataset>.t<temperature x 100>.r<repeat>.rounds.jsonl"
        raise UserError(f"{path}: found a name that is none of a cell's rounds; accepted is {accepted}") from None
