"""What records of repeated timings share: the times, or why there are none."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

Launch = Literal["graphs", "eager"]
Status = Literal["ok", "failed", "skipped", "unsupported"]


class Sampled(BaseModel):
    """Times exist only where `status` is ok, a reason only where it is not. samples_ms: one time per run, in order."""

    model_config = ConfigDict(allow_inf_nan=False)

    status: Status
    reason: str | None
    samples_ms: list[float]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.status == "ok") != bool(self.samples_ms) or (self.status == "ok") != (self.reason is None):
            raise ValueError(f"status {self.status!r} with {len(self.samples_ms)} times and reason {self.reason!r}")
        return self

    def quantiles(self) -> dict[str, float]:
        """Median, p20 and p80 in milliseconds, nan without times, and the number of runs."""
        p20, median, p80 = np.quantile(self.samples_ms, [0.2, 0.5, 0.8]) if self.samples_ms else [np.nan] * 3
        return {"median_ms": median, "p20_ms": p20, "p80_ms": p80, "runs": len(self.samples_ms)}
