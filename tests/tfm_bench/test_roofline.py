"""Counts of bytes and FLOPs against the algorithms themselves, run on numbers that count their operations."""

import pytest
import torch

from kernels.gdn_tree import TreeStructure
from tests.tfm_bench.counted_gdn import (
    PARENTS,
    SHAPES,
    Counted,
    Layer,
    Vector,
    counted,
    recurrence,
    solve,
    step,
    values,
)
from tfm_bench.measure.clocks import CpuClock
from tfm_bench.measure.roofline import (
    Limits,
    Sizes,
    TreeCounts,
    Work,
    best_of,
    commit_work,
    kept_bytes,
    measure_limits,
    phase_work,
    tree_counts,
    verify_work,
)


def counts(parents: list[int]) -> TreeCounts:
    return tree_counts(TreeStructure.from_parents(torch.tensor(parents)))


def sizes_of(tree: str, batch: int = 1, value_bytes: int = 4) -> Sizes:
    return Sizes(SHAPES, counts(PARENTS[tree]), 4, batch, value_bytes)


@pytest.mark.parametrize("tree", PARENTS)
def test_flops_are_those_of_the_algorithms(tree):
    layer = Layer(PARENTS[tree])
    sizes = sizes_of(tree)
    recurrent, outputs = counted(lambda: recurrence(layer))
    fused, solved = counted(lambda: solve(layer))
    assert torch.allclose(values(outputs), values(solved), atol=1e-12)
    for arm in ("node_recurrent", "level_recurrent"):
        assert verify_work(arm, sizes).flops == recurrent
    assert verify_work("node_recurrent_scratch", sizes).flops == recurrent - unread_states(PARENTS[tree])
    assert verify_work("fused", shallow(sizes)).flops == fused
    assert verify_work("fused", shallow(sizes)._replace(batch=3)).flops == 3 * fused


def unread_states(parents: list[int]) -> int:
    """FLOPs of forming the states of leaves, element by element: a decay, a product and a sum."""
    leaves = set(range(len(parents))) - set(parents)
    elements = SHAPES.value_heads * SHAPES.key_dim * SHAPES.value_dim
    return sum(3 for _ in leaves for _ in range(elements))


@pytest.mark.parametrize("tree", PARENTS)
def test_paths_repeat_what_they_share(tree):
    layer = Layer(PARENTS[tree])
    leaves = set(range(len(layer.parents))) - set(layer.parents)
    paths = [node for leaf in sorted(leaves) for node in [*layer.ancestors(leaf)[::-1], leaf]]
    flops, _ = counted(lambda: recurrence(layer, paths))
    assert verify_work("path_recurrent", sizes_of(tree)).flops == flops - unread_states(PARENTS[tree])


def test_flops_of_replay_and_fold_are_those_of_the_algorithms():
    layer, length = Layer(PARENTS["chain"]), 4

    def replay():
        states = []
        for head in range(SHAPES.value_heads):
            state = layer.state[head]
            for node in range(length):
                state, u = step(layer, state, node, head)
                us[head].append(u)
            states.append(state)
        return states

    def fold():
        states = []
        for head in range(SHAPES.value_heads):
            below, sums = Counted(0.0), []
            for node in reversed(range(length)):
                sums.insert(0, below)
                below = below + layer.g[node][head]
            state = [[x * below.exp() for x in row] for row in layer.state[head]]
            for node in range(length):
                weighted = [u * sums[node].exp() for u in us[head][node]]
                key = layer.k[node][head // 2]
                state = [
                    [x + k * u for x, u in zip(row, weighted, strict=True)] for row, k in zip(state, key, strict=True)
                ]
            states.append(state)
        return states

    us: list[list[Vector]] = [[] for _ in range(SHAPES.value_heads)]
    replayed, one = counted(replay)
    folded, other = counted(fold)
    assert torch.allclose(values(one), values(other), atol=1e-12)
    assert commit_work("replay", sizes_of("chain")).flops == replayed
    assert commit_work("fold", sizes_of("chain")).flops == folded
    assert commit_work("select", sizes_of("chain")).flops == 0


def shallow(sizes: Sizes) -> Sizes:
    """Keys of three are so short that any path would be cut."""
    return sizes._replace(tree=sizes.tree._replace(depth=0))


def test_on_paths_that_are_better_cut_only_the_state_reads_count():
    sizes = sizes_of("chain")
    reads = SHAPES.value_heads * sizes.tree.nodes * 4 * SHAPES.key_dim * SHAPES.value_dim
    assert verify_work("fused", sizes).flops == reads < verify_work("fused", shallow(sizes)).flops


def elements(*sizes: int) -> int:
    """Bytes of fp32 tensors, counted one by one."""
    return sum(4 for size in sizes for _ in range(size))


def test_bytes_are_those_of_the_tensors():
    H, HV, K, V, N, A, B = 2, 4, 3, 2, 5, 4, 3
    sizes = sizes_of("chain", batch=B)
    state = elements(HV * K * V)
    rows = elements(H * K, H * K, HV * V, HV, HV)
    written = elements(HV * V, HV * V)
    fused = verify_work("fused", sizes).bytes
    assert fused == B * (state + N * (rows + written))
    for arm in ("path_recurrent", "node_recurrent_scratch"):
        assert verify_work(arm, sizes).bytes == fused
    for arm in ("node_recurrent", "level_recurrent"):
        assert verify_work(arm, sizes).bytes == fused + B * N * state
    half = B * N * elements(H * K, H * K, HV * V, HV * V) // 2
    assert verify_work("fused", sizes._replace(value_bytes=2)).bytes == fused - half
    assert commit_work("replay", sizes).bytes == B * (2 * state + A * elements(H * K, HV * V, HV, HV))
    assert commit_work("fold", sizes).bytes == B * (2 * state + A * elements(H * K, HV * V, HV))
    assert commit_work("select", sizes).bytes == B * 2 * state


def test_a_phase_is_verification_or_commit_or_both():
    sizes = sizes_of("mixed", batch=2)
    verify = verify_work("fused", sizes)
    assert phase_work("fused", "verify", None, sizes) == verify
    assert phase_work("fused", "commit_fold", "fold", sizes) == commit_work("fold", sizes)
    assert phase_work("unheard_of", "total", "replay", sizes) is None


def test_a_commit_right_after_verification_finds_the_state_in_a_cache():
    sizes = sizes_of("chain", batch=2)
    for arm, commit, shared in (("fused", "replay", 2 * SHAPES.state_bytes), ("node_recurrent", "select", 0)):
        verify, committing = verify_work(arm, sizes), commit_work(commit, sizes)
        total = phase_work(arm, "total", commit, sizes)
        assert total.bytes == verify.bytes + committing.bytes - shared
        assert total.flops == verify.flops + committing.flops


def test_kept_bytes_are_those_of_what_the_commit_reads():
    H, HV, K, V, N, B = 2, 4, 3, 2, 5, 3
    sizes = sizes_of("chain", batch=B)
    assert kept_bytes("select", sizes) == B * N * elements(HV * K * V)
    assert kept_bytes("replay", sizes) == B * N * elements(H * K, HV * V, HV, HV)
    assert kept_bytes("fold", sizes) == B * N * elements(H * K, HV * V, HV)
    half = elements(H * K, HV * V) // 2
    assert kept_bytes("replay", sizes._replace(value_bytes=2)) == B * N * (half + elements(HV, HV))


def test_tree_counts_are_those_of_a_walk():
    for parents in PARENTS.values():
        layer = Layer(parents)
        leaves = set(range(len(parents))) - set(parents)
        assert counts(parents) == TreeCounts(
            nodes=len(parents),
            pairs=sum(1 + len(layer.ancestors(node)) for node in range(len(parents))),
            path_nodes=sum(1 + len(layer.ancestors(leaf)) for leaf in leaves),
            leaves=len(leaves),
            depth=max(len(layer.ancestors(node)) for node in range(len(parents))),
        )


def test_the_limit_is_the_slower_of_bytes_and_flops():
    limits = Limits(bytes_per_second=1e9, cached_bytes_per_second=4e9, flops_per_second=2e9)
    assert Work(3_000_000, 2_000_000).milliseconds(limits, "cold") == pytest.approx(3.0)
    assert Work(3_000_000, 2_000_000).milliseconds(limits, "warm") == pytest.approx(1.0)
    assert Work(1_000_000, 8_000_000).milliseconds(limits, "cold") == pytest.approx(4.0)


def test_measured_limits_are_rates_of_what_was_run(monkeypatch):
    clock = CpuClock()
    monkeypatch.setattr(clock, "time", lambda work, cache=None: (2.0, work()), raising=False)
    monkeypatch.setattr("tfm_bench.measure.roofline.GEMM_SIZE", {"cpu": 64})
    monkeypatch.setattr("tfm_bench.measure.roofline.STREAM_BYTES", 2**20)
    monkeypatch.setattr("tfm_bench.measure.roofline.CACHED_BYTES", (2**12, 2**19))
    limits = measure_limits(clock, torch.device("cpu"), torch.float32)
    assert limits.bytes_per_second == pytest.approx(2 * 2**20 / 2e-3)
    assert limits.cached_bytes_per_second == limits.bytes_per_second
    assert limits.flops_per_second == pytest.approx(2 * 64**3 / 2e-3)
    assert best_of(Limits(1.0, 5.0, 3.0), Limits(2.0, 4.0, 3.0)) == Limits(2.0, 5.0, 3.0)
