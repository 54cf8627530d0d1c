"""Speedup by dataset: the figure, and the numbers in it."""

from pathlib import Path

import pandas as pd
from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.figures.speedup_by_dataset import figure_speedup_by_dataset, plotted_speedups
from tfm_bench.report.style import measured_note, save_figure

with entry(snakemake.log[0]):
    data = plotted_speedups(pd.read_csv(snakemake.input.headline))
    note = measured_note(read_decode_table(Path(snakemake.input.decode)))
    figure = figure_speedup_by_dataset(data, note)
    write_text(Path(snakemake.output.csv), data.to_csv(index=False, lineterminator="\n"))
    save_figure(figure, pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
