"""Committing the accepted path on a GPU, in place: states and convolution windows of all layers in one launch.

The leading dimension R is layers times sequences. `path` [A] or [S, A] (any integer type) lists the accepted nodes,
anchor first, and ends in -1 up to its static length; row r of R takes path r % S. Rows off the path are never read.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.gdn_tree.structure import CONV_WIDTH
from kernels.gdn_tree.triton_recurrent import require_dense_rows

# 64 registers a lane hold 16 columns of 128 rows; 32 columns spill on sm_80 and sm_100.
VALUE_TILE = 16
CHANNEL_TILE = 256


def replay(
    *,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    path: Tensor,
    state: Tensor,
    inputs: Tensor | None = None,
    window: Tensor | None = None,
) -> None:
    """Runs the recurrence once more along the path, in fp32: the same arithmetic whatever tree the path came from.

    k [R, N, H, K], l2-normalised, and v [R, N, HV, V] in bf16 or fp32; g, beta [R, N, HV] and state [R, HV, K, V] in
    fp32. With inputs [R, N, C], the window [R, C, 3] takes the last three inputs of the path in the same launch.
    Last dimensions are dense, other strides free; ValueError where not, or where one of inputs and window is missing.
    """
    _commit(k, v, g, beta, path, state, inputs, window)


def fold(
    *,
    k: Tensor,
    pseudo_values: Tensor,
    g: Tensor,
    path: Tensor,
    state: Tensor,
    inputs: Tensor | None = None,
    window: Tensor | None = None,
) -> None:
    """S <- e^{G} S + sum over the path of e^{G - G_j} k_j u_j^T, with the pseudo-values u that verification left.

    pseudo_values [R, N, HV, V]; the rest as in replay. The sum is taken node by node, root first. Source: README.md.
    """
    _commit(k, pseudo_values, g, None, path, state, inputs, window)


def _commit(
    k: Tensor,
    updates: Tensor,
    g: Tensor,
    beta: Tensor | None,
    path: Tensor,
    state: Tensor,
    inputs: Tensor | None,
    window: Tensor | None,
) -> None:
    require_dense_rows(k=k, updates=updates, g=g, beta=beta, path=path, state=state, inputs=inputs, window=window)
    if (inputs is None) != (window is None):
        raise ValueError("inputs and window of the convolution come together or not at all.")
    rows, value_heads, key_dim, value_dim = state.shape
    channels = 0 if inputs is None else inputs.shape[2]
    state_programs = value_heads * triton.cdiv(value_dim, VALUE_TILE)
    _commit_kernel[(state_programs + triton.cdiv(channels, CHANNEL_TILE), rows)](
        k,
        updates,
        g,
        beta,
        path,
        state,
        inputs,
        window,
        path.shape[-1],
        path.shape[0] if path.ndim == 2 else 1,
        path.stride(0) if path.ndim == 2 else 0,
        channels,
        *k.stride()[:3],
        *updates.stride()[:3],
        *g.stride()[:2],
        *((0, 0) if beta is None else beta.stride()[:2]),
        *state.stride()[:3],
        *((0, 0) if inputs is None else inputs.stride()[:2]),
        *((0, 0) if window is None else window.stride()[:2]),
        HEADS=k.shape[2],
        VALUE_HEADS=value_heads,
        K=key_dim,
        V=value_dim,
        WIDTH=CONV_WIDTH,
        BLOCK_A=triton.next_power_of_2(path.shape[-1]),
        BLOCK_K=max(16, triton.next_power_of_2(key_dim)),
        BLOCK_V=VALUE_TILE,
        BLOCK_C=CHANNEL_TILE,
        num_warps=1,
        num_stages=1,
    )


@triton.jit
def _load_step(k, updates, g, beta, node, taken, strides, rows, columns, K, V):
    """Key, value (or pseudo-value), decay and beta of one node of the path; nothing is touched unless `taken`."""
    k_node, updates_node, g_node, beta_node = strides
    # `!= 0`: as in triton_recurrent, for the interpreter.
    key = tl.load(k + node * k_node + rows, mask=((rows < K) & taken) != 0, other=0.0).to(tl.float32)
    updates += node * updates_node + columns
    update = tl.load(updates, mask=((columns < V) & taken) != 0, other=0.0).to(tl.float32)
    decay = tl.exp(tl.load(g + node * g_node, mask=taken, other=0.0))
    strength = decay
    if beta is not None:
        strength = tl.load(beta + node * beta_node, mask=taken, other=0.0)
    return key, update, decay, strength


@triton.jit
def _advance_state(k, updates, g, beta, path, state, length, strides, state_row, rows, columns, K, V):
    """One tile [K, value columns] of one head's state, read once, taken along the path, written once."""
    inside = (rows[:, None] < K) & (columns[None, :] < V)
    tile = state + rows[:, None] * state_row + columns[None, :]
    S = tl.load(tile, mask=inside, other=0.0)
    node = tl.load(path, mask=length > 0, other=0).to(tl.int32)
    key, update, decay, strength = _load_step(k, updates, g, beta, node, length > 0, strides, rows, columns, K, V)
    for step in range(length):
        more = step + 1 < length
        node = tl.load(path + step + 1, mask=more, other=0).to(tl.int32)
        next_key, next_update, next_decay, next_strength = _load_step(
            k, updates, g, beta, node, more, strides, rows, columns, K, V
        )
        S *= decay
        if beta is not None:
            update = strength * (update - tl.sum(S * key[:, None], 0))
        S += key[:, None] * update[None, :]
        key, update, decay, strength = next_key, next_update, next_decay, next_strength
    tl.store(tile, S, mask=inside)


@triton.jit
def _advance_window(inputs, window, path, length, inputs_node, window_channel, lanes, inside, WIDTH: tl.constexpr):
    """The last WIDTH - 1 of (window, inputs on the path) for a block of channels, read before anything is written."""
    columns = tl.arange(0, WIDTH)
    source = length + columns
    kept = source < WIDTH - 1
    taken = (source >= WIDTH - 1) & (columns < WIDTH - 1)
    node = tl.load(path + source - (WIDTH - 1), mask=taken, other=0).to(tl.int32)
    own = window + lanes[:, None] * window_channel
    old = tl.load(own + source[None, :], mask=inside[:, None] & kept[None, :], other=0.0)
    rows = inputs + node[None, :] * inputs_node + lanes[:, None]
    new = tl.load(rows, mask=inside[:, None] & taken[None, :], other=0.0)
    tl.debug_barrier()
    value = tl.where(kept[None, :], old, new.to(old.dtype))
    tl.store(own + columns[None, :], value, mask=inside[:, None] & (columns < WIDTH - 1)[None, :])


@triton.jit
def _commit_kernel(
    k, updates, g, beta, path, state, inputs, window, path_length, path_rows, path_row, channels,
    k_outer, k_node, k_head, updates_outer, updates_node, updates_head, g_outer, g_node, beta_outer, beta_node,
    state_outer, state_head, state_row, inputs_outer, inputs_node, window_outer, window_channel,
    HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_A: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of all heads' states, then blocks of channels; R)."""
    job = tl.program_id(0)
    outer = tl.program_id(1).to(tl.int64)
    path += (outer % path_rows) * path_row
    steps = tl.arange(0, BLOCK_A)
    length = tl.sum((tl.load(path + steps, mask=steps < path_length, other=-1) >= 0).to(tl.int32), 0)
    tiles: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    if job < VALUE_HEADS * tiles:
        value_head = job // tiles
        k += outer * k_outer + value_head // (VALUE_HEADS // HEADS) * k_head
        updates += outer * updates_outer + value_head * updates_head
        g += outer * g_outer + value_head
        if beta is not None:
            beta += outer * beta_outer + value_head
        state += outer * state_outer + value_head * state_head
        rows = tl.arange(0, BLOCK_K)
        columns = job % tiles * BLOCK_V + tl.arange(0, BLOCK_V)
        strides = (k_node, updates_node, g_node, beta_node)
        _advance_state(k, updates, g, beta, path, state, length, strides, state_row, rows, columns, K, V)
    elif inputs is not None:
        inputs += outer * inputs_outer
        window += outer * window_outer
        lanes = (job - VALUE_HEADS * tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
        _advance_window(inputs, window, path, length, inputs_node, window_channel, lanes, lanes < channels, WIDTH)


def specialisations() -> list[Specialisation]:
    """27B shapes (16 key heads, 48 value heads) and 4B shapes (16, 32), heads of 128, with windows, paths up to 16."""
    shapes = [(value_heads, kind) for value_heads in (48, 32) for kind in ("bf16", "fp32")]
    return [_specialisation(commit, *shape) for commit in ("replay", "fold") for shape in shapes]


def _specialisation(commit: str, value_heads: int, kind: str) -> Specialisation:
    without = {"beta": None} if commit == "fold" else {}
    arguments = [name for name in _commit_kernel.arg_names if name.islower() and name not in without]
    pointers = dict.fromkeys(("k", "inputs", "window"), f"*{kind}:16") | {"path": "*i64:16"}
    pointers |= dict.fromkeys(("g", "beta", "state"), "*fp32:16")
    pointers["updates"] = f"*{kind}:16" if commit == "replay" else "*fp32:16"
    dims = {"HEADS": 16, "VALUE_HEADS": value_heads, "K": 128, "V": 128, "WIDTH": CONV_WIDTH}
    blocks = {"BLOCK_A": 16, "BLOCK_K": 128, "BLOCK_V": VALUE_TILE, "BLOCK_C": CHANNEL_TILE}
    return Specialisation(
        name=f"{commit}_16x{value_heads}x128_{kind}",
        kernel=_commit_kernel,
        signature=dict.fromkeys(arguments, "i32:16")
        | {name: pointer for name, pointer in pointers.items() if name not in without}
        | dict.fromkeys(("path_rows", "path_row", "window_channel"), "i32"),
        constexprs={**without, **dims, **blocks},
        num_warps=1,
        num_stages=1,
    )
