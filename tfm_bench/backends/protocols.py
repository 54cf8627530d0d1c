"""Two ways to turn the same requests into numbers: ours and the one of the paper's benchmark script.

ours: decoding after the first token, ratios of sums, so that a long answer weighs more than a short one; the flush of
the cache and the prefill are outside. paper: everything from the flush to the end of the answer is inside, the first
token counts although no round emitted it, acceptance length is an unweighted mean over requests, and over datasets
the speedup is the ratio of unweighted means of tokens per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from tfm_bench.backends.request_log import ServerRequest

VERSION = 1
ALL = "all"  # in the column dataset: over all of them
COLUMNS = [
    "stack",
    "split",
    "temperature",
    "protocol",
    "method",
    "budget",
    "dataset",
    "prompts",
    "tokens_per_second",
    "acceptance_length",
    "speedup",
]

Key = tuple[int, int]  # repeat, prompt
Timings = Mapping[str, Mapping[Key, "Timing"]]  # of one arm: dataset, then request


@dataclass(frozen=True)
class Timing:
    """One request. tokens: the first included; rounds: 0 for plain decoding; seconds as in ServerRequest."""

    tokens: int
    rounds: int
    flush_s: float
    first_token_s: float
    total_s: float

    @classmethod
    def of(cls, request: ServerRequest) -> Timing:
        """A request with status ok."""
        assert request.completion_tokens is not None
        assert request.verify_steps is not None
        assert request.flush_s is not None
        assert request.first_token_s is not None
        assert request.total_s is not None
        return cls(
            request.completion_tokens, request.verify_steps, request.flush_s, request.first_token_s, request.total_s
        )


@dataclass(frozen=True)
class Summary:
    """tokens_per_second of one sequence; acceptance_length: tokens per round, 1 for plain decoding."""

    tokens_per_second: float
    acceptance_length: float


def ours(timings: Sequence[Timing]) -> Summary:
    """Sums over the rounds, which begin after the first token."""
    tokens = sum(timing.tokens - 1 for timing in timings)
    seconds = sum(timing.total_s - timing.first_token_s for timing in timings)
    rounds = sum(timing.rounds or timing.tokens - 1 for timing in timings)
    return Summary(_divide(tokens, seconds), _divide(tokens, rounds))


def paper(timings: Sequence[Timing]) -> Summary:
    """Of one dataset."""
    tokens = sum(timing.tokens for timing in timings)
    seconds = sum(timing.flush_s + timing.total_s for timing in timings)
    lengths = [timing.tokens / (timing.rounds or timing.tokens) for timing in timings]
    return Summary(_divide(tokens, seconds), fmean(lengths))


def ours_over_datasets(datasets: Sequence[Sequence[Timing]]) -> Summary:
    """Sums over all requests of all datasets."""
    return ours([timing for timings in datasets for timing in timings])


def paper_over_datasets(datasets: Sequence[Sequence[Timing]]) -> Summary:
    """Unweighted means over datasets; the ratio of two such rates is the paper's speedup."""
    each = [paper(timings) for timings in datasets]
    return Summary(fmean(s.tokens_per_second for s in each), fmean(s.acceptance_length for s in each))


PROTOCOLS = {"ours": (ours, ours_over_datasets), "paper": (paper, paper_over_datasets)}


def table_protocols(requests: Sequence[ServerRequest]) -> pd.DataFrame:
    """Both protocols, per arm, dataset and over all datasets. An arm and plain decoding are compared on the requests
    that both answered; an arm without any has no row. The second run of plain decoding (control) is left out."""
    groups: dict[tuple[str, str, float], list[ServerRequest]] = {}
    for request in requests:
        if request.status == "ok" and not request.control:
            groups.setdefault((request.stack, request.split, request.temperature), []).append(request)
    rows = [row for place, group in groups.items() for row in _rows(place, group)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(place: tuple[str, str, float], requests: Sequence[ServerRequest]) -> list[list[object]]:
    arms: dict[tuple[str, int], dict[str, dict[Key, Timing]]] = {}
    for request in requests:
        datasets = arms.setdefault((request.method, request.budget), {})
        datasets.setdefault(request.dataset, {})[request.repeat, request.prompt] = Timing.of(request)
    baseline = arms.get(("ar", 0), {})
    return [
        [*place, protocol, method, budget, *numbers]
        for (method, budget), timings in arms.items()
        for protocol in PROTOCOLS
        for numbers in _compared(protocol, timings, baseline)
    ]


def _compared(protocol: str, timings: Timings, baseline: Timings) -> list[list[object]]:
    """[dataset, prompts, tokens per second, acceptance length, speedup], the row of all datasets last."""
    of_one, over_all = PROTOCOLS[protocol]
    pairs = {dataset: _paired(timings[dataset], baseline.get(dataset, {})) for dataset in timings}
    pairs = {dataset: pair for dataset, pair in pairs.items() if pair[0]}
    rows = [_row(dataset, len(arm), of_one(arm), of_one(plain)) for dataset, (arm, plain) in pairs.items()]
    if pairs:
        every = [pair[0] for pair in pairs.values()], [pair[1] for pair in pairs.values()]
        rows.append(_row(ALL, sum(map(len, every[0])), over_all(every[0]), over_all(every[1])))
    return rows


def _paired(arm: Mapping[Key, Timing], plain: Mapping[Key, Timing]) -> tuple[list[Timing], list[Timing]]:
    keys = sorted(arm.keys() & plain.keys())
    return [arm[key] for key in keys], [plain[key] for key in keys]


def _row(dataset: str, prompts: int, arm: Summary, plain: Summary) -> list[object]:
    speedup = _divide(arm.tokens_per_second, plain.tokens_per_second)
    return [dataset, prompts, arm.tokens_per_second, arm.acceptance_length, speedup]


def _divide(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
