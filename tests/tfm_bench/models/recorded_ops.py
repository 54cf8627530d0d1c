"""A graph backend for the CPU: records the operations of the work, and replays those and nothing else.

Like a CUDA graph it holds tensors and not Python: what the host computed while recording is frozen, a read by the host
is refused, and a tensor that the work is given anew later on is never looked at.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

HOST_READS = ("_local_scalar_dense", "lift_fresh", "equal", "nonzero")


class RecordedOps:
    """Counts what it records and replays."""

    def __init__(self):
        self.records = self.replays = 0

    def record(self, work):
        work()  # aside, as on a GPU
        recorder = _Recorder()
        with recorder:
            outputs = work()
        self.records += 1

        def replay():
            self.replays += 1
            for call, arguments, options, results in recorder.calls:
                for old, new in zip(results, _tensors(call(*arguments, **options)), strict=True):
                    if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)

        return replay, outputs


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, call, types, arguments=(), options=None):
        name = call.name().split("::")[-1].split(".")[0]
        if name in HOST_READS:
            raise RuntimeError(f"{name}: the host may not read or bring data while a graph is recorded")
        result = call(*arguments, **(options or {}))
        self.calls.append((call, arguments, options or {}, _tensors(result)))
        return result


def _tensors(result):
    return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
