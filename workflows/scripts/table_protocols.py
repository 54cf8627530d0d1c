"""Requests of servers by two protocols."""

from pathlib import Path

from _entry import entry

from tfm_bench.backends.protocols import table_protocols
from tfm_bench.backends.request_log import read_requests
from tfm_bench.report.tables import write_table

with entry(snakemake.log[0]):
    requests = [request for path in snakemake.input.requests for request in read_requests(Path(path))]
    write_table(table_protocols(requests), **{kind: Path(path) for kind, path in snakemake.output.items()})
