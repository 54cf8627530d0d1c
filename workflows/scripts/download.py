"""One part of a stack, downloaded."""

from pathlib import Path

from _entry import entry

from tfm_bench.stack_config import PinnedPart

with entry(snakemake.log[0]):
    from tfm_bench.models.hub import download

    download(PinnedPart.model_validate(snakemake.params.part), Path(snakemake.output[0]).parent)
