"""Ahead-of-time compilation of every Triton kernel, without a GPU: registers, shared memory and spills per variant.

`python -m kernels.aot --capability 90` prints one JSON line per specialisation of every module named `triton_*` below
`kernels/`, and exits with 1 if one of them spills or does not fit. Module names as arguments restrict it to those.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import kernels

# Shared memory that one block can take, in bytes: CUDA C++ programming guide, compute capabilities.
SHARED_LIMIT = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
NVIDIA_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class Specialisation(NamedTuple):
    """One variant of a kernel, as its public function launches it.

    signature: type of each run-time argument by name, "*fp32", "*bf16", "i32", "fp32", ...; ":16" behind it where a
    launch would find it divisible by 16 (pointers into torch's allocations, most strides). constexprs: all others.
    maxnreg: as in a launch; without it ptxas may spill a little for the sake of more blocks per processor.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, object]
    num_warps: int = 4
    num_stages: int = 3
    maxnreg: int | None = None


class Resources(NamedTuple):
    """registers per thread; shared_bytes per block; spill_bytes per thread (stack and local memory)."""

    registers: int
    shared_bytes: int
    spill_bytes: int


def compile_ahead(spec: Specialisation, capability: int) -> Resources:
    """Compiles for sm_<capability>, e.g. 80, 90, 100. Raises RuntimeError where kernels were imported interpreted."""
    if not isinstance(spec.kernel, triton.JITFunction):
        raise RuntimeError(f"{spec.name} is interpreted: unset TRITON_INTERPRET before importing it, to compile it")
    types = {name: kind.partition(":")[0] for name, kind in spec.signature.items()}
    places = {name: place for place, name in enumerate(spec.kernel.arg_names)}
    divisible = {(places[name],): [["tt.divisibility", 16]] for name, kind in spec.signature.items() if ":16" in kind}
    signature = {name: types.get(name, "constexpr") for name in spec.kernel.arg_names}
    source = ASTSource(spec.kernel, signature, spec.constexprs, divisible)
    options = {name: getattr(spec, name) for name in ("num_warps", "num_stages", "maxnreg")}
    options["enable_fp_fusion"] = True
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    usage = _resource_usage(compiled.asm["cubin"])
    return Resources(usage["REG"], compiled.metadata.shared, usage["STACK"] + usage["LOCAL"])


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """What cuobjdump reports on the one function of a cubin: REG, STACK, SHARED, LOCAL, ..."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(NVIDIA_TOOLS / "cuobjdump"), "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", report)}


def fault(resources: Resources, capability: int) -> str | None:
    """Why a kernel must not be launched so, or None."""
    if resources.spill_bytes:
        return f"spills {resources.spill_bytes} bytes per thread"
    limit = SHARED_LIMIT.get(capability, min(SHARED_LIMIT.values()))
    if resources.shared_bytes > limit:
        return f"takes {resources.shared_bytes} bytes of shared memory, sm_{capability} has {limit}"
    return None


def triton_modules() -> list[str]:
    """All modules below `kernels` whose names begin with "triton_"."""
    found = pkgutil.walk_packages(kernels.__path__, "kernels.")
    return [module.name for module in found if module.name.rpartition(".")[2].startswith("triton_")]


def reports(modules: list[str], capability: int) -> Iterator[dict[str, Any]]:
    """One record per specialisation; `fault` is None where all is well."""
    for module in modules:
        for spec in importlib.import_module(module).specialisations():
            resources = compile_ahead(spec, capability)
            record = {"module": module, "name": spec.name, "capability": capability, "num_warps": spec.num_warps}
            yield record | resources._asdict() | {"fault": fault(resources, capability)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description=__doc__)
    parser.add_argument("modules", nargs="*", help="e.g. kernels.gdn_tree.triton_fused; all Triton modules if none")
    parser.add_argument("--capability", type=int, default=90, help="80, 90, 100, ...")
    options = parser.parse_args(arguments)
    faults = 0
    for record in reports(options.modules or triton_modules(), options.capability):
        print(json.dumps(record), flush=True)
        faults += record["fault"] is not None
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
