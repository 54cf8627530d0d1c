"""Say what reproduce_all would cost."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from _entry import entry

with entry(snakemake.log[0]):
    from tfm_bench.backends.settings import load_server_config
    from tfm_bench.config import load_config
    from tfm_bench.errors import UserError
    from tfm_bench.measure.cost_work import planned_processes
    from tfm_bench.measure.estimate import estimate
    from tfm_bench.measure.pilots import ProcessPilots

    load = load_server_config if "sglang" in snakemake.config else load_config
    # Only Snakemake knows what it would run: a second one is asked, with the same configuration.
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(snakemake.config, config)
        config.flush()
        command = ["-m", "snakemake", "reproduce_all", "--summary", "--nolock", "--configfile", config.name]
        asked = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if asked.returncode:
        raise UserError(asked.stderr.strip().splitlines()[-1])
    planned = planned_processes(asked.stdout, snakemake.params.measuring)
    print("\n".join(estimate(load(snakemake.config), planned, Path(), ProcessPilots())), flush=True)
