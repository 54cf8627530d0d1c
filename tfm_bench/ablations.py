"""What each ablation measures: cells by name of the point, and what its own probe needs. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from tfm_bench.ablation_config import AblationName, AblationsConfig
from tfm_bench.config import (
    DEFAULT_VARIANT,
    ArmSettings,
    CellSettings,
    Config,
    StackConfig,
    expansion_width,
)
from tfm_bench.config_types import Count, Strict
from tfm_bench.stack_files import (
    control_files,
    splits_of,
)

VERSION = 1  # raised when an arm of an ablation comes to mean something else: variants, rules, stopping
GDN_METHODS = ("fused", "node_recurrent", "path_recurrent")
# The only kernels with every method, so that each is compared with its like.
TORCH_GDN_METHODS = ("torch_fused", "torch_level_recurrent", "torch_node_recurrent", "torch_path_recurrent")
# Weavers of tfm_bench.variants.weaver that need no training of their own.
UNTRAINED_WEAVERS = ("no_residual", "wrong_parent")
TRAVERSAL_RULES = ("traversal", "traversal_fixed_order", "traversal_no_residual")
AUTO = "auto_theta"
PROBED: tuple[AblationName, ...] = ("pool", "drafting", "acceptance_rule", "ceiling", "auto_budget", "precision")


class ProbeSettings(Strict):
    """What the process that measures something other than decoding needs: the slice of the configuration."""

    ablation: AblationName | Literal["claims"]
    stack: StackConfig
    ablations: AblationsConfig
    expansion_width: Count | Literal["auto"]
    seed: int


Points = dict[str, CellSettings]


def ablation_points(config: Config, ablation: str) -> Points:
    """Point -> settings of its cell. A point's name is a slug: part of a file name."""
    points: Points = {}
    for repeat in range(config.ablations.repeats):
        for name, settings in CELLS[ablation](config).items():
            points[f"{name}-r{repeat}"] = settings.model_copy(update={"repeat": repeat})
    return points


def probe_settings(config: Config, ablation: AblationName | Literal["claims"]) -> ProbeSettings:
    """What the probe of an ablation, or that of the claims, depends on."""
    return ProbeSettings(
        ablation=ablation,
        stack=config.stack,
        # Which ablations run decides on nothing that one of them measures.
        ablations=config.ablations.model_copy(update={"run": []}),
        expansion_width=config.expansion_width,
        seed=config.seed,
    )


def drafting_arms(settings: ProbeSettings) -> list[ArmSettings]:
    """Chains and trees of the least budget; of Weavers that were trained for it, those that the stack has."""
    budget = min(settings.ablations.budgets)
    width = expansion_width(settings.expansion_width, budget)
    trained = sorted({Path(file).parent.name for file in control_files(settings.stack)})
    variants = [DEFAULT_VARIANT, *(f"weaver_{name}" for name in (*UNTRAINED_WEAVERS, *trained))]
    return [
        *(ArmSettings(method="dflash_chain", budget=budget, variant=v) for v in (DEFAULT_VARIANT, "chain_sampled")),
        ArmSettings(method="ddtree", budget=budget),
        *(ArmSettings(method="tfm", budget=budget, expansion_width=width, variant=variant) for variant in variants),
    ]


def _cell(config: Config, *, temperature: float | None = None, **changes: Any) -> CellSettings:
    """A cell of test prompts at the ablations' temperature, not staged; `changes` are fields of CellSettings."""
    ablations = config.ablations
    settings = CellSettings(
        stack=config.stack,
        dataset=ablations.dataset,
        split="test",
        temperature=ablations.temperature if temperature is None else temperature,
        repeat=0,
        prompts=ablations.prompts,
        methods=config.methods,
        budgets=ablations.budgets,
        expansion_width=config.expansion_width,
        max_new_tokens=ablations.max_new_tokens,
        seed=config.seed,
        staged=False,
    )
    return settings.model_copy(update=changes)


def _at(config: Config, temperatures: Iterable[float], **changes: Any) -> Points:
    """A cell per temperature."""
    return {f"t{round(t * 100):03d}": _cell(config, temperature=t, **changes) for t in temperatures}


def _tfm(config: Config, budget: int, variant: str | None = None) -> ArmSettings:
    """`tfm` at the configured width."""
    named = {} if variant is None else {"variant": variant}
    width = expansion_width(config.expansion_width, budget)
    return ArmSettings(method="tfm", budget=budget, expansion_width=width, **named)


def _budget(config: Config) -> Points:
    ablation = config.ablations.budget
    return _at(config, ablation.temperatures, budgets=ablation.budgets)


def _width(config: Config) -> Points:
    ablation = config.ablations.width
    arms = [
        ArmSettings(method="tfm", budget=budget, expansion_width=width)
        for budget in ablation.budgets
        for width in ablation.widths
    ]
    return {"widths": _cell(config, arms=arms)}


def _gdn_verify(config: Config) -> Points:
    """The stack's own kernels at every budget, torch's at the largest, where verification weighs most."""
    budgets = config.ablations.budgets
    arms = [_tfm(config, budget, f"gdn_{method}") for budget in budgets for method in GDN_METHODS]
    arms += [_tfm(config, max(budgets), f"gdn_{method}") for method in TORCH_GDN_METHODS]
    return {"methods": _cell(config, arms=arms, staged=True)}


def _pool(config: Config) -> Points:
    ablation = config.ablations.pool
    return {"sizes": _cell(config, arms=[_tfm(config, ablation.budget, f"pool_{size}") for size in ablation.sizes])}


def _temperature(config: Config) -> Points:
    return _at(config, config.ablations.temperatures)


def _acceptance_rule(config: Config) -> Points:
    """Both tree methods under every rule; the default one is sample_match."""
    arms = []
    for budget in config.ablations.budgets:
        for variant in (DEFAULT_VARIANT, *(f"rule_{name}" for name in TRAVERSAL_RULES)):
            arms += [ArmSettings(method="ddtree", budget=budget, variant=variant), _tfm(config, budget, variant)]
    return {"rules": _cell(config, arms=arms)}


def _drafting(config: Config) -> Points:
    return {"arms": _cell(config, arms=drafting_arms(probe_settings(config, "drafting")))}


def auto_arms(settings: Config | ProbeSettings) -> list[ArmSettings]:
    """Both tree methods without a budget of their own: a tree ends where a node no longer pays."""
    budget = max(settings.ablations.auto_budget.budgets)
    width = expansion_width(settings.expansion_width, budget)
    ddtree = ArmSettings(method="ddtree", budget=budget, variant=AUTO)
    return [ddtree, ArmSettings(method="tfm", budget=budget, expansion_width=width, variant=AUTO)]


def _auto_budget(config: Config) -> Points:
    """Fixed budgets and auto arms on every split: the best fixed budget of dev is what auto has to beat on test."""
    arms = []
    for budget in config.ablations.auto_budget.budgets:
        arms += [ArmSettings(method="ddtree", budget=budget), _tfm(config, budget)]
    splits = splits_of(config.stack, config.ablations.dataset)
    return {split: _cell(config, split=split, arms=[*arms, *auto_arms(config)]) for split in splits}


def _context(config: Config) -> Points:
    ablation = config.ablations.context
    budgets = [ablation.budget]
    return {f"c{n}": _cell(config, prompt_tokens=n, budgets=budgets, staged=True) for n in ablation.lengths}


def _precision(config: Config) -> Points:
    budgets = [config.ablations.precision.budget]
    stacks = {dtype: config.stack.model_copy(update={"dtype": dtype}) for dtype in ("float32", "bfloat16")}
    return {dtype: _cell(config, stack=stack, budgets=budgets) for dtype, stack in stacks.items()}


CELLS: Mapping[str, Callable[[Config], Points]] = {
    "budget": _budget,
    "width": _width,
    "gdn_verify": _gdn_verify,
    "pool": _pool,
    "temperature": _temperature,
    "acceptance_rule": _acceptance_rule,
    "drafting": _drafting,
    "auto_budget": _auto_budget,
    "context": _context,
    "precision": _precision,
}
