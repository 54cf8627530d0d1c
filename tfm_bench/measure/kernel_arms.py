"""Arms of the kernel benchmark: what the installed implementations offer, and whether it is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.gdn_tree import GdnTreeOutputs, Implementation
from tfm_bench.measure.files import BYTES_PER_MEGABYTE
from tfm_bench.measure.kernel_problems import Expected, Problem, relative_rms
from tfm_bench.measure.kernel_records import Commit, Phase
from tfm_bench.measure.sampled import Status

# Relative RMS against the fp64 definition on the inputs as the arm sees them. bfloat16 outputs alone round by 1.7e-3.
BOUNDS = {"float32": 2e-6, "bfloat16": 4e-3}

# What an implementation is asked for; one that lacks an arm says so in the records.
RECURRENT = ("level_recurrent", "node_recurrent", "path_recurrent")
ARMS: dict[str, tuple[str, ...]] = {
    "torch": ("fused", *RECURRENT),
    "compiled": ("fused", "node_recurrent", "node_recurrent_scratch", "path_recurrent"),
    "triton": ("fused", "node_recurrent"),
    "sglang": ("node_recurrent",),
    "fla": ("chunk",),
}
COMMITS: dict[str, tuple[Commit, ...]] = {
    "fused": ("replay", "fold"),
    "level_recurrent": ("select",),
    "node_recurrent": ("select",),
    "chunk": (),
}
OTHER_COMMITS: tuple[Commit, ...] = ("replay", "fold")
COMMIT_INPUTS: dict[Commit, tuple[str, ...]] = {"replay": ("k", "v", "g", "beta"), "fold": ("k", "g"), "select": ()}
COMMIT_PHASES: dict[Commit, Phase] = {
    "replay": "commit_replay",
    "fold": "commit_fold",
    "select": "commit_select",
}


@dataclass(frozen=True, eq=False)
class KernelArm:
    """One way to verify, with its own commits and their functions; `missing` says why it cannot run here."""

    implementation: str
    name: str
    missing: str | None
    verify: Callable[..., GdnTreeOutputs] | None
    commits: tuple[Commit, ...]
    functions: Mapping[str, Callable[..., None]]
    prepare: Callable[..., Callable[[], GdnTreeOutputs]] | None = None

    def timed_verify(self, problem: Problem, state: Tensor) -> Callable[[Tensor], GdnTreeOutputs]:
        """What is timed as verification: on any state, or prepared for this one where the implementation needs that."""
        if self.prepare is None:
            return partial(self.run_verify, problem)
        prepared = self.prepare(**problem.inputs, initial_state=state, structure=problem.structure)
        return lambda _: prepared()

    def run_verify(self, problem: Problem, state: Tensor) -> GdnTreeOutputs:
        """Verification that reads `state`."""
        assert self.verify is not None
        return self.verify(**problem.inputs, initial_state=state, structure=problem.structure)

    def run_commit(self, commit: Commit, problem: Problem, result: GdnTreeOutputs, state: Tensor) -> None:
        """Advances `state` in place along the path of the problem."""
        arguments: dict[str, Any] = problem.commit_inputs(*COMMIT_INPUTS[commit])
        if commit == "fold":
            arguments["pseudo_values"] = result.pseudo_values
        elif commit == "select":
            arguments["states"] = result.states
        self.functions[commit](**arguments, path=problem.path, state=state)

    def run_total(
        self, commit: Commit, problem: Problem, verify: Callable[[Tensor], GdnTreeOutputs], state: Tensor
    ) -> None:
        """Verification, then its commit."""
        self.run_commit(commit, problem, verify(state), state)

    @property
    def phases(self) -> list[tuple[Phase, Commit | None]]:
        """Everything that is measured of this arm, each with the commit that it contains."""
        commits: list[tuple[Phase, Commit | None]] = [(COMMIT_PHASES[commit], commit) for commit in self.commits]
        return [("verify", None), *commits, *(("total", commit) for commit in self.commits)]


class Verdict(NamedTuple):
    """Whether an arm may be timed on a problem. errors: relative RMS by "verify" and by commit, where finite."""

    status: Status
    reason: str | None
    errors: dict[str, float]


def list_arms(registry: Mapping[str, Implementation], wanted: Sequence[str]) -> list[KernelArm]:
    """All arms of the wanted implementations, in a fixed order; those that the registry lacks are marked as missing."""
    return [
        _arm(name, arm, registry.get(name))
        for name in wanted
        for arm in dict.fromkeys([*ARMS[name], *(registry[name].verify if name in registry else ())])
    ]


def judge(arm: KernelArm, problem: Problem, expected: Expected, memory_megabytes: int) -> Verdict:
    """Run the arm once, with all its commits, against the definition. This also warms it."""
    if arm.missing is not None:
        return Verdict("unsupported", arm.missing, {})
    if "select" in arm.commits:
        needed = problem.inputs["k"].shape[1] * problem.state.nbytes / BYTES_PER_MEGABYTE
        if needed > memory_megabytes:
            reason = f"its stored states take {needed:.0f} MB; kernels.memory_megabytes allows {memory_megabytes}"
            return Verdict("skipped", reason, {})
    try:
        errors = _errors(arm, problem, expected)
    except NotImplementedError as error:
        return Verdict("unsupported", _first_line(error), {})
    except Exception as error:  # a kernel may fail in any way; the others are measured all the same
        return Verdict("failed", f"{type(error).__name__}: {_first_line(error)}", {})
    return _compare(errors, BOUNDS[str(problem.inputs["v"].dtype).removeprefix("torch.")])


def _arm(implementation: str, name: str, entry: Implementation | None) -> KernelArm:
    own = COMMITS.get(name, OTHER_COMMITS)
    verify = entry.verify.get(name) if entry else None
    missing = f"{implementation} is not installed" if entry is None else entry.unavailable
    if missing is None and verify is None:
        missing = f"{implementation} has no {name}"
    if entry is None or missing is not None:
        return KernelArm(implementation, name, missing, None, own, {})
    return KernelArm(
        implementation,
        name,
        None,
        verify,
        tuple(c for c in own if c in entry.commit),
        entry.commit,
        entry.prepare.get(name),
    )


def _errors(arm: KernelArm, problem: Problem, expected: Expected) -> dict[str, float]:
    result = arm.run_verify(problem, state := problem.state.clone())
    if not torch.equal(state, problem.state):
        raise ArithmeticError("verification changed the committed state")
    errors = {"verify": relative_rms(result.outputs, expected.outputs)}
    for commit in arm.commits:
        state.copy_(problem.state)
        arm.run_commit(commit, problem, result, state)
        errors[commit] = relative_rms(state, expected.committed)
    return errors


def _compare(errors: dict[str, float], bound: float) -> Verdict:
    """`failed` names everything out of bounds; what is not finite stands only in the reason."""
    finite = {name: error for name, error in errors.items() if math.isfinite(error)}
    wrong = [f"{name} {error:.1e}" for name, error in errors.items() if not error <= bound]
    if wrong:
        return Verdict("failed", f"relative error over {bound:.0e}: {', '.join(wrong)}", finite)
    return Verdict("ok", None, finite)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0]
