"""A GPU made of the CPU: tensors that claim to be on cuda, and a count of how often the host waits for them.

Values are real, so whole generations run. As on a GPU, an operation that mixes devices is an error, memory that is not
on the CPU has no address here, and whatever the host reads is a wait. Triton kernels are interpreted on the values.
"""

import contextlib
import copy
import ctypes
import functools
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

try:
    from triton.runtime.interpreter import InterpretedFunction
except ImportError:
    InterpretedFunction = None

CUDA = torch.device("cuda", 0)
_TO = nn.Module.to
# The host needs what these compute before it can go on: a value, or the shape of the result.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
# Without it, torch refuses to look at a cuda tensor in a build for the CPU.
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
"""


class GpuTensor(torch.Tensor):
    """A tensor of the simulated GPU; `values` holds its numbers."""

    @staticmethod
    def __new__(cls, values):
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        with torch.inference_mode(False):  # else a view of an older tensor would have no version counter to share
            return torch.Tensor._make_wrapper_subclass(cls, values.shape, **layout, device=CUDA)

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, call, types, arguments=(), options=None):
        raise RuntimeError("a tensor of the simulated GPU was left over: it lives within simulated_gpu() alone")

    def tolist(self):
        return self.cpu().tolist()

    def __repr__(self):
        return f"GpuTensor({self.values!r})"


class SimulatedGpu(TorchDispatchMode):
    """Within it torch sees a GPU. waits: how often the host waited, by what for."""

    # With the key of fake tensors torch makes tensors "on cuda" without looking for a driver.
    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __init__(self):
        super().__init__()
        self.waits = Counter()

    def __torch_dispatch__(self, call, types, arguments=(), options=None):
        options = options or {}
        # In inference mode operations that are made of others come as they are, a move among them.
        if torch._C._dispatch_has_kernel_for_dispatch_key(call.name(), "CompositeImplicitAutograd"):
            with self:
                return call.decompose(*arguments, **options)
        name = call.name().split("::")[-1].split(".")[0]
        if name == "_to_copy":
            return self._moved(call, arguments, options)
        if options.get("device") is not None:
            made = call(*_unwrapped(arguments), **_unwrapped(options) | {"device": "cpu"})
            return GpuTensor(made) if torch.device(options["device"]).type == "cuda" else made
        return self._computed(call, name, arguments, options)

    def _moved(self, call, arguments, options):
        """_to_copy: to another device, dtype or both."""
        source = arguments[0]
        wanted = source.device.type if options.get("device") is None else torch.device(options["device"]).type
        if isinstance(source, GpuTensor) and wanted == "cpu":
            self.waits["to the CPU"] += 1
        if wanted == "cuda" and not isinstance(source, GpuTensor) and not hasattr(source, "in_pinned_memory"):
            self.waits["to the GPU from memory that is not pinned"] += 1
        kept = {key: value for key, value in options.items() if key not in ("device", "pin_memory")}
        made = call(*_unwrapped(arguments), **kept)
        return GpuTensor(made) if wanted == "cuda" else made

    def _computed(self, call, name, arguments, options):
        given = [leaf for leaf in tree_flatten((arguments, options))[0] if isinstance(leaf, torch.Tensor)]
        if not any(isinstance(tensor, GpuTensor) for tensor in given):
            return call(*arguments, **options)
        _check_devices(name, given)
        if name in WAITING or (name == "copy_" and not isinstance(given[0], GpuTensor)) or _by_mask(name, arguments):
            self.waits[name] += 1
        result = call(*_unwrapped(arguments), **_unwrapped(options))
        # What was changed in place comes back as the tensor that it was; views share memory by their values.
        known = {id(tensor.values): tensor for tensor in given if isinstance(tensor, GpuTensor)}
        return tree_map_only(
            torch.Tensor, lambda made: known[id(made)] if id(made) in known else GpuTensor(made), result
        )


@contextlib.contextmanager
def simulated_gpu():
    """torch.cuda is available, without streams and graphs. Skips the test where no C++ compiler is at hand."""
    _register_guard()
    patched = [
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.synchronize"),
        mock.patch("torch.Tensor.pin_memory", _pinned),
        mock.patch("torch.nn.Module.to", _module_to),
    ]
    if InterpretedFunction is not None:
        run = InterpretedFunction.run
        patched += [
            mock.patch.object(InterpretedFunction, "run", lambda *given, **options: run(*_unwrapped(given), **options)),
            mock.patch("kernels.weaver.triton_tree.TritonWeaverTree.capture"),
        ]
    with contextlib.ExitStack() as stack:
        for patch in patched:
            stack.enter_context(patch)
        # torch.tensor(..., device="cuda") shall be a tensor of the CPU that is then moved.
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        yield stack.enter_context(SimulatedGpu())


def on_gpu(module, dtype=None):
    """A copy with its tensors there."""
    module = _TO(copy.deepcopy(module), dtype)
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, value in table.items():
                if value is not None:
                    moved = GpuTensor(value.detach().clone())
                    table[name] = nn.Parameter(moved, requires_grad=False) if table is part._parameters else moved
    return module


@functools.cache
def _register_guard():
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(GUARD)
        command = [os.environ.get("CXX", "c++"), "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}"]
        try:
            subprocess.run([*command, source, "-o", library, f"-L{root / 'lib'}", "-lc10"], check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("a simulated GPU needs a C++ compiler")
        ctypes.CDLL(str(library))


def _module_to(module, *wanted, **options):
    """As nn.Module.to, which cannot put a tensor of another class into its parameters."""
    places = [*wanted, *options.values()]
    return (
        on_gpu(module) if any(isinstance(place, torch.device) for place in places) else _TO(module, *wanted, **options)
    )


def _pinned(tensor):
    pinned = tensor.clone()
    pinned.in_pinned_memory = True
    return pinned


def _check_devices(name, given):
    """Raises RuntimeError for an operation that mixes devices.

    CUDA takes scalars without dimension from the CPU, and indices, with a copy of them.
    """
    if name == "copy_":
        return
    judged = given[:1] if name in INDEXED else given
    if any(not isinstance(tensor, GpuTensor) and tensor.dim() for tensor in judged):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cpu and cuda")


def _by_mask(name, arguments):
    """An index by a mask has a shape that only the device knows."""
    if name not in INDEXED:
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1])


def _unwrapped(values):
    return tree_map_only(GpuTensor, lambda tensor: tensor.values, values)
