"""Acceptance by depth: the figure, and the numbers in it."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.figures.acceptance_by_depth import figure_acceptance_by_depth, plotted_depths
from tfm_bench.report.round_shares import read_test_rounds
from tfm_bench.report.style import measured_note, save_figure

with entry(snakemake.log[0]):
    decode = read_decode_table(Path(snakemake.input.decode))
    data = plotted_depths(decode, read_test_rounds(map(Path, snakemake.input.rounds)))
    figure = figure_acceptance_by_depth(data, measured_note(decode))
    write_text(Path(snakemake.output.csv), data.to_csv(index=False, lineterminator="\n"))
    save_figure(figure, pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
