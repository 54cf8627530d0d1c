"""A GPU made of the CPU: tensors that claim to be on cuda, and a count of how often the host waits for them.

Values are real, so whole generations run. As on a GPU, an operation that mixes devices is an error, memory that is not
on the CPU has no address here, and whatever the host reads is a wait. Launches of Triton kernels are not simulated.
"""

import contextlib
from collections import Counter
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

CUDA = torch.device("cuda", 0)
# The host needs what these compute before it can go on: a value, or the shape of the result.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2"}
# Values that a call brings along may stay on the CPU: CUDA takes scalars of no dimension, and indices with a copy.
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {"copy_", "_to_copy"}


class GpuTensor(torch.Tensor):
    """A tensor of the simulated GPU; `values` holds its numbers."""

    @staticmethod
    def __new__(cls, values):
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, **layout, device=CUDA)

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, call, types, arguments=(), options=None):
        return _dispatch(call, arguments, options or {}, Counter())

    def __repr__(self):
        return f"GpuTensor({self.values!r})"


class SimulatedGpu(TorchDispatchMode):
    """Within it torch sees a GPU. waits: how often the host waited, by operation."""

    # As fake tensors do it: with this key torch makes tensors "on cuda" without looking for a driver.
    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __init__(self):
        super().__init__()
        self.waits = Counter()

    def __torch_dispatch__(self, call, types, arguments=(), options=None):
        return _dispatch(call, arguments, options or {}, self.waits)


@contextlib.contextmanager
def simulated_gpu():
    """Makes torch.cuda available in this sense, without streams and graphs."""
    patched = [
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.synchronize"),
        mock.patch("torch.Tensor.pin_memory", lambda tensor: tensor),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patched:
            stack.enter_context(patch)
        yield stack.enter_context(SimulatedGpu())


def on_gpu(module):
    """Moves a module's tensors, as .to("cuda") would."""
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, value in table.items():
                if value is not None:
                    moved = GpuTensor(value.detach().clone())
                    table[name] = nn.Parameter(moved, requires_grad=False) if table is part._parameters else moved
    return module


def _dispatch(call, arguments, options, waits):
    name = call.name().split("::")[-1].split(".")[0]
    device = options.get("device")
    if device is not None and name != "_to_copy":
        made = call(*_unwrapped(arguments), **_unwrapped(options) | {"device": "cpu"})
        return GpuTensor(made) if torch.device(device).type == "cuda" else made
    if name == "_to_copy":
        return _moved(call, arguments, options, waits)
    given = [leaf for leaf in tree_flatten((arguments, options))[0] if isinstance(leaf, torch.Tensor)]
    gpu = [isinstance(tensor, GpuTensor) for tensor in given]
    if not any(gpu):
        return call(*arguments, **options)
    _check(name, given)
    if name in WAITING or (name == "copy_" and not gpu[0]) or _reads_a_mask(name, arguments):
        waits[name] += 1
    result = call(*_unwrapped(arguments), **_unwrapped(options))
    wrapped = tree_map_only(torch.Tensor, GpuTensor, result)
    return return_and_correct_aliasing(call, arguments, options, wrapped)


def _moved(call, arguments, options, waits):
    """_to_copy: to another device, dtype or both."""
    source = arguments[0]
    wanted = torch.device(options["device"]).type if options.get("device") is not None else source.device.type
    if isinstance(source, GpuTensor) and wanted == "cpu":
        waits["to cpu"] += 1
    made = call(*_unwrapped(arguments), **{k: v for k, v in options.items() if k not in ("device", "pin_memory")})
    return GpuTensor(made) if wanted == "cuda" else made


def _check(name, given):
    """Raises RuntimeError for an operation that mixes devices."""
    if name in COPIES:
        return
    first = 1 if name in INDEXED else 0
    strangers = [tensor for tensor in given[first:] if not isinstance(tensor, GpuTensor) and tensor.dim()]
    if name in INDEXED and isinstance(given[0], GpuTensor):
        return
    if strangers or (name in INDEXED and not isinstance(given[0], GpuTensor)):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cpu and cuda")


def _reads_a_mask(name, arguments):
    """An index by a mask has a shape that only the device knows."""
    if name not in INDEXED:
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1])


def _unwrapped(values):
    return tree_map_only(GpuTensor, lambda tensor: tensor.values, values)
