"""How far a run is: which measuring processes it plans, and about how long those take that are left.

Snakemake's onstart writes logs/plan.json; every measuring process reads it when it begins. Seconds per process come
from the committed run (results/expected/seconds.csv, which `python -m tfm_bench.measure.plan` writes anew from logs/),
scaled by what this run's finished processes took.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tfm_bench.measure.files import benchmark, write_text

PLAN, EXPECTED, LOGS = Path("logs/plan.json"), Path("results/expected/seconds.csv"), Path("logs")
COLUMNS = ["benchmark", "seconds", "megabytes"]
SECONDS = 60  # per minute


def write_plan(benchmarks: Iterable[str], plan: Path = PLAN, expected: Path = EXPECTED) -> None:
    """benchmarks: Snakemake's benchmark files of the processes that will measure, written as they end."""
    known = {name: seconds for name, (seconds, _) in expected_costs(expected).items()}
    jobs = {name: known.get(name) for name in benchmarks}
    write_text(plan, json.dumps({"started_at": time.time(), "jobs": jobs}))


def progress_line(plan: Path = PLAN) -> str | None:
    """ "measuring process 3 of 31, about 17 min left", no time where nothing foretells it; None without a plan."""
    if not plan.is_file():
        return None
    written = json.loads(plan.read_text(encoding="utf-8"))
    jobs: Mapping[str, float | None] = written["jobs"]
    done = {name: benchmark(Path(name))[0] for name in jobs if _ended(Path(name), written["started_at"])}
    known = {name: seconds for name, seconds in jobs.items() if seconds is not None}
    scale = ratio(done, known) or 1.0
    # What the committed run did not have takes as long as this run's finished processes did on average.
    usual = sum(done.values()) / len(done) if done else None
    left = [scale * known[name] if name in known else usual for name in jobs if name not in done]
    place = f"measuring process {len(done) + 1} of {len(jobs)}"
    foretold = [seconds for seconds in left if seconds is not None]
    return place if len(foretold) < len(left) else f"{place}, about {sum(foretold) / SECONDS:.0f} min left"


def expected_costs(path: Path = EXPECTED) -> dict[str, tuple[float, float]]:
    """Benchmark file -> seconds and peak memory (MB) of its process in the committed run; empty without one."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {row["benchmark"]: (float(row["seconds"]), float(row["megabytes"])) for row in rows}


def ratio(took: Mapping[str, float], foretold: Mapping[str, float]) -> float | None:
    """How many times longer than foretold it took what is in both; None where that is nothing."""
    both = took.keys() & foretold.keys()
    expected = sum(foretold[name] for name in both)
    return sum(took[name] for name in both) / expected if expected else None


def _ended(path: Path, started_at: float) -> bool:
    """Whether the process ended in this run: an older benchmark file is that of an earlier one."""
    return path.is_file() and path.stat().st_mtime >= started_at


def main() -> None:
    """Writes EXPECTED from the benchmark files of the last run, without those of smoke runs."""
    found = [path for path in sorted(LOGS.rglob("*.tsv")) if path.relative_to(LOGS).parts[0] != "smoke"]
    rows = [(path.as_posix(), *map(round, benchmark(path))) for path in found]
    lines = [COLUMNS, *rows]
    write_text(EXPECTED, "".join(",".join(map(str, line)) + "\n" for line in lines))


if __name__ == "__main__":
    main()
