"""Prepare the prompts of one data set."""

from pathlib import Path

from _entry import entry

from tfm_bench.prompts.pins import Pins
from tfm_bench.prompts.prepare import prepare_dataset

with entry(snakemake.log[0]):
    wanted, params = snakemake.wildcards, snakemake.params
    pins = Pins.model_validate(params.pins)
    prepare_dataset(wanted.dataset, wanted.split, Path(snakemake.output.prompts), pins, params.wording)
