"""results/claims: what the paper claims, what was measured here, and what follows.

Verdicts on "at least", from the 95 % interval of what was measured, the paper's value and the value of no effect:

- reproduced: the interval reaches the paper's value, or passes it, and excludes less than half of the paper's effect;
- direction only: clear of no effect, but not reproduced;
- contradicted: the paper's value is excluded, and no effect is not;
- not testable here: nothing was measured, no interval, or one so wide that it holds both values.

"About" is reproduced where the interval comes within a quarter of the paper's value, and else contradicted. A claim
that something always holds is reproduced where it held every time, and else contradicted. Nothing is scaled to the
paper's machine or model: the setting of a claim is the paper's, the reason says what stood in for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tfm_bench.config_types import Slug
from tfm_bench.errors import UserError

VERSION = 1
COLUMNS = [
    *["id", "claim", "setting", "paper_value", "measured", "low", "high", "unit", "verdict", "reason", "rule"],
]
REPRODUCED, DIRECTION, CONTRADICTED = "reproduced", "direction only", "contradicted"
NOT_TESTABLE = "not testable here"
ABOUT = 0.25  # of the paper's value
CLAIMS = Path("workflows/claims.yaml")


class Claim(BaseModel):
    """One entry of workflows/claims.yaml, which explains the keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Slug
    claim: str
    setting: str
    paper: float | None = None
    no_effect: float | None = None
    kind: Literal["at_least", "about", "holds"]
    unit: str
    rule: str
    measure: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.paper is None) != (self.kind == "holds") or (self.no_effect is None) != (self.kind != "at_least"):
            raise ValueError("at_least needs paper and no_effect, about needs paper alone, holds neither")
        return self


class Measured(NamedTuple):
    """What the suite found. low and high: ends of a 95 % interval, nan without one; reason: what stood in for what."""

    value: float
    low: float
    high: float
    reason: str


class Missing(NamedTuple):
    """Why nothing was found."""

    reason: str


Measure = Callable[[Mapping[str, pd.DataFrame]], Measured | Missing]


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """Raises UserError naming the file, the claim and the key of what is not accepted."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    claims = []
    for entry in entries:
        try:
            claims.append(Claim.model_validate(entry))
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(str(part) for part in problem["loc"])
            raise UserError(f"{path}: claim {entry.get('id', '?')}: {key}: {problem['msg']}") from None
    names = [claim.id for claim in claims]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: id: found one twice; every claim has its own")
    return claims


def table_claims(
    claims: list[Claim], measures: Mapping[str, Measure], tables: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """A row per claim. tables: by name, as far as they were made. Raises UserError for a measure that is not known."""
    unknown = [claim.measure for claim in claims if claim.measure not in measures]
    if unknown:
        raise UserError(f"{CLAIMS}: measure: found {unknown[0]!r}; accepted are {', '.join(measures)}")
    return pd.DataFrame([_row(claim, measures[claim.measure](tables)) for claim in claims], columns=COLUMNS)


def _row(claim: Claim, found: Measured | Missing) -> dict[str, Any]:
    if isinstance(found, Missing):
        found, verdict = Measured(math.nan, math.nan, math.nan, found.reason), NOT_TESTABLE
    else:
        verdict = verdict_of(claim, found)
    return {
        "id": claim.id,
        "claim": claim.claim,
        "setting": claim.setting,
        "paper_value": math.nan if claim.paper is None else claim.paper,
        "measured": found.value,
        "low": found.low,
        "high": found.high,
        "unit": claim.unit,
        "verdict": verdict,
        "reason": found.reason,
        "rule": claim.rule,
    }


def verdict_of(claim: Claim, found: Measured) -> str:
    """See the head of this module."""
    if claim.kind == "holds":
        return REPRODUCED if found.value == 1 else CONTRADICTED
    if not all(map(math.isfinite, found[:3])):
        return NOT_TESTABLE
    assert claim.paper is not None, "checked when the claim was read"
    if claim.kind == "about":
        slack = ABOUT * claim.paper
        return REPRODUCED if found.low <= claim.paper + slack and found.high >= claim.paper - slack else CONTRADICTED
    assert claim.no_effect is not None, "checked when the claim was read"
    clear, reaches = found.low > claim.no_effect, found.high >= claim.paper
    if clear:
        return REPRODUCED if reaches and found.low >= (claim.no_effect + claim.paper) / 2 else DIRECTION
    return NOT_TESTABLE if reaches else CONTRADICTED
