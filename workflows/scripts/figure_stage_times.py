"""Stage times: the figure, and the numbers in it."""

from pathlib import Path

import pandas as pd
from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.figures.stage_times import figure_stage_times, plotted_stages, stages_note
from tfm_bench.report.style import save_figure

with entry(snakemake.log[0]):
    data = plotted_stages(pd.read_csv(snakemake.input.stage_times), pd.read_csv(snakemake.input.headline))
    figure = figure_stage_times(data, stages_note(read_decode_table(Path(snakemake.input.decode))))
    write_text(Path(snakemake.output.csv), data.to_csv(index=False, lineterminator="\n"))
    save_figure(figure, pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
