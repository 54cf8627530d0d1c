"""Projections that share an input, as one GEMM, in the form that is fastest on the device at hand.

On the CPU in fp32 a single row is fastest against a contiguous [in, out] matrix (`mm`), several rows against weights
that oneDNN has reordered into blocks: measured on an AVX-512 core at 256 x 784, 17 rows take 80 us packed and 119 us
otherwise, one row 15 us by `mm` and 26 us packed. Both forms are kept there; elsewhere there is one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import silu


class FusedLinear:
    """y = x W^T for the stacked rows W of several weights; y holds their outputs side by side.

    Built from nn.Linear modules it takes over their storage: each module's weight becomes a view of the fused matrix,
    so that nothing but the reordered CPU form costs extra memory, and the modules keep working.
    """

    def __init__(self, modules: Sequence[nn.Linear], *, share_storage: bool = True) -> None:
        """share_storage=False leaves the modules alone, for a weight that is tied to an embedding."""
        weight = torch.cat([module.weight.detach() for module in modules])
        self.sizes = [module.weight.shape[0] for module in modules]
        self.packed: Tensor | None = None
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            transposed = weight.t().contiguous()
            self.packed = _reorder(weight)
            weight = transposed.t()
        elif len(modules) == 1:
            weight = modules[0].weight.detach()
        self.weight, self.transposed = weight, weight.t()
        if share_storage:
            for module, rows in zip(modules, weight.split(self.sizes), strict=True):
                module.weight.data = rows

    def __call__(self, x: Tensor) -> Tensor:
        """[N, in] -> [N, out]."""
        if x.shape[0] == 1 or self.packed is None:
            return torch.mm(x, self.transposed)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x W^T, [N, out]."""
        if x.shape[0] == 1 or self.packed is None:
            return torch.addmm(residual, x, self.transposed)
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.packed, None, "add")


def gated_mlp(gate_up: FusedLinear, down: FusedLinear, x: Tensor, residual: Tensor) -> Tensor:
    """residual + down(silu(gate(x)) * up(x)), [N, H]."""
    gate, up = gate_up(x).chunk(2, dim=-1)
    return down.add(silu(gate).mul_(up), residual)


def _reorder(weight: Tensor) -> Tensor | None:
    """oneDNN's blocked form of an fp32 matrix, or None where this build has none."""
    if not torch.backends.mkldnn.is_available():
        return None
    # The row count only guides the choice of blocks; 32 was within 5 % of the best for 2 to 65 rows.
    return torch.ops.mkldnn._reorder_linear_weight(weight, 32)
