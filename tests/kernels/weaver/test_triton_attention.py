"""Node-step attention against scaled_dot_product_attention with an explicit mask in fp64, and the norms around it."""

import pytest
import torch
import torch.nn.functional as F

from kernels.weaver.triton_attention import node_attention
from kernels.weaver.triton_norm import add_norm, node_inputs

DEPTHS, NODES = 5, 9
PREFIX = DEPTHS + 1
PARENTS = [-1, 0, 0, 1, 3, 3, 2, 4, 0]
BATCH = [5, -1, 8, 7, 2]  # none of them above another
# fp32: a few units in the last place of sums of up to 200 products; bf16: half of the last place, twice that in the
# interpreter, which truncates.
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def tree_paths() -> tuple[list[int], list[list[int]]]:
    """Depths, and per node the slots from the anchor to the node."""
    paths: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        paths.append([*(paths[parent] if node else []), node])
    return [len(path) - 1 for path in paths], paths


def relative_rms(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual.double().cpu() - expected).norm() / expected.norm()).item()


def make_problem(heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> dict:
    """Arguments of node_attention; cache rows that no node of the batch may see hold NaN."""
    depths, paths = tree_paths()
    table = torch.full((NODES, DEPTHS), 10**6)
    for node, path in enumerate(paths):
        table[node, : len(path)] = torch.tensor(path)[:DEPTHS]
    cache = torch.randn(PREFIX + NODES, 2 * heads * dim).to(dtype)
    ancestors = {slot for node in BATCH if node >= 0 for slot in paths[node][:-1]}
    cache[[PREFIX + node for node in range(NODES) if node not in ancestors]] = float("nan")
    qkv = torch.randn(len(BATCH), 3 * heads * dim).to(dtype)
    integers = {"paths": table, "depths": torch.tensor(depths), "batch": torch.tensor(BATCH)}
    tensors = {"qkv": qkv, "cache": cache, **{name: value.int() for name, value in integers.items()}}
    return {name: value.to(device) for name, value in tensors.items()} | {"heads": heads}


def expected_attention(problem: dict, row: int) -> torch.Tensor:
    """One node over all rows of the cache, its own written, and a mask: fp64."""
    _, paths = tree_paths()
    heads, slot = problem["heads"], BATCH[row]
    q, k, v = problem["qkv"][row].double().cpu().unflatten(0, (3, heads, -1))
    cache = problem["cache"].double().cpu().nan_to_num(0.0)
    cache[PREFIX + slot] = torch.cat([k.flatten(), v.flatten()])
    keys, values = (half.unflatten(1, (heads, -1)).transpose(0, 1) for half in cache.chunk(2, dim=1))
    mask = torch.zeros(1, len(cache), dtype=torch.bool)
    mask[0, [*range(PREFIX), *(PREFIX + ancestor for ancestor in paths[slot])]] = True
    return F.scaled_dot_product_attention(q[:, None], keys, values, attn_mask=mask).flatten()


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("heads", "dim"), [(2, 16), (3, 24), (1, 128)])
def test_attention_sees_prefix_path_and_itself(device, poisoned, heads, dim, dtype):
    problem = make_problem(heads, dim, dtype, device)
    expected = {row: expected_attention(problem, row) for row, slot in enumerate(BATCH) if slot >= 0}
    before = problem["cache"].clone()
    attended = node_attention(**problem)
    for row, reference in expected.items():
        assert relative_rms(attended[row], reference) < BOUNDS[dtype]
    written = [PREFIX + slot for slot in BATCH if slot >= 0]
    after = problem["cache"]
    rows = [row for row, slot in enumerate(BATCH) if slot >= 0]
    assert torch.equal(after[written], problem["qkv"][rows, heads * dim :])
    others = [row for row in range(len(after)) if row not in written]
    torch.testing.assert_close(after[others], before[others], rtol=0, atol=0, equal_nan=True)


def test_an_ancestor_matters_and_a_sibling_does_not(device):
    problem = make_problem(2, 16, torch.float32, device)
    first, rows = node_attention(**problem), [0, 2, 3, 4]
    problem["cache"][PREFIX + 6] = 1.0  # child of node 2, ancestor of none in the batch
    assert torch.equal(node_attention(**problem)[rows], first[rows])
    problem["cache"][PREFIX + 3] += 1.0  # ancestor of nodes 5 and 7
    changed = (node_attention(**problem) != first).any(1)
    assert changed[[0, 3]].all()
    assert not changed[[2, 4]].any()


def test_rotated_queries_and_keys(device, poisoned):
    """RoPE in fp64 on both beforehand, and the plain kernel, give what the rotating kernel gives."""
    heads, dim = 2, 16
    problem = make_problem(heads, dim, torch.float32, device)
    angles = torch.arange(DEPTHS + 1)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = torch.cat([angles.cos()] * 2, 1), torch.cat([-angles.sin(), angles.sin()], 1)
    plain = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in problem.items()}
    depths, _ = tree_paths()
    for row, slot in enumerate(BATCH):
        x = plain["qkv"][row].double().cpu().unflatten(0, (3, heads, dim))
        place = depths[slot] + 1
        x[:2] = x[:2] * cos[place].double() + x[:2].roll(dim // 2, -1) * sin[place].double()
        plain["qkv"][row] = x.flatten().float()
    expected = node_attention(**plain)
    attended = node_attention(**problem, rotary=(cos.to(device), sin.to(device)))
    rows = [row for row, slot in enumerate(BATCH) if slot >= 0]
    assert relative_rms(attended[rows], expected[rows].double().cpu()) < BOUNDS[torch.float32]
    torch.testing.assert_close(problem["cache"], plain["cache"], rtol=1e-5, atol=1e-6, equal_nan=True)


def biased_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x, weight, bias = (value.double().cpu() for value in (x, weight, bias))
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight + bias


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("size", [16, 24, 200])
def test_sum_and_norm(device, poisoned, size, dtype):
    x, delta = torch.randn(2, 3, size, device=device).to(dtype)
    weight, bias = torch.randn(2, size, device=device).to(dtype)
    total, normed = add_norm(x, delta, weight, bias)
    torch.testing.assert_close(total, x + delta, rtol=2**-7 if dtype is torch.bfloat16 else 0, atol=0)
    assert relative_rms(normed, biased_norm(total, weight, bias)) < BOUNDS[dtype]
    total, normed = add_norm(x, None, weight, bias)
    assert total is x
    assert relative_rms(normed, biased_norm(x, weight, bias)) < BOUNDS[dtype]


@pytest.mark.parametrize("positioned", [True, False])
def test_inputs_of_a_batch(device, poisoned, positioned):
    size, vocab = 24, 7
    table, positions = torch.randn(vocab, size, device=device), torch.randn(DEPTHS, size, device=device)
    weight, bias = torch.randn(2, size, device=device)
    tokens = torch.randint(vocab, (NODES,), device=device)
    depths = torch.tensor(tree_paths()[0], dtype=torch.int32, device=device)
    batch = torch.tensor(BATCH, dtype=torch.int32, device=device)
    inputs, normed = node_inputs(
        table=table,
        positions=positions if positioned else None,
        tokens=tokens,
        depths=depths,
        batch=batch,
        weight=weight,
        bias=bias,
    )
    rows = [row for row, slot in enumerate(BATCH) if slot >= 0]
    slots = [BATCH[row] for row in rows]
    expected = table[tokens[slots]] + (positions[depths[slots].long()] if positioned else 0)
    assert torch.equal(inputs[rows], expected)
    assert relative_rms(normed[rows], biased_norm(expected, weight, bias)) < BOUNDS[torch.float32]
