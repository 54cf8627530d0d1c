"""Verification latency: the figure, and the numbers in it."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.kernel_records import read_kernel_table
from tfm_bench.report.figures.gdn_verify_latency import figure_gdn_verify_latency, plotted_latency
from tfm_bench.report.gdn_verify import kernel_note, one_problem
from tfm_bench.report.style import save_figure

with entry(snakemake.log[0]):
    kernels = read_kernel_table(Path(snakemake.input[0]))
    data = plotted_latency(kernels)
    figure = figure_gdn_verify_latency(data, kernel_note(one_problem(kernels)))
    write_text(Path(snakemake.output.csv), data.to_csv(index=False, lineterminator="\n"))
    save_figure(figure, pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
