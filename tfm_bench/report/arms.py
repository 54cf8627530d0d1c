"""From results/decode.csv to arms: what was measured for one method at one budget, as paired arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from tfm_bench.config import DEFAULT_VARIANT
from tfm_bench.measure.statistics import Array, Interval, Rate, ratio_interval

VERSION = 3
ARM_COLUMNS = ["method", "budget", "expansion_width"]
ARM_KEYS = [*ARM_COLUMNS, "variant"]
MACHINE_COLUMNS = ["stack", "device", "threads", "torch", "dtype", "gdn_implementation", "weaver_implementation"]
ALL_DATASETS = "all"
MILLISECONDS = 1000.0
OK = "ok"
NO_INTERVAL = Interval(math.nan, math.nan)


@dataclass(frozen=True)
class ArmData:
    """Rows of one arm. Rates are [repeats, prompts], in the same order for all arms of a group.

    Only `ok` rows are in rates and sums; of an arm that has others no rate can be had, and `status` says why.
    judged: all rows of the arm, where `rows` are a selection: what fails a gate there fails it in every selection.
    """

    method: str
    budget: int
    expansion_width: int
    variant: str
    rows: pd.DataFrame
    judged: pd.DataFrame

    def matrix(self, column: str) -> Array:
        """[R, P]. Raises ValueError when a repeat lacks a prompt that another has."""
        repeats = self.ok["repeat"].nunique()
        if len(self.ok) != repeats * self.prompts:
            raise ValueError(f"{self.method} at budget {self.budget}: not every repeat holds every prompt")
        return self.ok[column].to_numpy(dtype=float).reshape(repeats, self.prompts)

    def speed(self) -> Rate:
        """Tokens that rounds emitted, per second of decoding."""
        return Rate(self.matrix("tokens"), self._seconds())

    def acceptance(self) -> Rate:
        """Tokens per round, the bonus token included."""
        return Rate(self.matrix("tokens"), self.matrix("rounds"))

    def round_speed(self) -> Rate:
        """Rounds per second of decoding."""
        return Rate(self.matrix("rounds"), self._seconds())

    def accepted_drafts(self) -> Rate:
        """Accepted drafts per round."""
        return Rate(self.matrix("accepted_drafts_sum"), self.matrix("rounds"))

    def total(self, column: str) -> float:
        """Sum over prompts and repeats."""
        return self.ok[column].sum()

    @property
    def mean_accepted_drafts(self) -> float:
        """Accepted drafts per round; nan without rounds."""
        rounds = self.total("rounds")
        return self.total("accepted_drafts_sum") / rounds if rounds else math.nan

    @cached_property
    def ok(self) -> pd.DataFrame:
        """Rows that hold numbers, by repeat and prompt."""
        return self.rows[self.rows["status"] == OK].sort_values(["repeat", "dataset", "prompt"])

    @property
    def verify_width(self) -> int:
        """Rows that the target computes in a round."""
        return int(self.ok["verify_width"].max()) if len(self.ok) else self.budget + 1

    @cached_property
    def prompts(self) -> int:
        """Distinct prompts with numbers, over all datasets of the group."""
        return len(self.ok[["dataset", "prompt"]].drop_duplicates())

    @cached_property
    def lossless_prompts(self) -> int | None:
        """Prompts whose tokens are those of `ar` in every repeat; None where the rule promises no such thing."""
        judged = self.ok.dropna(subset="lossless")
        if judged.empty and len(self.ok):
            return None
        return int(judged.groupby(["dataset", "prompt"])["lossless"].all().sum())

    @cached_property
    def status(self) -> str:
        """The gates: every record is there, and in fp32 every prompt is lossless; bf16 shows mismatches beside it."""
        missing = self.judged[self.judged["status"] != OK]
        if len(missing):
            return f"{missing['status'].iloc[0]}: {missing['reason'].iloc[0]}"
        # Where the rule promises no identical text, the column is empty, and nothing is to be judged.
        exact = self.judged["dtype"] == "float32"
        return "not lossless" if (exact & ~self.judged["lossless"].fillna(True).astype(bool)).any() else OK

    def _seconds(self) -> Array:
        return self.matrix("decode_ms") / MILLISECONDS


def status_of_pair(arm: ArmData, baseline: ArmData) -> str:
    """Why two arms may not be compared, or "ok".

    A mixture is a status of its rows and no error: cells measured elsewhere spoil the rows that pool them, no others.
    """
    for own, words in ((arm.status, "{}"), (baseline.status, "baseline {}")):
        if own != OK:
            return words.format(own)
    return mixture(pd.concat([arm.rows, baseline.rows]))


def mixture(rows: pd.DataFrame) -> str:
    """The columns that describe a machine and in which rows of one comparison differ, as a status; "ok" without any."""
    mixed = [column for column in MACHINE_COLUMNS if rows[column].nunique() > 1]
    return f"mixed hardware: {', '.join(mixed)}" if mixed else OK


def noise_floor(group: pd.DataFrame) -> Interval:
    """Interval of the speed of `ar` over that of `ar`, measured twice in each cell (A/A); nan where it was not.

    A speedup inside it is no finding: the machine shows as much between two runs of the same code. It errs to the wide
    side, as crossed draws count the noise of single measurements more than once.
    """
    plain = group[group["method"] == "ar"]
    arms = [
        ArmData("ar", 0, 0, DEFAULT_VARIANT, rows, rows) for rows in (plain[plain["control"]], plain[~plain["control"]])
    ]
    if not all(len(arm.rows) for arm in arms) or status_of_pair(*arms) != OK:
        return NO_INTERVAL
    return ratio_interval(arms[0].speed(), arms[1].speed())


def arms_of(rows: pd.DataFrame, judged: pd.DataFrame | None = None) -> list[ArmData]:
    """The arms of one group, in the order of the table, without the A/A control.

    judged: the whole group, where `rows` are a selection of it.
    """
    whole = rows if judged is None else judged
    all_rows = dict(list(whole[~whole["control"]].groupby(ARM_KEYS, sort=False)))
    groups = rows[~rows["control"]].groupby(ARM_KEYS, sort=False)
    return [
        ArmData(method, budget, width, variant, arm, all_rows[method, budget, width, variant])
        for (method, budget, width, variant), arm in groups
    ]


def groups_of(decode: pd.DataFrame, *, pooled: bool) -> Iterator[tuple[float, str, pd.DataFrame]]:
    """(temperature, dataset, rows) for each dataset and temperature; `pooled` adds all datasets together."""
    for temperature, at_temperature in decode.groupby("temperature"):
        for dataset, rows in at_temperature.groupby("dataset", sort=False):
            yield float(temperature), str(dataset), rows
        if pooled:
            yield float(temperature), ALL_DATASETS, at_temperature


def not_degenerate(group: pd.DataFrame) -> pd.DataFrame:
    """Rows of the prompts whose text is no loop under any arm; may be empty."""
    flagged = _is_degenerate(group)
    return group[~flagged.groupby([group["dataset"], group["prompt"]]).transform("any")]


def selections_of(group: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The group as it is ("all") and, where some prompt is flagged and some is not, without the flagged prompts."""
    clean = not_degenerate(group)
    return [("all", group), *([("not_degenerate", clean)] if 0 < len(clean) < len(group) else [])]


def clean_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table that rest on no flagged prompt; where all prompts of a group are flagged there is none."""
    return table[table["degenerate_prompts"] == 0]


def degenerate_prompts(group: pd.DataFrame) -> int:
    """Distinct prompts whose text is a loop."""
    return len(group.loc[_is_degenerate(group), ["dataset", "prompt"]].drop_duplicates())


def _is_degenerate(group: pd.DataFrame) -> pd.Series:
    """The flag; text that was never written is no loop."""
    return group["degenerate"].fillna(False).astype(bool)
