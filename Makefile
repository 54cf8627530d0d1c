# Two commands: `make reproduce` and `make test`. Each makes .venv and installs first; the stamp spares the second call.
# `make sglang-reference` unpacks SGLang, without what it needs to run, for the tests that compare kernels with its own.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
CONSTRAINTS := constraints/$(if $(shell command -v nvidia-smi),gpu,cpu).txt
STAMP := $(VENV)/.installed

.PHONY: reproduce test sglang-reference

reproduce: $(STAMP)
	$(RUN) snakemake reproduce_all

test: $(STAMP)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(VENV)/bin/snakefmt --check Snakefile workflows
	$(RUN) snakemake --lint
	$(RUN) mypy
	$(RUN) pytest --numprocesses 2 --dist loadscope

sglang-reference: $(STAMP)
	$(RUN) pip install --quiet --no-deps --target .sglang sglang==0.5.23

$(STAMP): pyproject.toml $(CONSTRAINTS)
	test -x $(VENV)/bin/python || "$(PYTHON)" -m venv $(VENV)
	$(RUN) pip install --quiet --constraint $(CONSTRAINTS) --editable ".[dev]"
	@touch $(STAMP)
