"""Latency at real shapes: the figure, and the numbers in it."""

from pathlib import Path

import pandas as pd
from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.latency_records import read_latency_table
from tfm_bench.report.figures.latency_27b import figure_latency_27b, latency_note, plotted_latency
from tfm_bench.report.style import save_figure

with entry(snakemake.log[0]):
    table = pd.read_csv(snakemake.input.table)
    data = plotted_latency(table)
    figure = figure_latency_27b(data, latency_note(read_latency_table(Path(snakemake.input.latency)), table))
    write_text(Path(snakemake.output.csv), data.to_csv(index=False, lineterminator="\n"))
    save_figure(figure, pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
