"""The kernel benchmark: one process that times every arm on every problem, and writes what it saw.

First every arm runs on every problem and is compared with the fp64 definition: this warms all shapes. Then, problem by
problem, the arms that are right are timed, interleaved.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from kernels.gdn_tree import Implementation, TreeStructure, implementations
from tfm_bench.config import KernelSettings
from tfm_bench.kernel_config import KernelCase
from tfm_bench.measure.clocks import Cache, Clock, CpuClock, CudaClock, keep_freed_memory
from tfm_bench.measure.device_lock import device_lock
from tfm_bench.measure.files import BYTES_PER_MEGABYTE, require_disk, write_text
from tfm_bench.measure.kernel_arms import KernelArm, Verdict, judge, list_arms
from tfm_bench.measure.kernel_problems import (
    SHAPES,
    Problem,
    committed_path,
    expected_of,
    make_problem,
    tree_parents,
)
from tfm_bench.measure.kernel_records import Commit, Floor, KernelRecord, Phase
from tfm_bench.measure.kernel_timing import RotatedStates, TimedArm, Times, interleaved
from tfm_bench.measure.progress import with_progress
from tfm_bench.measure.provenance import Provenance, collect_provenance
from tfm_bench.measure.recorded_trees import RecordedTree, read_recorded_trees
from tfm_bench.measure.roofline import (
    Limits,
    Sizes,
    Work,
    best_of,
    kept_bytes,
    measure_limits,
    phase_work,
    tree_counts,
)
from tfm_bench.measure.sampled import Launch

VERSION = 4
DISK_MEGABYTES = 50

Samples = dict[tuple[KernelArm, Cache], list[Times]]


class Timed(NamedTuple):
    """Of one problem: times per arm and cache state, and how each arm was launched."""

    samples: Samples
    launches: dict[KernelArm, Launch]


@dataclass(frozen=True)
class _Bench:
    """What stays the same from problem to problem."""

    settings: KernelSettings
    device: torch.device
    clock: Clock
    arms: list[KernelArm]
    recorded: list[RecordedTree]
    allocator: str
    provenance: Provenance

    @property
    def dtype(self) -> torch.dtype:
        """Of q, k, v and outputs."""
        return getattr(torch, self.settings.kernels.dtype)

    def measure_limits(self) -> Limits:
        """What the device shows now."""
        return measure_limits(self.clock, self.device, self.dtype)

    def problem(self, case: KernelCase) -> Problem:
        """Made anew where it is needed: all at once would fill the memory."""
        parents = tree_parents(case, self.recorded)
        return make_problem(case, parents, self.settings.kernels.path, self.dtype, self.device)

    def layers(self, case: KernelCase) -> int:
        """States that rotate: the fewest that exceed cold_megabytes, at most as many as the model has layers."""
        if self.clock.caches:
            return 1
        shapes = SHAPES[case.shapes]
        enough = self.settings.kernels.cold_megabytes * BYTES_PER_MEGABYTE // (case.batch * shapes.state_bytes) + 1
        return min(enough, shapes.layers)

    def caches(self, case: KernelCase) -> tuple[Cache, ...]:
        """States of the cache that are measured. A small model's states stay in a CPU's caches, as in use."""
        rotated = self.layers(case) * case.batch * SHAPES[case.shapes].state_bytes
        cold = rotated > self.settings.kernels.cold_megabytes * BYTES_PER_MEGABYTE
        return self.clock.caches or (("cold",) if cold else ("warm",))


def kernel_cell(
    settings: KernelSettings, trees: Path, output: Path, registry: Mapping[str, Implementation] | None = None
) -> None:
    """Measure all problems of the configuration and write their records, one JSON line each, to `output`.

    trees: the file of recorded_trees. registry: the implementations, by default those that are installed here. Waits
    while another process measures on the device.
    """
    require_disk(output, DISK_MEGABYTES)
    recorded, cases = read_recorded_trees(trees), settings.kernels.cases()
    with device_lock(_device().type), torch.inference_mode():
        bench = _make_bench(settings, recorded, registry)
        start = time.monotonic()
        checks = with_progress(cases, "kernels, check", unit="problems", weight=_weight)
        verdicts = {case: _judge_case(bench, case) for case in checks}
        print(f"kernels: {len(cases)} problems warm after {time.monotonic() - start:.1f} s", file=sys.stderr)
        before = bench.measure_limits()
        timed = with_progress(cases, "kernels, measure", unit="problems", weight=_weight)
        times = {case: _time_case(bench, case, verdicts[case]) for case in timed}
        limits = best_of(before, bench.measure_limits())
    records = [r for case in cases for r in _records(bench, limits, case, verdicts[case], times[case])]
    write_text(output, "".join(record.model_dump_json() + "\n" for record in records))


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _make_bench(
    settings: KernelSettings, recorded: list[RecordedTree], registry: Mapping[str, Implementation] | None
) -> _Bench:
    torch.set_num_threads(settings.threads)
    device = _device()
    clock: Clock = CudaClock(device) if device.type == "cuda" else CpuClock()
    kept = device.type == "cuda" or keep_freed_memory()
    installed = implementations(device) if registry is None else registry
    return _Bench(
        settings=settings,
        device=device,
        clock=clock,
        arms=list_arms(installed, settings.kernels.implementations),
        recorded=recorded,
        allocator="keep" if kept else "system",
        provenance=collect_provenance(device),
    )


def _weight(case: KernelCase) -> float:
    """Time of a problem, roughly: what all arms share, and what grows with the states."""
    return 20 + case.nodes * case.batch * SHAPES[case.shapes].state_bytes / BYTES_PER_MEGABYTE


def _judge_case(bench: _Bench, case: KernelCase) -> list[Verdict]:
    problem = bench.problem(case)
    expected = expected_of(problem)
    return [judge(arm, problem, expected, bench.settings.kernels.memory_megabytes) for arm in bench.arms]


def _time_case(bench: _Bench, case: KernelCase, verdicts: list[Verdict]) -> Timed:
    """Times of the arms that are right, every one run once more before the first is timed."""
    problem, kernels = bench.problem(case), bench.settings.kernels
    states = RotatedStates(problem.state, bench.layers(case))
    right = [arm for arm, verdict in zip(bench.arms, verdicts, strict=True) if verdict.status == "ok"]
    timed = {arm: TimedArm(arm, problem, states, bench.clock) for arm in right}
    samples = interleaved(
        [(arm, cache) for arm in right for cache in bench.caches(case)],
        lambda runner: timed[runner[0]].run(runner[1]),
        least=kernels.least_runs,
        most=kernels.most_runs,
        seconds=kernels.arm_seconds,
    )
    return Timed(samples, {arm: runner.launch for arm, runner in timed.items()})


def _records(
    bench: _Bench, limits: Limits, case: KernelCase, verdicts: list[Verdict], timed: Timed
) -> Iterator[KernelRecord]:
    structure = TreeStructure.from_parents(torch.tensor(tree_parents(case, bench.recorded)))
    length = len(committed_path(structure, bench.settings.kernels.path))
    sizes = Sizes(SHAPES[case.shapes], tree_counts(structure), length, case.batch, bench.dtype.itemsize)
    for arm, verdict in zip(bench.arms, verdicts, strict=True):
        for cache, (phase, commit) in itertools.product(bench.caches(case), arm.phases):
            kept = commit or next(iter(arm.commits), None)
            yield KernelRecord(
                **case._asdict(),
                implementation=arm.implementation,
                arm=arm.name,
                phase=phase,
                commit=commit,
                cache=cache,
                status=verdict.status,
                reason=verdict.reason,
                samples_ms=[times[phase, commit] for times in timed.samples.get((arm, cache), [])],
                state_bytes=kept_bytes(kept, sizes) if kept else None,
                relative_error=_error_of(verdict.errors, phase, commit),
                floor=_floor(limits, cache, phase_work(arm.name, phase, commit, sizes)),
                depth=int(structure.depths.max()),
                path_nodes=length,
                layers=bench.layers(case),
                allocator=bench.allocator,
                launch=timed.launches.get(arm),
                settings=bench.settings,
                provenance=bench.provenance,
            )


def _error_of(errors: dict[str, float], phase: Phase, commit: Commit | None) -> float | None:
    """Of outputs, of the committed state, or the larger of the two; None where one of them is missing."""
    needed = [*(["verify"] if phase in ("verify", "total") else []), *([commit] if commit else [])]
    return max(errors[name] for name in needed) if all(name in errors for name in needed) else None


def _floor(limits: Limits, cache: Cache, work: Work | None) -> Floor | None:
    if work is None:
        return None
    counted = {"bytes": work.bytes, "flops": work.flops}
    return Floor.model_validate({**counted, **limits._asdict(), "milliseconds": work.milliseconds(limits, cache)})
