"""Measure the cells of one ablation."""

from pathlib import Path

from _entry import measuring

from tfm_bench.config import CellSettings

with measuring(snakemake.log[0]):
    from tfm_bench.measure.cells import ablation_cells

    points = {name: CellSettings.model_validate(settings) for name, settings in snakemake.params.points.items()}
    ablation_cells(points, Path(snakemake.output.records))
