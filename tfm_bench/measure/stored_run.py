"""Tables of a finished run, read for a comparison with another run: what they must hold, and their A/A noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tfm_bench.errors import UserError
from tfm_bench.measure.statistics import Array, Rate, ratio_interval

ARM = ["stack", "dataset", "temperature", "method", "budget", "expansion_width"]
HARDWARE = ["device", "threads", "dtype"]
KERNEL = ["implementation", "shapes", "tree", "nodes", "batch", "cache", "arm", "phase"]
DECODE_COLUMNS = [
    *[*ARM, *HARDWARE, "split", "repeat", "prompt", "control", "status", "lossless"],
    *["tokens", "rounds", "decode_ms", "tokens_sha256"],
]
KERNEL_COLUMNS = [*KERNEL, *HARDWARE, "status", "median_ms", "p20_ms", "p80_ms"]
MILLISECONDS = 1000.0


@dataclass(frozen=True)
class Shared:
    """Repeats and prompts that several sets of rows all hold."""

    repeats: list[int]
    prompts: list[int]

    def matrix(self, rows: pd.DataFrame, column: str) -> Array:
        """[repeats, prompts]."""
        wide = rows.pivot(index="repeat", columns="prompt", values=column)
        return wide.loc[self.repeats, self.prompts].to_numpy(dtype=float)

    def speed(self, rows: pd.DataFrame) -> Rate:
        """Tokens per second."""
        return Rate(self.matrix(rows, "tokens"), self.matrix(rows, "decode_ms") / MILLISECONDS)

    def acceptance(self, rows: pd.DataFrame) -> Rate:
        """Tokens per round."""
        return Rate(self.matrix(rows, "tokens"), self.matrix(rows, "rounds"))

    def lossless(self, rows: pd.DataFrame) -> int:
        """Prompts whose text is that of `ar` in every repeat."""
        return int(self.matrix(rows, "lossless").all(axis=0).sum())


@dataclass(frozen=True)
class StoredRun:
    """The test rows of decode.csv, and gdn_verify.csv where the folder holds one."""

    path: Path
    decode: pd.DataFrame
    kernels: pd.DataFrame | None

    def arms(self) -> dict[tuple[object, ...], pd.DataFrame]:
        """Rows by the values of ARM, in the order of the table, without the A/A control."""
        return {key: rows for key, rows in self.decode[~self.decode["control"]].groupby(ARM, sort=False)}

    def workloads(self) -> set[tuple[str, float]]:
        """Dataset and temperature of every row."""
        return set(self.decode[["dataset", "temperature"]].itertuples(index=False, name=None))

    def texts(self, stack: str, dataset: str, temperature: float) -> dict[int, set[str]]:
        """Hashes of what `ar` emitted in any repeat, by prompt; without prompts on which it always failed."""
        own = {"stack": stack, "dataset": dataset, "temperature": temperature, "method": "ar", "status": "ok"}
        plain = self.decode[(self.decode[list(own)] == pd.Series(own)).all(axis=1) & ~self.decode["control"]]
        return {prompt: set(hashes) for prompt, hashes in plain.groupby("prompt")["tokens_sha256"]}

    def noise(self, dataset: str, temperature: float) -> float:
        """Lower A/A bound of a dataset and temperature, both ways round, at most 1. Raises UserError without."""
        here = (self.decode["dataset"] == dataset) & (self.decode["temperature"] == temperature)
        ar = self.decode[here & (self.decode["method"] == "ar") & (self.decode["status"] == "ok")]
        again, first = ar[ar["control"]], ar[~ar["control"]]
        shared = shared_by(again, first)
        if len(shared.prompts) < 2:
            raise UserError(f"{self.path}: no A/A control of {dataset} at T={temperature:g}, so no noise floor")
        interval = ratio_interval(shared.speed(again), shared.speed(first))
        # Also false for nan, which min() would pass over; a bound of 0 is one that no ratio can fall below.
        if not 0 < interval.low <= interval.high < math.inf:
            found, place = f"{interval.low:g} to {interval.high:g}", f"{dataset} at T={temperature:g}"
            raise UserError(f"{self.path}: A/A interval of {place}: found {found}, so no noise floor")
        return min(1.0, interval.low, 1 / interval.high)


def read_run(path: Path) -> StoredRun:
    """Tables of a folder, or a decode.csv. Raises UserError for what is missing, empty or of mixed hardware."""
    decode = _read(path / "decode.csv" if path.is_dir() else path, DECODE_COLUMNS)
    kernels = path / "gdn_verify.csv"  # of a path that is a file there is none
    test = decode[decode["split"] == "test"].astype({"control": bool})
    if test.empty:
        raise UserError(f"{path}: holds no row of the test split")
    hardware(test, path)
    return StoredRun(path, test, _read(kernels, KERNEL_COLUMNS) if kernels.is_file() else None)


def shared_by(*sets: pd.DataFrame) -> Shared:
    """What all hold: repeats that each has, and prompts that each has in all of these repeats."""
    repeats = set.intersection(*(set(rows["repeat"]) for rows in sets))
    prompts = [
        {prompt for prompt, own in rows.groupby("prompt")["repeat"] if repeats <= set(own)} for rows in sets if repeats
    ]
    return Shared(sorted(repeats), sorted(set.intersection(*prompts)) if prompts else [])


def hardware(frame: pd.DataFrame, path: Path) -> str:
    """Device, threads and dtype of a table. Raises UserError unless all rows share them."""
    rows = frame[HARDWARE].drop_duplicates().itertuples(index=False, name=None)
    found = ["{}, {} threads, {}".format(*row) for row in rows]
    if len(found) != 1:
        raise UserError(f"{path}: mixed hardware ({'; '.join(found)}); rows of one machine and dtype are accepted")
    return found[0]


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    lacking = [column for column in columns if column not in frame]
    if lacking:
        raise UserError(f"{path}: lacks {', '.join(lacking)}; a table of this version is accepted")
    return frame
