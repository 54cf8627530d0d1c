"""One step of training the embedded stack: the module of tfm_bench.training that has the rule's name."""

import subprocess
import sys
from pathlib import Path

from _entry import entry

from tfm_bench.errors import UserError

with entry(snakemake.log[0]):
    module, folder = f"tfm_bench.training.{snakemake.rule}", Path(snakemake.output[0]).parents[1]
    step = [sys.executable, "-m", module, "--output", str(folder), "--seed", str(snakemake.params.seed)]
    if subprocess.run(step).returncode:
        raise UserError(f"{module} failed; its message stands above. `snakemake retrain` resumes it")
