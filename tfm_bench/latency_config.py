"""The section `latency` of the configuration: rounds of a stack whose shapes are real and whose weights are random."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tfm_bench.config_types import Budget, Count, Strict

HORIZON = 15  # drafted depths of all shapes: one below the drafter's block
StackShapes = Literal["27b", "tiny"]
GdnVerify = Literal["fused", "node_recurrent"]


class LatencyRun(Strict):
    """What is measured; config/default.yaml explains the keys."""

    shapes: StackShapes
    layers: Count
    dtype: Literal["float32", "bfloat16"]
    gdn_verify: list[GdnVerify] = Field(min_length=1)
    budgets: list[Budget] = Field(min_length=1)
    expansion_widths: list[Count]
    context: Count
    accepted: Annotated[int, Field(ge=0, le=HORIZON)]
    rounds: Count
    repeats: Count

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("gdn_verify", "budgets", "expansion_widths"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise ValueError(f"{key}: found {values}; each value is accepted once")
        if self.accepted > min(self.budgets):
            raise ValueError(
                f"accepted: found {self.accepted}; at most the least budget, {min(self.budgets)}, is accepted"
            )
        return self


class LatencyConfig(LatencyRun):
    """The section. acceptance: a decode.csv from whose acceptance lengths speedups are projected."""

    acceptance: str

    def run(self) -> LatencyRun:
        """What the measuring process depends on."""
        return LatencyRun(**self.model_dump(exclude={"acceptance"}))
