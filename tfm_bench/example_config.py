"""Which generation the example tree is taken from."""

from __future__ import annotations

from tfm_bench.config import (
    ArmSettings,
    CellSettings,
    Config,
    cell_settings,
    expansion_width,
)
from tfm_bench.stack_files import (
    splits_of,
)

BUDGET = 15  # as many drafts as the chain's block has: small enough to be read


def example_settings(config: Config) -> CellSettings:
    """The first prompt of the first dataset, of its dev split where it has one, at the highest temperature."""
    dataset = config.datasets[0]
    settings = cell_settings(
        config,
        split="dev" if "dev" in splits_of(config.stack, dataset) else "test",
        dataset=dataset,
        temperature_hundredths=round(max(config.temperatures) * 100),
        repeat=0,
    )
    width = expansion_width(config.expansion_width, BUDGET)
    arm = ArmSettings(method="tfm", budget=BUDGET, expansion_width=width)
    # Without what an example does not depend on: a change of the budgets draws no other tree.
    return settings.model_copy(update={"prompts": 1, "methods": ["tfm"], "budgets": [BUDGET], "arms": [arm]})
