"""What all models of the configuration share."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
Budget = Annotated[int, Field(ge=1, le=1024)]
Temperature = Annotated[float, Field(ge=0.0, le=10.0)]
Count = Annotated[int, Field(ge=1)]


def require_hundredths(key: str, temperature: float) -> None:
    """Raises ValueError: in names of files temperatures are whole hundredths."""
    if not math.isclose(temperature * 100, round(temperature * 100), abs_tol=1e-6):
        raise ValueError(f"{key}: found {temperature}; whole hundredths are accepted")


class Strict(BaseModel):
    """No unknown keys, no change after loading. Numbers may be strings: Snakemake's --config makes them so in lists."""

    model_config = ConfigDict(extra="forbid", frozen=True)
