"""Prompts of the paper's data sets, selected and worded, as JSON lines with a manifest: read once, then offline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

from tfm_bench.errors import UserError
from tfm_bench.measure.files import write_text
from tfm_bench.prompts.datasets import PACKAGED, Prompt, packaged_file, prompt_set_hash, read_prompts
from tfm_bench.prompts.manifest import Manifest, Request, check_request, manifest_path, required_manifest
from tfm_bench.prompts.pins import HubPin, Pins, ShareChatPin, read_pins
from tfm_bench.prompts.questions import Wording, read_question, require_wording
from tfm_bench.prompts.rows import Row, numbered_rows, read_items
from tfm_bench.prompts.selection import SELECTION_SEED, Question
from tfm_bench.prompts.sharechat import select_sharechat
from tfm_bench.prompts.sources import BENCHMARKS, DATASETS, SHARECHAT, SHARECHAT_REPO, splits

VERSION = 1
PINS_FILE = "config/datasets.yaml"

Split = Literal["dev", "test"]


def prepare_dataset(dataset: str, split: Split, output: Path, pins: Pins, wording: Wording = "tfm") -> Manifest:
    """Write the prompts of one of DATASETS to `output` and their manifest beside it; what is there already is kept.

    From the hub where `pins` names a commit, else from the installed package that has the data set. Raises UserError:
    no commit and no package, no such split or wording, a source of another form, prompts that do not fit their
    manifest, and prompts without one (they are the user's own).
    """
    request = _request(dataset, split, wording, pins)
    if output.is_file() and (manifest := _kept(output)).request == request:
        return manifest
    files = _source_files(request, pins)
    prompts = [Prompt(question.id, question.text, "chat") for question in _selected(request, files, pins)]
    manifest = Manifest(
        request=request,
        files={name: _sha256(file) for name, file in files.items()},
        prompts=len(prompts),
        prompts_sha256=prompt_set_hash(prompts),
    )
    # In this order: a kill in between leaves a manifest without prompts, never prompts beside a manifest of others.
    output.unlink(missing_ok=True)
    write_text(manifest_path(output), manifest.model_dump_json(indent=2) + "\n")
    write_text(output, "".join(json.dumps(asdict(prompt), sort_keys=True) + "\n" for prompt in prompts))
    return manifest


def require_source(dataset: str, pins: Pins) -> None:
    """Raises UserError where prompts of a data set can come from nowhere: no commit is pinned, no package installed."""
    pin: HubPin | None = getattr(pins, dataset, None)
    _source(dataset, pin)
    if pin is None:
        packaged_file(dataset)


def check_prepared(prompts: Path, dataset: str, split: Split, wording: Wording) -> None:
    """Raises UserError where prompts that are there are not those that the run would prepare from PINS_FILE."""
    if prompts.is_file():
        check_request(prompts, _request(dataset, split, wording, read_pins(Path(PINS_FILE))))


def _request(dataset: str, split: Split, wording: Wording, pins: Pins) -> Request:
    if dataset not in DATASETS:
        raise UserError(f"dataset: found {dataset!r}; accepted are {', '.join(DATASETS)}")
    if split not in splits(dataset):
        raise UserError(f"dataset {dataset}: found split {split!r}; accepted are {', '.join(splits(dataset))}")
    if dataset != SHARECHAT:
        require_wording(dataset, wording)
    pin: HubPin | None = getattr(pins, dataset, None)
    return Request(
        version=VERSION,
        dataset=dataset,
        split=split,
        wording=wording,
        source=_source(dataset, pin),
        revision=pin.revision if pin else None,
        pin=pin.model_dump() if pin else None,
        selection_seed=SELECTION_SEED,
    )


def _source(dataset: str, pin: HubPin | None) -> str:
    """Repository or requirement. Raises UserError where the data set is in no package and its commit is not pinned."""
    hub = None if dataset == SHARECHAT else BENCHMARKS[dataset].hub
    repo = hub.repo if hub else SHARECHAT_REPO
    if pin is not None:
        return repo
    if dataset in PACKAGED:
        return PACKAGED[dataset].requirement
    raise UserError(
        f"{PINS_FILE}: {dataset}.revision: not there, but required; accepted is the commit of {repo} on the "
        "Hugging Face hub that is to be read, 40 hexadecimal digits"
    )


def _kept(output: Path) -> Manifest:
    """Manifest of prompts that are there already, checked against them."""
    manifest = required_manifest(output)
    read_prompts(output)
    return manifest


def _source_files(request: Request, pins: Pins) -> dict[str, Path]:
    if request.revision is None:
        return {PACKAGED[request.dataset].file: packaged_file(request.dataset)}
    from tfm_bench.models.hub import download_file

    fetch = partial(download_file, request.source, revision=request.revision, repo_type="dataset", key=PINS_FILE)
    return {name: fetch(name) for name in _hub_files(request.dataset, pins)}


def _hub_files(dataset: str, pins: Pins) -> list[str]:
    if dataset == SHARECHAT:
        return pins.sharechat.files if pins.sharechat else []
    hub = BENCHMARKS[dataset].hub
    return [hub.file] if hub else []


def _selected(request: Request, files: dict[str, Path], pins: Pins) -> list[Question]:
    """The questions that the split consists of."""
    if pins.sharechat is not None and request.dataset == SHARECHAT:
        return select_sharechat(_messages(files.values(), pins.sharechat), pins.sharechat, request.selection_seed)
    (file,) = files.values()
    questions = read_items(file, partial(read_question, request.dataset, request.wording))
    kept = _select(request, questions)
    if request.split == "test":
        return kept
    tested = {question.id for question in kept}
    return _select(request, [question for question in questions if question.id not in tested])


def _select(request: Request, questions: list[Question]) -> list[Question]:
    benchmark = BENCHMARKS[request.dataset]
    return benchmark.select(request.dataset, questions, benchmark.count, request.selection_seed)


def _messages(files: Iterable[Path], pin: ShareChatPin) -> Iterator[Row]:
    """Messages of all files, one after the other; of tables, nothing but the columns that the pin names."""
    columns = list(pin.columns.model_dump().values())
    for file in files:
        for _, row in numbered_rows(file, columns):
            yield row


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
