"""Short runs in processes of their own, for an estimate of what was never measured."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tfm_bench.config import CellSettings, KernelSettings
from tfm_bench.errors import UserError
from tfm_bench.kernel_config import KernelGrid
from tfm_bench.measure.cost_samples import Sample, cell_sample, kernel_sample
from tfm_bench.measure.files import BYTES_PER_MEGABYTE

PILOT_PROMPTS = 2
KIBIBYTE = 1024


class ProcessPilots:
    """Measures the smallest slice of a configuration, all of it in a temporary folder."""

    def cell(self, settings: CellSettings) -> Sample:
        """Every arm on a few prompts, to their end. Raises UserError when it fails."""
        small = settings.model_copy(
            update={"prompts": PILOT_PROMPTS if settings.prompts == "all" else min(PILOT_PROMPTS, settings.prompts)}
        )
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "pilot.jsonl"
            return cell_sample(raw, *_timed("cell", small.model_dump_json(), raw))

    def kernels(self, settings: KernelSettings) -> Sample:
        """Chains, which need no recorded tree, of the smallest size, one per shapes. Raises UserError when it fails."""
        cases = settings.kernels.cases()
        shapes, nodes = list(dict.fromkeys(case.shapes for case in cases)), min(case.nodes for case in cases)
        grids = [KernelGrid(shapes=shapes, trees=["chain"], nodes=[nodes], batches=[1])]
        small = settings.model_copy(update={"kernels": settings.kernels.model_copy(update={"grids": grids})})
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "pilot.jsonl"
            return kernel_sample(raw, *_timed("kernels", small.model_dump_json(), raw))


def _timed(kind: str, settings: str, output: Path) -> tuple[float, float]:
    """Seconds and peak memory (10^6 bytes) of the process of a pilot, imports included."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", __name__, kind, settings, str(output)], stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError("the pilot failed; the lines above say why")
    return time.monotonic() - start, usage.ru_maxrss * KIBIBYTE / BYTES_PER_MEGABYTE


def main(kind: str, settings: str, output: Path) -> None:
    """Body of the process."""
    if kind == "cell":
        from tfm_bench.measure.cells import decode_cell

        decode_cell(CellSettings.model_validate_json(settings), output)
    else:
        from tfm_bench.measure.kernels import kernel_cell

        trees = output.with_name("recorded_trees.jsonl")
        trees.touch()
        kernel_cell(KernelSettings.model_validate_json(settings), trees, output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
