"""Configuration of a run: pydantic models, checked before the first job starts. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import Field, ValidationError, model_validator

from tfm_bench.ablation_config import AblationsConfig
from tfm_bench.config_types import Budget, Count, Slug, Strict, Temperature, require_hundredths
from tfm_bench.errors import UserError
from tfm_bench.kernel_config import RECORDED_KINDS, KernelsConfig, RecordedKind, RecordedTreesConfig
from tfm_bench.latency_config import LatencyConfig, LatencyRun
from tfm_bench.stack_config import STACK_PARTS as STACK_PARTS
from tfm_bench.stack_config import STATE_STORING as STATE_STORING
from tfm_bench.stack_config import StackConfig

Method = Literal["ar", "dflash_chain", "ddtree", "tfm"]
METHODS: tuple[Method, ...] = get_args(Method)
DEFAULT_VARIANT = "default"
# Token-identical to plain decoding; equal to it in law; two samplers of the field that are neither; and what a server
# draws by noise of its own.
Rule = Literal["sample_match", "traversal", "traversal_fixed_order", "traversal_no_residual", "server_sampler"]
STAGES = ("draft", "tree", "verify", "accept", "commit")
TREE_METHODS: tuple[Method, ...] = ("ddtree", "tfm")
NODES_PER_WEAVER_CALL = 16
# Ablations that decode with `tfm` whatever `methods` says, and those about Gated-DeltaNet layers.
WEAVER_ABLATIONS = frozenset(
    {"width", "gdn_verify", "pool", "acceptance_rule", "drafting", "ceiling", "auto_budget", "precision"}
)
GDN_ABLATIONS = frozenset({"gdn_verify", "precision"})


def require_grid(fields: Mapping[str, Any]) -> None:
    """What the lists that the cells of a run are made of must hold, of engine and server. Raises ValueError."""
    if "ar" not in fields["methods"]:
        raise ValueError("methods: 'ar' is missing; every speedup is a ratio to it")
    for key in ("datasets", "temperatures", "methods", "budgets"):
        values = fields[key]
        if len(set(values)) < len(values):
            raise ValueError(f"{key}: found {values}; each value is accepted once")
    for temperature in fields["temperatures"]:
        require_hundredths("temperatures", temperature)


class PromptCounts(Strict):
    """Prompts per dataset: dev chooses budgets, test is reported."""

    dev: Count
    test: Count | Literal["all"]


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
    latency: LatencyConfig

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_grid(dict(self))
        self._check_parts()
        return self

    def _check_parts(self) -> None:
        """What needs a Weaver or Gated-DeltaNet layers is accepted for stacks that have them."""
        if not self.stack.has_weaver:
            if "tfm" in self.methods:
                raise ValueError("methods: found 'tfm'; it is accepted for stacks whose parts have a weaver")
            if self.measures_kernels and any("weaver" in grid.trees for grid in self.kernels.grids):
                raise ValueError("kernels.grids: found 'weaver'; it is accepted for stacks whose parts have a weaver")
        self.require_parts(self.ablations.run)

    def require_parts(self, ablations: Iterable[str]) -> None:
        """Raises ValueError for an ablation of what the stack does not have."""
        run = set(ablations)
        if not self.stack.has_weaver and (needing := sorted(run & WEAVER_ABLATIONS)):
            raise ValueError(f"ablations.run: found {needing[0]!r}; it is accepted for stacks with a weaver")
        if not self.measures_kernels and (needing := sorted(run & GDN_ABLATIONS)):
            raise ValueError(f"ablations.run: found {needing[0]!r}; it is accepted where stack.gdn_verify is not null")

    @property
    def measures_kernels(self) -> bool:
        """Whether the target has layers that the kernel benchmark is about."""
        return self.stack.gdn_verify is not None

    @property
    def watches_claims(self) -> bool:
        """Whether rounds are those that the paper makes claims about: trees of Weaver over Gated-DeltaNet layers."""
        return self.stack.has_weaver and self.measures_kernels


class ArmSettings(Strict):
    """One arm of an ablation's cell. variant: what is changed in the stack for it, see tfm_bench.variants."""

    method: Method
    budget: Annotated[int, Field(ge=0, le=1024)] = 0
    expansion_width: Annotated[int, Field(ge=0)] = 0
    variant: Slug = DEFAULT_VARIANT


class DecodingSettings(Strict):
    """What cells of the engine and of a server share."""

    dataset: Slug
    split: Literal["dev", "test"]
    temperature: Temperature
    repeat: Annotated[int, Field(ge=0)]
    prompts: Count | Literal["all"]
    methods: list[Method]
    budgets: list[Budget]
    max_new_tokens: int
    seed: int


class CellSettings(DecodingSettings):
    """What one measuring process needs: the slice of the configuration that a cell depends on.

    arms: those of an ablation besides `ar`; without any, methods x budgets. prompt_tokens: length to which prompts are
    brought by other prompts in front of them; None leaves them as they are. staged: whether stage times are measured.
    """

    stack: StackConfig
    expansion_width: Count | Literal["auto"]
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

    @property
    def kinds(self) -> list[RecordedKind]:
        """Trees that the rounds of the stack can verify."""
        return [kind for kind in RECORDED_KINDS if kind != "weaver" or self.stack.has_weaver]


class KernelSettings(Strict):
    """What the process that measures kernels needs."""

    threads: Count
    kernels: KernelsConfig


class LatencySettings(Strict):
    """What the process that measures latency needs."""

    threads: Count
    latency: LatencyRun


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


def latency_settings(config: Config) -> LatencySettings:
    """The slice of `config` that the latency benchmark depends on."""
    return LatencySettings(threads=config.stack.threads, latency=config.latency.run())


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
