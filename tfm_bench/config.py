"""Configuration of a run: pydantic models, checked before the first job starts. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import Field, ValidationError, model_validator

from tfm_bench.ablation_config import AblationsConfig
from tfm_bench.config_types import Budget, Count, Slug, Strict, Temperature, require_hundredths
from tfm_bench.errors import UserError
from tfm_bench.kernel_config import KernelsConfig, RecordedTreesConfig
from tfm_bench.prompts.datasets import PACKAGED, packaged_file

Method = Literal["ar", "dflash_chain", "ddtree", "tfm"]
METHODS: tuple[Method, ...] = get_args(Method)
DEFAULT_VARIANT = "default"
# Token-identical to plain decoding; equal to it in law; and two samplers of the field that are neither.
Rule = Literal["sample_match", "traversal", "traversal_fixed_order", "traversal_no_residual"]
STAGES = ("draft", "tree", "verify", "accept", "commit")
TREE_METHODS: tuple[Method, ...] = ("ddtree", "tfm")
SPLITS = ("dev", "test")
STATE_STORING = ("level_recurrent", "node_recurrent")
STACK_PARTS = ("target", "drafter", "weaver")
NODES_PER_WEAVER_CALL = 16


class StackConfig(Strict):
    """Which checkpoints decode, and along which of the equivalent paths."""

    name: Slug
    path: str
    dtype: Literal["float32", "bfloat16"]
    gdn_verify: Literal["fused", "level_recurrent", "node_recurrent", "path_recurrent"]
    commit: Literal["replay", "fold", "select"]
    threads: Count

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.commit == "select" and self.gdn_verify not in STATE_STORING:
            raise ValueError(f"commit: 'select' needs a gdn_verify that stores states: {' or '.join(STATE_STORING)}")
        return self


class PromptCounts(Strict):
    """Prompts per dataset: dev chooses budgets, test is reported."""

    dev: Count
    test: Count


class Config(Strict):
    """One run of the suite; config/default.yaml explains the keys."""

    stack: StackConfig
    datasets: list[Slug] = Field(min_length=1)
    temperatures: list[Temperature] = Field(min_length=1)
    methods: list[Method]
    budgets: list[Budget] = Field(min_length=1)
    expansion_width: Count | Literal["auto"]
    prompts: PromptCounts
    max_new_tokens: Annotated[int, Field(ge=2)]
    repeats: Count
    seed: Annotated[int, Field(ge=0)]
    kernels: KernelsConfig
    ablations: AblationsConfig

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "ar" not in self.methods:
            raise ValueError("methods: 'ar' is missing; every speedup is a ratio to it")
        for key in ("datasets", "temperatures", "methods", "budgets"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise ValueError(f"{key}: found {values}; each value is accepted once")
        for temperature in self.temperatures:
            require_hundredths("temperatures", temperature)
        return self


class ArmSettings(Strict):
    """One arm of an ablation's cell. variant: what is changed in the stack for it, see tfm_bench.variants."""

    method: Method
    budget: Annotated[int, Field(ge=0, le=1024)] = 0
    expansion_width: Annotated[int, Field(ge=0)] = 0
    variant: Slug = DEFAULT_VARIANT


class CellSettings(Strict):
    """What one measuring process needs: the slice of the configuration that a cell depends on.

    arms: those of an ablation besides `ar`; without any, methods x budgets. prompt_tokens: length to which prompts are
    brought by other prompts in front of them; None leaves them as they are. staged: whether stage times are measured.
    """

    stack: StackConfig
    dataset: Slug
    split: Literal["dev", "test"]
    temperature: Temperature
    repeat: Annotated[int, Field(ge=0)]
    prompts: Count
    methods: list[Method]
    budgets: list[Budget]
    expansion_width: Count | Literal["auto"]
    max_new_tokens: int
    seed: int
    arms: list[ArmSettings] = Field(default=[])
    prompt_tokens: Count | None = None
    staged: bool = True


class TreeSettings(Strict):
    """What recording trees needs: the slice of the configuration that they depend on."""

    stack: StackConfig
    nodes: list[int]
    recorded: RecordedTreesConfig
    expansion_width: Count | Literal["auto"]
    seed: int


class KernelSettings(Strict):
    """What the process that measures kernels needs."""

    threads: Count
    kernels: KernelsConfig


def load_config(mapping: Mapping[str, Any], *, origin: str = "config") -> Config:
    """Check a configuration. Raises UserError, one line: origin, key, what was found and what is accepted."""
    try:
        return Config.model_validate(dict(mapping))
    except ValidationError as error:
        raise UserError(f"{origin}: {_first_problem(error)}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError when it is missing, unreadable or no mapping."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML ({getattr(error, 'problem', None) or 'unreadable'})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'})") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: found {type(loaded).__name__}; a mapping of keys to values is accepted")
    return loaded


def expansion_width(width: int | Literal["auto"], budget: int) -> int:
    """Nodes expanded per Weaver call; "auto" keeps the number of calls at NODES_PER_WEAVER_CALL or less."""
    return math.ceil(budget / NODES_PER_WEAVER_CALL) if width == "auto" else width


def cell_settings(
    config: Config, *, split: Literal["dev", "test"], dataset: str, temperature_hundredths: int, repeat: int
) -> CellSettings:
    """The slice of `config` for one cell; temperatures stand in file names as whole hundredths."""
    shared = {"methods", "budgets", "expansion_width", "max_new_tokens", "seed"}
    return CellSettings(
        stack=config.stack,
        dataset=dataset,
        split=split,
        temperature=temperature_hundredths / 100,
        repeat=repeat,
        prompts=getattr(config.prompts, split),
        **config.model_dump(include=shared),
    )


def tree_settings(config: Config) -> TreeSettings:
    """The slice of `config` that recorded trees depend on."""
    return TreeSettings(
        nodes=config.kernels.recorded_nodes(),
        recorded=config.kernels.recorded,
        **config.model_dump(include={"stack", "expansion_width", "seed"}),
    )


def kernel_settings(config: Config) -> KernelSettings:
    """The slice of `config` that the kernel benchmark depends on."""
    return KernelSettings(threads=config.stack.threads, kernels=config.kernels)


def stack_files(stack: StackConfig, *, dataset: str, split: str) -> list[str]:
    """Every file of the stack that a cell reads. Raises UserError for a missing part, dataset or package."""
    root = Path(stack.path)
    if not root.is_dir():
        raise UserError(
            f"stack.path: {root} is not there; a folder with {', '.join(STACK_PARTS)} and prompts is accepted"
        )
    files = [path for part in STACK_PARTS for path in _part_files(root / part)]
    if is_packaged(stack, dataset):
        packaged_file(dataset)
        return [*map(str, files)]
    return [*map(str, files), str(_prompt_file(root / "prompts", dataset, split))]


def control_files(stack: StackConfig) -> list[str]:
    """Weavers of the stack that were trained for an ablation; a stack may have none."""
    return [str(path) for path in sorted(Path(stack.path).glob("controls/*/*")) if path.is_file()]


def is_packaged(stack: StackConfig, dataset: str) -> bool:
    """Whether the prompts come from an installed package and not from a file of the stack."""
    return dataset in PACKAGED and not (Path(stack.path) / "prompts" / f"{dataset}.test.jsonl").is_file()


def splits_of(stack: StackConfig, dataset: str) -> tuple[str, ...]:
    """Packaged benchmarks are only reported, never tuned on: they have no dev split."""
    return ("test",) if is_packaged(stack, dataset) else SPLITS


def require_dev_split(config: Config) -> None:
    """Raises UserError when no dataset can choose the budgets."""
    if not any("dev" in splits_of(config.stack, dataset) for dataset in config.datasets):
        found = ", ".join(config.datasets)
        raise UserError(f"datasets: found {found}; one with a dev split is needed to choose budgets on (math, for one)")


def _part_files(folder: Path) -> list[Path]:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder / 'config.json'}: not there; a checkpoint in Hugging Face layout is accepted")
    if not [*folder.glob("*.safetensors"), *folder.glob("*.pth")]:
        raise UserError(f"{folder}: no weights found; model.safetensors is accepted")
    if folder.name == "target" and not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder / 'tokenizer.json'}: not there; a target comes with its tokenizer")
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _prompt_file(folder: Path, dataset: str, split: str) -> Path:
    path = folder / f"{dataset}.{split}.jsonl"
    if not path.is_file():
        known = sorted(file.name.split(".")[0] for file in folder.glob(f"*.{split}.jsonl"))
        raise UserError(f"datasets: found '{dataset}'; accepted are {', '.join([*known, *PACKAGED])}")
    return path


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{key}: not there, but required"
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown key; accepted are the keys of config/default.yaml"
    if problem["type"] == "value_error":  # of a section as a whole; the message names the key in it
        return f"{key}.{message}"
    return f"{key}: found {problem['input']!r}; {message[0].lower()}{message[1:]}"
