"""Config of a Weaver, with the keys of the published checkpoints (arXiv 2607.06763)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tfm_bench.errors import UserError

GLOBAL_PROMPT_ENCODER = 3
SIMPLE_SCORE_HEAD = 4
V2_ACTIVATION = "swiglu"
V2_ROPE_BASE = 10000.0


@dataclass(frozen=True)
class WeaverConfig:
    """Keys of a published Weaver config. `activation` and `rope_base` exist in v2 only and are None in v1."""

    d_model: int
    d_embed: int
    d_rank: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    K: int
    candidate_pool_size: int
    encoder_mode: int = GLOBAL_PROMPT_ENCODER
    score_head: int = SIMPLE_SCORE_HEAD
    activation: str | None = None
    rope_base: float | None = None

    @property
    def version(self) -> int:
        return 1 if self.activation is None else 2

    @property
    def rotary_base(self) -> float:
        return V2_ROPE_BASE if self.rope_base is None else self.rope_base

    @property
    def head_dim(self) -> int:
        return self.d_rank // self.num_heads

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str) -> WeaverConfig:
        """Config from the keys of a file; `source` names it. Raises UserError for any key it cannot honour."""
        known = {field.name for field in fields(cls)}
        required = {field.name for field in fields(cls)[:8]}
        if wrong := sorted(required - values.keys()) or sorted(values.keys() - known):
            kind = "lacks" if required - values.keys() else "has unknown"
            raise UserError(
                f"{source}: config {kind} key(s) {', '.join(wrong)}; accepted are {', '.join(sorted(known))}"
            )
        for key in sorted(required):
            if not isinstance(values[key], int) or values[key] < 1:
                raise UserError(f"{source}: config key {key} is {values[key]!r}, accepted is a positive integer")
        accepted = {
            "encoder_mode": (GLOBAL_PROMPT_ENCODER,),
            "score_head": (SIMPLE_SCORE_HEAD,),
            "activation": (None, V2_ACTIVATION),
        }
        for key, options in accepted.items():
            if values.get(key, options[0]) not in options:
                raise UserError(f"{source}: config key {key} is {values[key]!r}, accepted: {options}")
        config = cls(**values)
        if config.d_rank % config.num_heads:
            raise UserError(f"{source}: d_rank {config.d_rank} is no multiple of num_heads {config.num_heads}")
        return config

    def to_dict(self) -> dict[str, Any]:
        """The published form: v2 keys are absent in v1."""
        return {key: value for key, value in asdict(self).items() if value is not None}
