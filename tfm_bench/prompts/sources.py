"""The paper's data sets: where each is published, in which file, and how many of its prompts are decoded (§8.1).

Commits are not in here: no document gives them, and config/datasets.yaml takes them. File names are as the repositories
had them when this was written, without a look at any: a commit that has another one ends in an error that says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfm_bench.prompts.selection import Select, every, sample, sample_by_category, whole


@dataclass(frozen=True)
class HubFile:
    """A file of a data set on the Hugging Face hub."""

    repo: str
    file: str


@dataclass(frozen=True)
class Benchmark:
    """hub: None where only a package is known. `select` says which prompts are kept, `count` how many."""

    hub: HubFile | None
    select: Select
    count: int


SHARECHAT, SHARECHAT_REPO, SHARECHAT_COUNT = "sharechat", "tucnguyen/ShareChat", 500
GSM8K = HubFile("openai/gsm8k", "main/test-00000-of-00001.parquet")
MATH_500 = HubFile("HuggingFaceH4/MATH-500", "test.jsonl")
AIME_25 = HubFile("math-ai/aime25", "test.jsonl")
HUMAN_EVAL = HubFile("openai/openai_humaneval", "openai_humaneval/test-00000-of-00001.parquet")
MBPP = HubFile("google-research-datasets/mbpp", "sanitized/test-00000-of-00001.parquet")
LIVE_CODE_BENCH = HubFile("livecodebench/code_generation_lite", "test6.jsonl")

BENCHMARKS = {
    "mt_bench": Benchmark(None, whole, 80),
    "gsm8k": Benchmark(GSM8K, sample, 128),
    "math500": Benchmark(MATH_500, sample_by_category, 128),
    "aime25": Benchmark(AIME_25, whole, 30),
    "humaneval": Benchmark(HUMAN_EVAL, whole, 164),
    "mbpp": Benchmark(MBPP, every, 257),
    "livecodebench": Benchmark(LIVE_CODE_BENCH, every, 175),
}
DATASETS = (*BENCHMARKS, SHARECHAT)


def published_count(dataset: str) -> int:
    """Prompts of the test split of one of DATASETS."""
    return SHARECHAT_COUNT if dataset == SHARECHAT else BENCHMARKS[dataset].count


def splits(dataset: str) -> tuple[str, ...]:
    """Splits of one of DATASETS. Only what a sample leaves out can choose budgets: it is the dev split."""
    sampled = dataset in BENCHMARKS and BENCHMARKS[dataset].select in (sample, sample_by_category)
    return ("dev", "test") if sampled else ("test",)
