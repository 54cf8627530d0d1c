"""Weaver checkpoints on disk: the published `.pth` and our folder of config.json and model.safetensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm_bench.errors import UserError
from tfm_bench.models.checkpoints import (
    check_dtype,
    check_shapes,
    load_pickled,
    load_strict,
    read_json,
    stored_shapes,
    weight_files,
)
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import V2_ACTIVATION, WeaverConfig

# Far above any published size, and low enough that no product of two sizes overflows.
LARGEST, MOST_LAYERS = 2**24, 1024
FUSED, SPLIT = "qkv_proj.weight", ("q_proj.weight", "k_proj.weight", "v_proj.weight")


def load_weaver(path: str | Path, dtype: torch.dtype = torch.float32) -> Weaver:
    """Weaver of a published `.pth` file, of the folder that holds it, or of a folder in our layout, frozen, in `dtype`.

    The names of the tensors tell v1 from v2. Raises UserError naming the file for anything that does not fit.
    """
    path = Path(path)
    if not path.exists() and not path.is_symlink():
        accepted = "a .pth file, or a folder that has one or config.json and model.safetensors, is accepted"
        raise UserError(f"{path}: not there, so that the stack has no Weaver; {accepted}.")
    path = _weights(path)
    weaver, state = _from_folder(path) if path.is_dir() else _from_pth(path)
    weaver.load_state_dict(state, assign=True)
    return weaver.to(dtype).eval().requires_grad_(False)


def _weights(path: Path) -> Path:
    """The `.pth` of a folder that has one, else the path itself."""
    published = sorted(path.glob("*.pth")) if path.is_dir() else []
    others = [*published[1:], *path.glob("*.safetensors")] if published else []
    if others:
        raise UserError(f"{path}: holds {published[0].name} and {others[0].name}; accepted is one Weaver.")
    return published[0] if published else path


def _from_folder(folder: Path) -> tuple[Weaver, dict[str, Tensor]]:
    values = read_json(folder / "config.json")
    files = weight_files(folder)
    weaver = _empty_weaver(values, stored_shapes(files), str(folder / "config.json"), str(files[0]))
    return weaver, load_strict(weaver, folder if len(files) > 1 else files[0])


def _from_pth(path: Path) -> tuple[Weaver, dict[str, Tensor]]:
    payload = load_pickled(path)
    if not all(isinstance(payload.get(key), Mapping) for key in ("config", "state_dict")):
        raise UserError(f"{path}: holds {sorted(map(str, payload))}; accepted is a dict with config and state_dict.")
    state = dict(payload["state_dict"])
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UserError(f"{path}: state_dict has {name!r} of type {type(value).__name__}; accepted are tensors.")
        check_dtype(name, value.dtype, path)
        if value.layout is not torch.strided or value.is_meta:
            raise UserError(f"{path}: tensor {name} is sparse or without values; accepted are dense tensors.")
    weaver = _empty_weaver(payload["config"], state, str(path), str(path))
    check_shapes(_fused_where(state, _shapes(weaver.state_dict())), _shapes(state), path)
    return weaver, _split_fused(state) if weaver.config.version == 1 else state


def _fused_where(state: Collection[str], shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """v1 shapes with one `qkv_proj.weight`, rows q, k, v, in place of three projections where `state` has it so."""
    fused = dict(shapes)
    for name in [name for name in state if name.endswith(FUSED) and name not in shapes]:
        split = [name.replace(FUSED, part) for part in SPLIT]
        if all(part in fused for part in split):
            rows, columns = shapes[split[0]]
            fused = {key: shape for key, shape in fused.items() if key not in split} | {name: (3 * rows, columns)}
    return fused


def _split_fused(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A v1 state dict in which every fused projection stands as three."""
    split: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.endswith(FUSED):
            split |= {name.replace(FUSED, part): rows for part, rows in zip(SPLIT, value.chunk(3), strict=True)}
        else:
            split[name] = value
    return split


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in state.items()}


def _check_types(values: Mapping[str, Any], source: str) -> None:
    """Raises UserError for keys that are no names, and for values that no key of a Weaver config has."""
    for key, value in values.items():
        if not isinstance(key, str):
            raise UserError(f"{source}: config key {key!r} is {type(key).__name__}; accepted are names.")
        largest = MOST_LAYERS if key == "num_layers" else LARGEST
        if isinstance(value, bool) or (isinstance(value, int) and value > largest):
            raise UserError(f"{source}: config key {key} is {repr(value)[:80]}; accepted are numbers up to {largest}.")
    base = values.get("rope_base")
    if base is not None and not (isinstance(base, int | float) and 0 < base < math.inf):
        raise UserError(f"{source}: config key rope_base is {base!r}; accepted is a finite number above 0.")


def _empty_weaver(values: Mapping[str, Any], names: Collection[str], config_file: str, tensor_file: str) -> Weaver:
    """A Weaver on the meta device, of the generation that the tensor names imply."""
    _check_types(values, config_file)
    config = WeaverConfig.from_dict(values, config_file)
    version = 1 if "pos_emb" in names else 2 if "blocks.0.gate_up_proj.weight" in names else None
    if version is None:
        raise UserError(
            f"{tensor_file}: no Weaver; accepted are v1 (tensor pos_emb) and v2 (tensor blocks.0.gate_up_proj.weight)."
        )
    if version == 1 and config.version == 2:
        raise UserError(
            f"{tensor_file}: tensors are of v1 (pos_emb), the config says activation {config.activation!r}."
        )
    with torch.device("meta"):
        return Weaver(config if version == 1 else replace(config, activation=V2_ACTIVATION))
