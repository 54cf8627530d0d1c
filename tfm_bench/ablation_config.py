"""The section `ablations` of the configuration: what each ablation varies. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from tfm_bench.config_types import Budget, Count, Slug, Strict, Temperature, require_hundredths

AblationName = Literal[
    "budget", "width", "gdn_verify", "pool", "temperature", "acceptance_rule", "drafting", "ceiling", "auto_budget",
    "context", "precision",
]  # fmt: skip
ABLATIONS: tuple[AblationName, ...] = get_args(AblationName)


class BudgetAblation(Strict):
    """Every method over these budgets."""

    budgets: list[Budget] = Field(min_length=1)
    temperatures: list[Temperature] = Field(min_length=1)


class WidthAblation(Strict):
    """`tfm` over budgets x expansion widths."""

    budgets: list[Budget] = Field(min_length=1)
    widths: list[Count] = Field(min_length=1)


class PoolAblation(Strict):
    """`tfm` over sizes of the pool, at most the vocabulary."""

    sizes: list[Count] = Field(min_length=1)
    budget: Budget


class DraftingAblation(Strict):
    """Every drafter at every place of the text of so many prompts, beside decoding."""

    prompts: Annotated[int, Field(ge=2)]


class CeilingAblation(Strict):
    """Oracle marginals from so many continuations of the target, at so many places of its own text, to this depth."""

    datasets: list[Slug] = Field(min_length=1)
    samples: Annotated[int, Field(ge=8)]
    places: Annotated[int, Field(ge=2)]
    depths: Count


class AutoBudgetAblation(Strict):
    """Trees of these budgets against trees that stop by themselves, at the largest of them at the latest."""

    budgets: list[Budget] = Field(min_length=1)


class ContextAblation(Strict):
    """Every method at one budget, over lengths of the prompt in tokens."""

    lengths: list[Count] = Field(min_length=1)
    budget: Budget


class PrecisionAblation(Strict):
    """Every method at one budget in both precisions, and tokens over which the two commits drift apart."""

    budget: Budget
    drift_tokens: Count


class AblationsConfig(Strict):
    """config/default.yaml explains the keys. run: the ablations of `reproduce_all`; each is a target of its own too."""

    run: list[AblationName]
    dataset: Slug
    prompts: Annotated[int, Field(ge=2)]
    max_new_tokens: Annotated[int, Field(ge=2)]
    repeats: Count
    temperature: Temperature
    budgets: list[Budget] = Field(min_length=1)
    budget: BudgetAblation
    width: WidthAblation
    pool: PoolAblation
    temperatures: list[Temperature] = Field(min_length=1)
    drafting: DraftingAblation
    ceiling: CeilingAblation
    auto_budget: AutoBudgetAblation
    context: ContextAblation
    precision: PrecisionAblation

    @model_validator(mode="after")
    def _check(self) -> Self:
        lists: dict[str, Sequence[object]] = {
            "run": self.run,
            "budgets": self.budgets,
            "temperatures": self.temperatures,
            "budget.budgets": self.budget.budgets,
            "budget.temperatures": self.budget.temperatures,
            "width.budgets": self.width.budgets,
            "width.widths": self.width.widths,
            "pool.sizes": self.pool.sizes,
            "ceiling.datasets": self.ceiling.datasets,
            "auto_budget.budgets": self.auto_budget.budgets,
            "context.lengths": self.context.lengths,
        }
        for key, values in lists.items():
            if len(set(values)) < len(values):
                raise ValueError(f"{key}: found {values}; each value is accepted once")
        for temperature in (self.temperature, *self.temperatures, *self.budget.temperatures):
            require_hundredths("temperatures", temperature)
        return self
