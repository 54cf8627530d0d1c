"""Reading checkpoints strictly: whatever does not fit its config.json is an error that lists it."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tfm_bench.errors import UserError
from tfm_bench.part_source import LOST
from tfm_bench.stack_config import SHARD_INDEX

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SINGLE_FILE = "model.safetensors"
SHARD_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,200}\.safetensors", re.ASCII)
LONGEST_SHOWN = 80

# What unpickling raises depends on which byte is wrong; its messages are about torch's own options.
DAMAGED = (
    RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError, pickle.UnpicklingError
)  # fmt: skip

Shapes = Mapping[str, tuple[int, ...]]


def read_json(path: str | Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError where it is missing, unreadable or no object."""
    _refuse_lost(path)
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; a checkpoint folder holds config.json.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON ({error}).") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds a {type(values).__name__}; accepted is a JSON object.")
    return values


def load_strict(expected: nn.Module | Mapping[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, or of a folder with one file or an index of shards, on the CPU.

    `expected` (a module, meta device included, or a state dict) says which names and shapes config.json asks for; any
    missing, unexpected or mis-shaped tensor raises UserError before a single tensor is read.
    """
    files = weight_files(path)
    check_shapes(_expected_shapes(expected), stored_shapes(files), Path(path))
    tensors: dict[str, Tensor] = {}
    for file in files:
        with _opened(file) as handle:
            tensors.update({name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118, not a dict
    return tensors


def load_pickled(path: str | Path) -> dict[str, Any]:
    """What torch.save wrote, tensors and plain values only. Raises UserError where it is missing or damaged."""
    _refuse_lost(path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; accepted is a file that torch.save wrote.") from error
    except DAMAGED as error:
        raise UserError(f"{path}: damaged, or holds more than tensors and plain values.") from error
    if not isinstance(payload, dict):
        raise UserError(f"{path}: holds a {type(payload).__name__}; accepted is a dict with config and state_dict.")
    return payload


def check_shapes(expected: Shapes, found: Shapes, source: str | Path) -> None:
    """Raise UserError, in one line, with every missing, unexpected or mis-shaped tensor of `found`."""
    problems = [
        f"tensor {name} has shape {list(found[name])}, config.json asks for {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    problems += [f"tensor {name} {list(shape)} is missing" for name, shape in expected.items() if name not in found]
    problems += [f"tensor {name} {list(shape)} is unexpected" for name, shape in found.items() if name not in expected]
    if problems:
        raise UserError(f"{source}: {'; '.join(problems)}; the file and its config.json do not belong together.")


def weight_files(path: str | Path) -> list[Path]:
    """The safetensors files of a checkpoint, given as a file or as its folder.

    Raises UserError if one is missing, and for an index that does not say what its shards hold.
    """
    path = Path(path)
    index = path / SHARD_INDEX
    if not index.exists():
        return [_existing(path / SINGLE_FILE if path.is_dir() else path)]
    if (path / SINGLE_FILE).exists():
        raise UserError(f"{path}: holds both {SINGLE_FILE} and {SHARD_INDEX}; accepted is one of them.")
    files = [_existing(path / shard) for shard in shard_names(index)]
    _check_index(index, files)
    return files


def shard_names(index: str | Path) -> list[str]:
    """The files that an index of shards names, each once and in order. Raises UserError for what is no such index."""
    return sorted(set(_weight_map(index).values()))


def stored_shapes(files: list[Path]) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the headers of safetensors files; no tensor is read.

    Raises UserError if damaged, and for tensors that are no plain floating-point numbers.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with _opened(file) as handle:
            for name in handle.keys():  # noqa: SIM118, a safetensors handle is no dict
                tensor = handle.get_slice(name)
                check_dtype(name, tensor.get_dtype(), file)
                shapes[name] = tuple(tensor.get_shape())
    return shapes


def check_dtype(name: str, dtype: str | torch.dtype, source: str | Path) -> None:
    """Raises UserError, which names the tensor, for integers, 8-bit and complex numbers."""
    if dtype not in DTYPES and dtype not in DTYPES.values():
        accepted = ", ".join(str(kind).removeprefix("torch.") for kind in DTYPES.values())
        raise UserError(f"{source}: tensor {name} is of {str(dtype).removeprefix('torch.')}; accepted are {accepted}.")


def file_sha256(path: str | Path) -> str:
    """Hex digest of a file. Raises UserError where it cannot be read."""
    _refuse_lost(path)
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; its hash was to be recorded.") from error


def _expected_shapes(expected: nn.Module | Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    state = expected.state_dict() if isinstance(expected, nn.Module) else expected
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _weight_map(index: str | Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index}: key weight_map is {weight_map!r}; accepted is an object of tensor names and files.")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            found = repr(shard)[:LONGEST_SHOWN]
            raise UserError(f"{index}: tensor {name} stands in {found}; accepted is a .safetensors file beside it.")
    return weight_map


def _check_index(index: Path, files: list[Path]) -> None:
    """Every tensor stands in the shard that the index names, and in no other."""
    named = set(_weight_map(index).items())
    stored = {(name, file.name) for file in files for name in stored_shapes([file])}
    problems = [f"tensor {name} is not in {shard}" for name, shard in sorted(named - stored)]
    problems += [f"tensor {name} of {shard} is not listed" for name, shard in sorted(stored - named)]
    if problems:
        raise UserError(f"{index}: {'; '.join(problems)}; the index and its shards do not belong together.")


def _refuse_lost(path: str | Path) -> None:
    """Raises UserError for a link to a file that is gone."""
    path = Path(path)
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path}: {LOST}; delete {path.parent} and rerun")


def _existing(file: Path) -> Path:
    _refuse_lost(file)
    if not file.is_file():
        raise UserError(f"{file}: no such file; a checkpoint folder holds config.json and {SINGLE_FILE}.")
    return file


def _opened(file: Path) -> Any:
    """An open safetensors file, used as a context manager."""
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: damaged or truncated, not readable as safetensors ({_first_line(error)}).") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
