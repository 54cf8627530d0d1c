from pathlib import Path

from tfm_bench.stack_config import pinned_part


rule download_part:
    """A part of the stack from its pinned repository, as links into the cache of huggingface_hub (under HF_HOME)."""
    output:
        "checkpoints/{stack}/{part}/source.json",
    log:
        "logs/download/{stack}.{part}.log",
    wildcard_constraints:
        stack=Path(CONFIGS[RUN].stack.path).name,
        part="|".join(CONFIGS[RUN].stack.parts or ["none"]),
    conda:
        "../environment.yml"
    params:
        part=lambda wildcards: pinned_part(CONFIGS[RUN].stack, wildcards.part).model_dump(),
    script:
        "scripts/download.py"
