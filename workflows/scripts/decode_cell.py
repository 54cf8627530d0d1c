"""Measure one cell."""

from pathlib import Path

from _entry import measuring

from tfm_bench.config import CellSettings

with measuring(snakemake.log[0]):
    from tfm_bench.measure.cells import decode_cell

    decode_cell(CellSettings.model_validate(snakemake.params.settings), Path(snakemake.output.records))
