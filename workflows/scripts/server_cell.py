"""Measure one cell of server arms."""

from pathlib import Path

from _entry import measuring

from tfm_bench.backends.settings import ServerCellSettings

with measuring(snakemake.log[0]):
    from tfm_bench.backends.server_cell import server_cell

    # The log of each server stands beside that of the cell.
    logs = Path(snakemake.log[0]).parent
    server_cell(ServerCellSettings.model_validate(snakemake.params.settings), Path(snakemake.output.records), logs)
