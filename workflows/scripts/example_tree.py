"""Write one telling round of a generation."""

from pathlib import Path

from _entry import entry

from tfm_bench.config import CellSettings

with entry(snakemake.log[0]):
    from tfm_bench.measure.example_tree import example_tree

    example_tree(CellSettings.model_validate(snakemake.params.settings), Path(snakemake.output[0]))
