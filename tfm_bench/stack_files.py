"""The files of a stack: parts, prompts, and which splits its data sets have. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfm_bench.errors import UserError
from tfm_bench.part_source import check_source
from tfm_bench.prompts.datasets import PACKAGED, packaged_file
from tfm_bench.prompts.prepare import check_prepared
from tfm_bench.prompts.sources import DATASETS, splits
from tfm_bench.stack_config import SOURCE, STACK_PARTS, PromptedStack, StackConfig

SPLITS = ("dev", "test")
# Folders of results/ and figures/ that are no run of a stack.
RESERVED = frozenset({"checks", "expected", "figures", "metadata", "raw", "retrain", "schema", "smoke", "tables"})


def run_folder(stack: str, *, shipped: str) -> str:
    """Where runs of a stack stand in results/, figures/ and logs/: the shipped one's there, others' in a folder.

    Raises UserError for a name that a folder has there already.
    """
    if stack in RESERVED:
        raise UserError(f"stack.name: found {stack!r}; accepted is any other than {', '.join(sorted(RESERVED))}")
    return "" if stack == shipped else f"{stack}/"


def part_files(stack: StackConfig) -> list[str]:
    """What the parts of the stack consist of; of a downloaded part, the file that is written last.

    Raises UserError for a missing part, and for one that was downloaded from elsewhere than is pinned now.
    """
    root = Path(stack.path)
    if stack.parts is not None:
        for part, pin in stack.parts.items():
            check_source(root / part, pin)
        return [str(root / part / SOURCE) for part in stack.parts]
    if not root.is_dir():
        raise UserError(
            f"stack.path: {root} is not there; a folder with {', '.join(STACK_PARTS)} and prompts is accepted"
        )
    return [str(path) for part in STACK_PARTS for path in _part_files(root / part)]


def stack_files(stack: StackConfig, *, dataset: str, split: str) -> list[str]:
    """Every file of the stack that a cell reads. Raises UserError for a missing part, dataset or package."""
    return [*part_files(stack), *prompt_files(stack, dataset=dataset, split=split)]


def prompt_files(stack: PromptedStack, *, dataset: str, split: str) -> list[str]:
    """The file of the stack that prompts are read from; none for those that a package holds.

    Prepared ones need not be there yet. Raises UserError for a missing package, for a dataset that is not known, for a
    split that it does not have and for prompts that were prepared otherwise than is configured now, or by hand.
    """
    if stack.wording is not None and is_prepared(stack, dataset):
        if split not in splits(dataset):
            raise UserError(
                f"datasets: found '{dataset}'; where a {split} split is needed, one that has it is accepted"
            )
        path = Path(stack.path) / "prompts" / f"{dataset}.{split}.jsonl"
        check_prepared(path, dataset, "dev" if split == "dev" else "test", stack.wording)
        return [str(path)]
    if is_packaged(stack, dataset):
        packaged_file(dataset)
        return []
    return [str(_prompt_file(Path(stack.path) / "prompts", dataset, split, stack.wording is not None))]


def control_files(stack: StackConfig) -> list[str]:
    """Weavers of the stack that were trained for an ablation; a stack may have none."""
    return [str(path) for path in sorted(Path(stack.path).glob("controls/*/*")) if path.is_file()]


def is_prepared(stack: PromptedStack, dataset: str) -> bool:
    """Whether the run makes the prompt file itself, from a public data set."""
    return stack.wording is not None and dataset in DATASETS


def is_packaged(stack: PromptedStack, dataset: str) -> bool:
    """Whether the prompts come from an installed package and not from a file of the stack."""
    if is_prepared(stack, dataset):
        return False
    return dataset in PACKAGED and not (Path(stack.path) / "prompts" / f"{dataset}.test.jsonl").is_file()


def splits_of(stack: PromptedStack, dataset: str) -> tuple[str, ...]:
    """Of packaged benchmarks, and of public data sets that are decoded as a whole, there is no dev split to tune on."""
    if is_prepared(stack, dataset):
        return splits(dataset)
    return ("test",) if is_packaged(stack, dataset) else SPLITS


def require_dev_split(stack: PromptedStack, datasets: Sequence[str]) -> None:
    """Raises UserError when no dataset can choose the budgets."""
    if not any("dev" in splits_of(stack, dataset) for dataset in datasets):
        found, known = ", ".join(datasets), "math" if stack.wording is None else "gsm8k"
        raise UserError(
            f"datasets: found {found}; one with a dev split is needed to choose budgets on ({known}, for one)"
        )


def _part_files(folder: Path) -> list[Path]:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder / 'config.json'}: not there; a checkpoint in Hugging Face layout is accepted")
    if not [*folder.glob("*.safetensors"), *folder.glob("*.pth")]:
        raise UserError(f"{folder}: no weights found; model.safetensors is accepted")
    if folder.name == "target" and not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder / 'tokenizer.json'}: not there; a target comes with its tokenizer")
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _prompt_file(folder: Path, dataset: str, split: str, prepares: bool) -> Path:
    path = folder / f"{dataset}.{split}.jsonl"
    if not path.is_file():
        known = sorted(file.name.split(".")[0] for file in folder.glob(f"*.{split}.jsonl"))
        names = dict.fromkeys([*known, *(DATASETS if prepares else ()), *PACKAGED])
        raise UserError(f"datasets: found '{dataset}'; accepted are {', '.join(names)}")
    return path
