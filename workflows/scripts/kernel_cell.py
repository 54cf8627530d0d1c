"""Measure all kernel arms."""

from pathlib import Path

from _entry import measuring

from tfm_bench.config import KernelSettings

with measuring(snakemake.log[0]):
    from tfm_bench.measure.kernels import kernel_cell

    settings = KernelSettings.model_validate(snakemake.params.settings)
    kernel_cell(settings, Path(snakemake.input[0]), Path(snakemake.output[0]))
