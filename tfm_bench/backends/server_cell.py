"""A server cell: one dataset and temperature with every server arm, one server after the other on the same GPU."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tfm_bench.backends.detection import Installation, detect
from tfm_bench.backends.flags import AR, ServerArm, server_arms
from tfm_bench.backends.request_log import LoggedRequest, RequestLog, requests_path
from tfm_bench.backends.server_records import server_record
from tfm_bench.backends.server_runs import Run, ServerCell, measure_run, unmeasured
from tfm_bench.backends.settings import ModelSource, ServerCellSettings
from tfm_bench.errors import UserError
from tfm_bench.measure.device_lock import device_lock
from tfm_bench.measure.files import require_disk, write_text
from tfm_bench.measure.partial import hash_of
from tfm_bench.measure.provenance import now, origin_of
from tfm_bench.measure.records import DecodeRecord
from tfm_bench.measure.versions import family_version
from tfm_bench.models.checkpoints import file_sha256
from tfm_bench.prompts.datasets import Prompt, encode_for, load_prompts, prompt_set_hash

VERSION = 2
FAMILIES = ("backends.server_cell", "measure.records")
DEVICE = "cuda"
DISK_MEGABYTES = 200
WEIGHT_SUFFIXES = (".safetensors", ".pth")


def server_cell(settings: ServerCellSettings, output: Path, logs: Path) -> None:
    """Measure one cell: its records to `output`, its requests to requests_path(output), server logs to folder `logs`.

    Waits while another process measures on the device. Continues what a killed run of the same settings and code left
    behind. Raises UserError for bad input and for a plain-decoding server that fails: nothing can be judged then.
    """
    require_disk(output, DISK_MEGABYTES)
    with device_lock(DEVICE):
        cell = _cell(settings, output, logs)
        log = RequestLog(output, _key(cell))
        for run in run_order(runs_of(server_arms(settings)), settings.repeat):
            measure_run(cell, run, log)
        answers = _answers(cell, log)
        _say_failures(cell, answers)
        _write(output, _records(cell, answers), answers)
        log.remove()


def runs_of(arms: Sequence[ServerArm]) -> list[Run]:
    """A run per arm and, half a turn away from it, a second one of plain decoding: the A/A control, a server anew."""
    runs = [Run(arm) for arm in arms]
    runs.insert((len(runs) + 1) // 2, Run(AR, control=True))
    return runs


def run_order(runs: Sequence[Run], repeat: int) -> list[Run]:
    """Rotated every two repeats, reversed on odd ones. Only one server fits on the GPU, so arms do not alternate."""
    shift = (repeat // 2) % len(runs)
    order = [*runs[shift:], *runs[:shift]]
    return order[::-1] if repeat % 2 else order


def _cell(settings: ServerCellSettings, output: Path, logs: Path) -> ServerCell:
    installation = detect(settings.sglang.python)
    tokenizer, prompts = _tokenizer(settings.stack.target), _load_prompts(settings)
    return ServerCell(
        settings=settings,
        installation=installation,
        prompts=prompts,
        prompt_ids=[encode_for(settings.stack, tokenizer, prompt) for prompt in prompts],
        prompts_sha256=prompt_set_hash(prompts),
        checkpoint_sha256=checkpoints_sha256(settings),
        logs=logs / output.stem,
        origin=_origin(settings, installation, now()),
    )


def _load_prompts(settings: ServerCellSettings) -> list[Prompt]:
    limit = None if settings.prompts == "all" else settings.prompts
    prompts = load_prompts(settings.dataset, settings.split, Path(settings.stack.path) / "prompts", limit)
    if limit is not None and len(prompts) < limit:
        found = f"datasets: {settings.dataset} has {len(prompts)} {settings.split} prompts"
        raise UserError(f"{found}; prompts.{settings.split} asks for {limit}")
    return prompts


def _origin(settings: ServerCellSettings, installation: Installation, started_at: datetime) -> dict[str, Any]:
    """The fields of CellProvenance that all runs share."""
    origin = origin_of(torch.device("cpu"))
    return {
        **origin,
        "versions": installation.versions,
        "device": installation.device or origin["cpu"],
        "frequency_governor": None,
        "tf32_matmul": None,
        "tf32_cudnn": None,
        "dtype": settings.stack.dtype,
        "family_versions": {family: family_version(family) for family in FAMILIES},
        "config_sha256": hash_of(settings.model_dump()),
        "started_at": started_at,
    }


def _key(cell: ServerCell) -> str:
    """Equal for runs whose requests may stand in one file."""
    names = ("config_sha256", "family_versions", "device", "versions")
    hashes = {"checkpoints": cell.checkpoint_sha256, "prompts": cell.prompts_sha256}
    return hash_of({name: cell.origin[name] for name in names} | hashes)


def checkpoints_sha256(settings: ServerCellSettings) -> str:
    """One hash over what is served: the weight files of folders, path and commit of what a hub holds."""
    stack = settings.stack
    weaver = Path(stack.weaver) if stack.weaver and "tfm" in settings.methods else None
    parts = [_source_hashes(stack.target), _source_hashes(stack.drafter)]
    parts.append([file_sha256(weaver)] if weaver and weaver.is_file() else [])
    return hash_of({str(index): part for index, part in enumerate(parts)})


def _source_hashes(source: ModelSource) -> list[str]:
    folder = Path(source.path)
    if not folder.is_dir():
        return [source.path, str(source.revision)]
    return [file_sha256(file) for file in sorted(folder.iterdir()) if file.suffix in WEIGHT_SUFFIXES]


def _tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(source.path, revision=source.revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"stack.target: no tokenizer could be loaded from {source.path} ({reason})") from None


def _answers(cell: ServerCell, log: RequestLog) -> list[LoggedRequest]:
    """Of every run and prompt, by prompt; of unsupported arms the reason."""
    runs = runs_of(server_arms(cell.settings))
    return [
        log.done.get(run.place(index)) or unmeasured(cell, run, index)
        for index in range(len(cell.prompts))
        for run in runs
    ]


def _records(cell: ServerCell, answers: Sequence[LoggedRequest]) -> list[DecodeRecord]:
    plain = {logged.request.prompt: logged for logged in answers if _is_plain(logged)}
    return [server_record(cell, logged, plain[logged.request.prompt]) for logged in answers]


def _is_plain(logged: LoggedRequest) -> bool:
    return logged.request.method == "ar" and not logged.request.control


def _say_failures(cell: ServerCell, answers: Sequence[LoggedRequest]) -> None:
    """One line for each reason why an arm has no number."""
    requests = [logged.request for logged in answers if logged.request.status != "ok"]
    for (arm, reason), count in Counter((f"{r.method} {r.budget}", r.reason) for r in requests).items():
        print(
            f"{cell.label}: {arm} has no number on {count} of {len(cell.prompts)} prompts ({reason})", file=sys.stderr
        )


def _write(output: Path, records: Sequence[DecodeRecord], answers: Sequence[LoggedRequest]) -> None:
    """The companion first: where `output` stands, all is there."""
    requests = (logged.request.model_dump_json() for logged in answers)
    write_text(requests_path(output), "".join(f"{line}\n" for line in requests))
    write_text(output, "".join(f"{record.model_dump_json()}\n" for record in records))
