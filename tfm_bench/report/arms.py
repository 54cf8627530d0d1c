"""From results/decode.csv to arms: what was measured for one method at one budget, as paired arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from tfm_bench.measure.statistics import Array, Rate

ARM_COLUMNS = ["method", "budget", "expansion_width"]
ALL_DATASETS = "all"
MILLISECONDS = 1000.0


@dataclass(frozen=True)
class ArmData:
    """Rows of one arm. Rates are [repeats, prompts], in the same order for all arms of a group."""

    method: str
    budget: int
    expansion_width: int
    rows: pd.DataFrame

    def matrix(self, column: str) -> Array:
        """[R, P]. Raises ValueError when a repeat lacks a prompt that another has."""
        wide = self.rows.pivot(index="repeat", columns=["dataset", "prompt"], values=column).sort_index(axis=1)
        values = wide.to_numpy(dtype=float)
        if wide.isna().to_numpy().any():
            raise ValueError(f"{self.method} at budget {self.budget}: not every repeat holds every prompt")
        return values

    def speed(self) -> Rate:
        """Tokens that rounds emitted, per second of decoding."""
        return Rate(self.matrix("tokens"), self.matrix("decode_ms") / MILLISECONDS)

    def accepted_drafts(self) -> Rate:
        """Accepted drafts per round."""
        return Rate(self.matrix("accepted_drafts_sum"), self.matrix("rounds"))

    @property
    def verify_width(self) -> int:
        """Rows that the target computes in a round."""
        return int(self.rows["verify_width"].max())

    @property
    def prompts(self) -> int:
        """Distinct prompts, over all datasets of the group."""
        return len(self.rows[["dataset", "prompt"]].drop_duplicates())

    @property
    def lossless_prompts(self) -> int:
        """Prompts whose tokens are those of `ar` in every repeat."""
        return int(self.rows.groupby(["dataset", "prompt"])["lossless"].all().sum())

    @property
    def may_claim_speed(self) -> bool:
        """The gate: in fp32 every prompt must be lossless; bf16 mismatches are reported beside the number."""
        return self.lossless_prompts == self.prompts or set(self.rows["dtype"]) != {"float32"}


def arms_of(rows: pd.DataFrame) -> list[ArmData]:
    """The arms of one group, in the order of the table."""
    groups = rows.groupby(ARM_COLUMNS, sort=False)
    return [ArmData(method, budget, width, arm) for (method, budget, width), arm in groups]


def groups_of(decode: pd.DataFrame, *, pooled: bool) -> Iterator[tuple[float, str, pd.DataFrame]]:
    """(temperature, dataset, rows) for each dataset and temperature; `pooled` adds all datasets together."""
    for temperature, at_temperature in decode.groupby("temperature"):
        for dataset, rows in at_temperature.groupby("dataset", sort=False):
            yield float(temperature), str(dataset), rows
        if pooled:
            yield float(temperature), ALL_DATASETS, at_temperature


def not_degenerate(group: pd.DataFrame) -> pd.DataFrame:
    """Rows of the prompts whose text is no loop under any arm; may be empty."""
    return group[~group.groupby(["dataset", "prompt"])["degenerate"].transform("any")]


def selections_of(group: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The group as it is ("all") and, where some prompt is flagged and some is not, without the flagged prompts."""
    clean = not_degenerate(group)
    return [("all", group), *([("not_degenerate", clean)] if 0 < len(clean) < len(group) else [])]


def clean_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table that rest on no flagged prompt; where all prompts of a group are flagged there is none."""
    return table[table["degenerate_prompts"] == 0]


def degenerate_prompts(group: pd.DataFrame) -> int:
    """Distinct prompts whose text is a loop."""
    return len(group.loc[group["degenerate"], ["dataset", "prompt"]].drop_duplicates())
