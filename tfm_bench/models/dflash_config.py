"""config.json of a DFlash drafter, read exactly as published (arXiv 2602.06036; z-lab checkpoints)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfm_bench.errors import UserError
from tfm_bench.models.checkpoints import read_json

FULL, SLIDING = "full_attention", "sliding_attention"
# Far above any published size, and low enough that no product of two of them overflows.
LARGEST, LONGEST_BLOCK = 2**24, 1024
LONGEST_SHOWN = 80


@dataclass(frozen=True)
class DFlashConfig:
    """Sizes and attention rules of one drafter.

    layer_types holds one of FULL, SLIDING per layer; sliding_window is None where no layer slides; is_causal is None
    where the file has no such key. `block_size` counts the anchor, so the draft horizon is block_size - 1.
    num_target_layers, vocab_size: of the target that it was trained for, None where the file does not say.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    layer_types: tuple[str, ...]
    sliding_window: int | None = None
    is_causal: bool | None = None
    num_target_layers: int | None = None
    vocab_size: int | None = None

    @classmethod
    def from_file(cls, path: str | Path) -> DFlashConfig:
        """Read config.json (or the folder that holds it). Raises UserError naming file and key."""
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        return cls.from_dict(read_json(path), source=str(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config.json") -> DFlashConfig:
        """Parse the published keys; keys that nothing here needs are ignored. Raises UserError."""
        nested = _get(values, "dflash_config", dict, source)
        layers = _positive(values, "num_hidden_layers", source)
        layer_types = _layer_types(values, layers, source)
        _reject_unsupported(values, source)
        heads, kv_heads, head_dim = _heads(values, source)
        return cls(
            hidden_size=_positive(values, "hidden_size", source),
            intermediate_size=_positive(values, "intermediate_size", source),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=_positive_float(values, "rms_norm_eps", source),
            rope_theta=_rope_theta(values, source),
            # DFlash2 files carry block_size inside dflash_config, older ones at the top.
            block_size=_block_size(nested if "block_size" in nested else values, source),
            mask_token_id=_get(nested, "mask_token_id", int, source),
            target_layer_ids=_taps(values, nested, layers, source),
            layer_types=layer_types,
            sliding_window=_positive(values, "sliding_window", source) if SLIDING in layer_types else None,
            is_causal=_get(values, "is_causal", bool, source) if values.get("is_causal") is not None else None,
            num_target_layers=_positive_if_there(values, "num_target_layers", source),
            vocab_size=_positive_if_there(values, "vocab_size", source),
        )

    def window(self, layer_type: str) -> int | None:
        """Keys at distance `window` or more are hidden from a layer of this type; None hides none."""
        return self.sliding_window if layer_type == SLIDING else None

    def causal_in_block(self, layer_type: str) -> bool:
        """Without the key `is_causal`, sliding layers are causal inside the block and full layers bidirectional."""
        return layer_type == SLIDING if self.is_causal is None else self.is_causal


def default_taps(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """Target layers whose outputs feed the drafter where a config lists none: from the second to the third last."""
    if draft_layers == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (draft_layers - 1)) for i in range(draft_layers))


def _get(values: Mapping[str, Any], key: str, kind: type | tuple[type, ...], source: str) -> Any:
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    if key not in values:
        raise UserError(f"{source}: key {key} is missing; a DFlash drafter needs it ({names}).")
    value = values[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{source}: key {key} is {_shown(value)}; accepted is {names}.")
    return value


def _positive(values: Mapping[str, Any], key: str, source: str, *, least: int = 1, most: int = LARGEST) -> int:
    value = _get(values, key, int, source)
    if not least <= value <= most:
        raise UserError(f"{source}: key {key} is {_shown(value)}; accepted is {least} to {most}.")
    return value


def _positive_if_there(values: Mapping[str, Any], key: str, source: str) -> int | None:
    return _positive(values, key, source) if values.get(key) is not None else None


def _positive_float(values: Mapping[str, Any], key: str, source: str) -> float:
    value = _get(values, key, (int, float), source)
    if not 0 < value <= sys.float_info.max:  # NaN is not above 0
        raise UserError(f"{source}: key {key} is {_shown(value)}; accepted is a finite number above 0.")
    return float(value)


def _block_size(values: Mapping[str, Any], source: str) -> int:
    """The anchor and at least one draft."""
    return _positive(values, "block_size", source, least=2, most=LONGEST_BLOCK)


def _shown(value: object) -> str:
    return repr(value)[:LONGEST_SHOWN]


def _heads(values: Mapping[str, Any], source: str) -> tuple[int, int, int]:
    """Query heads, key-value heads and their width."""
    heads, kv_heads = (_positive(values, f"num_{kind}_heads", source) for kind in ("attention", "key_value"))
    head_dim = _positive(values, "head_dim", source)
    if heads % kv_heads:
        accepted = f"a multiple of num_key_value_heads, which is {kv_heads}"
        raise UserError(f"{source}: key num_attention_heads is {heads}; accepted is {accepted}.")
    if head_dim % 2:
        raise UserError(f"{source}: key head_dim is {head_dim}; accepted is an even number, for rotary positions.")
    return heads, kv_heads, head_dim


def _layer_types(values: Mapping[str, Any], layers: int, source: str) -> tuple[str, ...]:
    # Read here and not by transformers' Qwen3Config, which drops the window and so turns every layer into a full one.
    types = _get(values, "layer_types", list, source)
    if len(types) != layers or any(kind not in (FULL, SLIDING) for kind in types):
        raise UserError(f"{source}: key layer_types is {types}; accepted are {layers} entries of {FULL} or {SLIDING}.")
    return tuple(types)


def _taps(values: Mapping[str, Any], nested: Mapping[str, Any], layers: int, source: str) -> tuple[int, ...]:
    if "target_layer_ids" not in nested:
        return default_taps(_positive(values, "num_target_layers", source), layers)
    taps = _get(nested, "target_layer_ids", list, source)
    if not taps or any(type(tap) is not int or tap < 0 for tap in taps):
        raise UserError(f"{source}: key target_layer_ids is {taps}; accepted is a list of layer numbers from 0.")
    return tuple(taps)


def _rope_theta(values: Mapping[str, Any], source: str) -> float:
    """Newer transformers write rope_theta inside rope_parameters."""
    rope = _rope_parameters(values, source)
    return _positive_float(rope if "rope_theta" in rope else values, "rope_theta", source)


def _rope_parameters(values: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    return {} if values.get("rope_parameters") is None else _get(values, "rope_parameters", dict, source)


def _reject_unsupported(values: Mapping[str, Any], source: str) -> None:
    rope = _rope_parameters(values, source)
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{source}: key rope_parameters is {rope}; accepted is plain rotary over the whole head.")
    accepted = {"attention_bias": (False, None), "hidden_act": ("silu", None), "rope_scaling": (None,)}
    for key, allowed in accepted.items():
        if values.get(key) not in allowed:
            raise UserError(f"{source}: key {key} is {values[key]!r}; accepted is {allowed[0]!r}.")
