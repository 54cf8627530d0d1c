"""The shipped JSON Schemas: `python -m tfm_bench.measure.schemas` writes them anew from the models."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from tfm_bench.backends.request_log import ServerRequest
from tfm_bench.measure.files import write_text
from tfm_bench.measure.kernel_records import KernelRecord
from tfm_bench.measure.latency_records import LatencyRecord
from tfm_bench.measure.recorded_trees import RecordedTree
from tfm_bench.measure.records import DecodeRecord
from tfm_bench.measure.rounds import RoundsRecord

FOLDER = Path("results/schema")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
MODELS: dict[str, type[BaseModel]] = {
    "decode": DecodeRecord,
    "rounds": RoundsRecord,
    "requests": ServerRequest,
    "kernels": KernelRecord,
    "latency_27b": LatencyRecord,
    "recorded_trees": RecordedTree,
}


def schema_text(name: str) -> str:
    """The schema of one line of a raw file, as it stands in results/schema/<name>.json."""
    schema = MODELS[name].model_json_schema(mode="serialization")
    return json.dumps({"$schema": DIALECT, **schema}, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all schemas below the working directory."""
    for name in MODELS:
        write_text(FOLDER / f"{name}.json", schema_text(name))


if __name__ == "__main__":
    main()
