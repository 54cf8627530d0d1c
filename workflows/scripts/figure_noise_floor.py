"""The A/A noise: the figure, and the numbers in it."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.figures.noise_floor import figure_noise_floor, plotted_noise
from tfm_bench.report.style import measured_note, save_figure

with entry(snakemake.log[0]):
    decode = read_decode_table(Path(snakemake.input[0]))
    data = plotted_noise(decode)
    figure = figure_noise_floor(data, measured_note(decode))
    write_text(Path(snakemake.output.csv), data.to_csv(index=False, lineterminator="\n"))
    save_figure(figure, pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
