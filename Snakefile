import shlex
import sys
from pathlib import Path

from snakemake.utils import min_version

from tfm_bench.backends.settings import load_server_config
from tfm_bench.config import load_config, read_yaml
from tfm_bench.errors import UserError
from tfm_bench.smoke_config import smoke_mapping
from tfm_bench.stack_files import run_folder

min_version("9.27")

# The script directive puts the interpreter's path into a shell command as it stands: blanks in it need quotes.
sys.executable = shlex.quote(sys.executable)

DEFAULTS = Path("config/default.yaml")
SMOKE = Path("config/smoke.yaml")


include: "workflows/common.smk"
include: "workflows/ablation_inputs.smk"
include: "workflows/report_items.smk"


try:
    SHIPPED = str(read_yaml(DEFAULTS)["stack"]["name"])
except UserError as error:
    stop(error)


# A configuration of servers is whole in itself: the keys of the engine are none of theirs.
if "sglang" not in config:

    configfile: DEFAULTS


# `regression` alone reads `baseline`; nothing that is measured depends on it.
measured = {key: value for key, value in config.items() if key != "baseline"}

# The wildcard {suite} in a path: RUN for the run that the configuration describes, SMALL for the small one. A stack other
# than the shipped one has folders of its own, so that one run throws away nothing that another one measured.
try:
    load = load_server_config if "sglang" in config else load_config
    configured = load(measured)
    RUN = run_folder(configured.stack.name, shipped=SHIPPED)
    SMALL = f"{RUN}smoke/"
    small = load(smoke_mapping(configured, measured, read_yaml(SMOKE)), origin=str(SMOKE))
except UserError as error:
    stop(error)
CONFIGS = {RUN: configured, SMALL: small}


wildcard_constraints:
    suite=f"({RUN}|{SMALL})",
    split="dev|test",
    dataset=r"[a-z0-9_-]+",
    temperature=r"\d{3,4}",
    repeat=r"\d+",
    ablation="|".join(ABLATIONS),


include: "workflows/download.smk"
include: "workflows/datasets.smk"


if "sglang" in config:

    include: "workflows/server.smk"

else:

    include: "workflows/decode.smk"


include: "workflows/analysis.smk"
include: "workflows/report.smk"
include: "workflows/kernels.smk"
include: "workflows/ablations.smk"
include: "workflows/html_report.smk"
include: "workflows/latency.smk"
include: "workflows/gates.smk"
include: "workflows/checkpoints.smk"


rule all:
    """All tables and figures: what `snakemake` makes without a target."""
    default_target: True
    input:
        suite_outputs(RUN),


rule reproduce:
    """All tables and figures (the same as all and reproduce_all)."""
    input:
        suite_outputs(RUN),


rule reproduce_all:
    """All tables and figures of the configured run: results/ and figures/."""
    input:
        suite_outputs(RUN),


rule smoke:
    """The same on a few short prompts, under two minutes: results/smoke/ and figures/smoke/."""
    input:
        suite_outputs(SMALL),


rule kernel_benchmark:
    """Gated-DeltaNet verification and commit, fused against recurrences: results/gdn_verify.csv, its table and figures."""
    input:
        wanted_kernels,


rule latency_27b:
    """Rounds at the 27B shapes with random weights, nothing downloaded: results/latency_27b.csv, its table and figure."""
    input:
        latency_outputs(RUN),


rule download:
    """All that the configured run fetches, its prompts prepared; nothing is measured."""
    input:
        fetched_files(RUN),


rule retrain:
    """Train the embedded stack anew into results/retrain/tiny (hours); checkpoints/tiny is left alone."""
    input:
        rules.weaver.output,
