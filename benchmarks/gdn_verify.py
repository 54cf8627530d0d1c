"""Time of Gated-DeltaNet verification over a tree, and of verification with its commit; JSON lines.

    python benchmarks/gdn_verify.py --threads 2 --output benchmarks/records/gdn_verify.jsonl

One layer, batch 1, fp32, torch arms only. Every arm commits in its own natural way. Arms run interleaved, in rotated
order. An arm whose outputs or committed state miss the fp64 definition by more than BOUND has no time.

By default freed memory stays with the process, as with a serving engine's pool or CUDA's caching allocator. With
`--allocator system` an arm that stores a state per node also pays for fresh pages in every call, which on a CPU costs
more than its arithmetic.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from kernels.gdn_tree import COMMIT, VERIFY, GdnTreeOutputs, TreeStructure, naive_tree_gated_delta_rule

BOUND = 2e-6
SHAPES = {
    "tiny": {"heads": 4, "value_heads": 8, "key_dim": 32, "value_dim": 32},
    "27b": {"heads": 16, "value_heads": 48, "key_dim": 128, "value_dim": 128},
}
ARMS = [
    ("fused", "replay"),
    ("fused", "fold"),
    ("level_recurrent", "select"),
    ("node_recurrent", "select"),
    ("path_recurrent", "replay"),
]
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


class Problem(NamedTuple):
    """One tree with inputs and the path that is committed."""

    inputs: dict[str, Tensor]
    structure: TreeStructure
    path: Tensor


class Times(NamedTuple):
    """Milliseconds of one run."""

    verify: float
    commit: float


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    if args.allocator == "keep":
        keep_freed_memory()
    facts = machine(args)
    with torch.inference_mode():
        lines = [json.dumps(record | facts) for record in measure(args)]
    text = "".join(line + "\n" for line in lines)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time tree verification of one Gated-DeltaNet layer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="layer shapes")
    parser.add_argument("--trees", nargs="+", choices=["chain", "random"], default=["chain", "random"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 32, 64, 65, 128], help="nodes, anchor included")
    parser.add_argument("--rounds", type=int, default=15, help="runs of every arm")
    parser.add_argument("--path", type=int, default=8, help="most nodes that are committed, anchor included")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--allocator", choices=["keep", "system"], default="keep", help="what freed memory becomes")
    parser.add_argument("--output", type=Path, help="file to write; without it, standard output")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for shape in args.shapes:
        for tree in args.trees:
            for nodes in args.nodes:
                problem = make_problem(shape, tree, nodes, args.path)
                where = {"shape": shape, "tree": tree, "nodes": nodes}
                errors = errors_of(problem)
                times = interleaved(problem, [arm for arm in ARMS if max(errors[arm]) < BOUND], args.rounds)
                for arm in ARMS:
                    yield where | describe(problem, arm) | outcome(errors[arm], times.get(arm))


def make_problem(shape: str, tree: str, nodes: int, longest_path: int) -> Problem:
    """Random inputs of a layer; the committed path leads towards the deepest node."""
    generator = torch.Generator().manual_seed(nodes)
    dims = SHAPES[shape]

    def draw(*size: int) -> Tensor:
        return torch.randn(1, *size, generator=generator)

    inputs = {
        "q": normalize(draw(nodes, dims["heads"], dims["key_dim"]), dim=-1),
        "k": normalize(draw(nodes, dims["heads"], dims["key_dim"]), dim=-1),
        "v": draw(nodes, dims["value_heads"], dims["value_dim"]),
        "g": -softplus(draw(nodes, dims["value_heads"]) - 2),
        "beta": draw(nodes, dims["value_heads"]).sigmoid(),
        "initial_state": draw(dims["value_heads"], dims["key_dim"], dims["value_dim"]),
    }
    structure = TreeStructure.from_parents(torch.tensor(make_parents(tree, nodes)))
    path = structure.path_to(int(structure.depths.argmax()))[:longest_path]
    return Problem(inputs, structure, torch.tensor(path))


def make_parents(tree: str, nodes: int) -> list[int]:
    """A chain, or parents drawn uniformly from earlier nodes, numbered by depth: that spares level_recurrent a copy."""
    if tree == "chain":
        return [node - 1 for node in range(nodes)]
    draw = random.Random(nodes)
    parents = [-1, *(draw.randrange(node) for node in range(1, nodes))]
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    order = sorted(range(nodes), key=depths.__getitem__)
    place = {node: index for index, node in enumerate(order)}
    return [-1, *(place[parents[node]] for node in order[1:])]


def verify(problem: Problem, arm: tuple[str, str]) -> GdnTreeOutputs:
    return VERIFY[arm[0]](**problem.inputs, structure=problem.structure)


def commit(problem: Problem, arm: tuple[str, str], result: GdnTreeOutputs, state: Tensor) -> None:
    k, v, g, beta = (problem.inputs[name] for name in ("k", "v", "g", "beta"))
    arguments: dict[str, dict[str, Any]] = {
        "replay": {"k": k, "v": v, "g": g, "beta": beta},
        "fold": {"k": k, "pseudo_values": result.pseudo_values, "g": g},
        "select": {"states": result.states},
    }
    COMMIT[arm[1]](**arguments[arm[1]], path=problem.path, state=state)


def errors_of(problem: Problem) -> dict[tuple[str, str], tuple[float, float]]:
    """Per arm: relative RMS error of the outputs and of the committed state against the definition in fp64."""
    wide: dict[str, Any] = {name: x.double() for name, x in problem.inputs.items()}
    outputs, states = naive_tree_gated_delta_rule(**wide, parents=problem.structure.parents)
    errors = {}
    for arm in ARMS:
        result = verify(problem, arm)
        state = problem.inputs["initial_state"].clone()
        commit(problem, arm, result, state)
        expected = states[:, int(problem.path[-1])]
        errors[arm] = (relative_rms(result.outputs, outputs), relative_rms(state, expected))
    return errors


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def interleaved(problem: Problem, arms: list[tuple[str, str]], rounds: int) -> dict[tuple[str, str], list[Times]]:
    """Two warm-up rounds, then `rounds` timed ones; the arm that goes first changes from round to round."""
    times: dict[tuple[str, str], list[Times]] = {arm: [] for arm in arms}
    for round_index in range(-2, rounds):
        shift = round_index % max(1, len(arms))
        for arm in arms[shift:] + arms[:shift]:
            once = run(problem, arm)
            if round_index >= 0:
                times[arm].append(once)
    return times


def run(problem: Problem, arm: tuple[str, str]) -> Times:
    state = problem.inputs["initial_state"].clone()
    verify_ms, result = timed(lambda: verify(problem, arm))
    commit_ms, _ = timed(lambda: commit(problem, arm, result, state))
    return Times(verify_ms, commit_ms)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return (time.perf_counter() - start) * 1e3, result


def describe(problem: Problem, arm: tuple[str, str]) -> dict[str, Any]:
    method, commit_name = arm
    state = problem.inputs["initial_state"]
    stored = len(problem.structure.parents) if commit_name == "select" else 0
    return {
        "benchmark": "gdn_verify",
        "method": method,
        "commit": commit_name,
        "depth": int(problem.structure.depths.max()),
        "committed_nodes": len(problem.path),
        "stored_state_bytes": stored * state.numel() * state.element_size(),
    }


def outcome(errors: tuple[float, float], times: list[Times] | None) -> dict[str, Any]:
    checked = {"output_error": errors[0], "state_error": errors[1]}
    if times is None:
        return checked | {"status": "wrong"}
    return checked | {
        "status": "ok",
        "rounds": len(times),
        "verify_ms": spread([x.verify for x in times]),
        "commit_ms": spread([x.commit for x in times]),
        "verify_and_commit_ms": spread([x.verify + x.commit for x in times]),
    }


def spread(values: list[float]) -> dict[str, float]:
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    summary = {"median": statistics.median(values), "p20": fifths[0], "p80": fifths[3]}
    return {name: round(value, 4) for name, value in summary.items()}


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "threads": args.threads,
        "cores": len(models),
        "cpu": models[0] if models else "unknown",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "dtype": "float32",
        "allocator": args.allocator,
    }


def keep_freed_memory() -> None:
    """Makes glibc serve large blocks from its heap and never give that back. Raises OSError on another C library."""
    libc = ctypes.CDLL("libc.so.6")
    if not (libc.mallopt(M_MMAP_MAX, 0) and libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)):
        raise OSError("glibc refused to keep freed memory; use --allocator system")


if __name__ == "__main__":
    main()
