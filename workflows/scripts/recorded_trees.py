"""Record the trees of real rounds."""

from pathlib import Path

from _entry import entry

from tfm_bench.config import TreeSettings

with entry(snakemake.log[0]):
    from tfm_bench.measure.recorded_trees import recorded_trees

    recorded_trees(TreeSettings.model_validate(snakemake.params.settings), Path(snakemake.output[0]))
