"""What holds for every record however fast the machine: a number that breaks it is a bug of the suite, not a result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tfm_bench.backends.settings import ServerCellSettings
from tfm_bench.config import DEFAULT_VARIANT
from tfm_bench.errors import UserError
from tfm_bench.measure.records import JUDGED, MEASURED, TOKEN_IDENTICAL, DecodeRecord, read_records
from tfm_bench.measure.rounds import RoundsRecord, read_rounds, rounds_path

VERSION = 3
STAGE_TOLERANCE = 0.01
NUMBERS = (*MEASURED, *JUDGED, "max_depth", "lossless")


class Claim(NamedTuple):
    """One statement about a record: what was looked at, what was found and what had to be found."""

    what: str
    found: object
    expected: object
    holds: bool


def check_invariants(paths: Iterable[Path]) -> pd.DataFrame:
    """Claims that were checked, per kind, over raw files and their companions.

    Raises UserError, one line, for the first that does not hold: file, record, what was found and what is expected.
    """
    checked: Counter[str] = Counter()
    for path in paths:
        records = read_records(path)
        served = any(isinstance(record.settings, ServerCellSettings) for record in records)
        checked += (
            check_server_cell(path, records) if served else check_cell(path, records, read_rounds(rounds_path(path)))
        )
    if not checked:
        raise UserError("results: no record to check in the raw files; delete them and rerun")
    return pd.DataFrame(checked.items(), columns=["check", "claims"])


def check_cell(path: Path, records: Sequence[DecodeRecord], rounds: Sequence[RoundsRecord]) -> Counter[str]:
    """Claims that were checked on the records of one file, per kind. Raises UserError for the first that fails."""
    if len(rounds) != len(records):
        raise UserError(f"{rounds_path(path)}: found {len(rounds)} lines; {path} has {len(records)} records")
    plain = _plain_records(records)
    claims = (_claims(r, own, plain.get(_cell_of(r))) for r, own in zip(records, rounds, strict=True))
    return _checked(path, zip(records, claims, strict=True))


def check_server_cell(path: Path, records: Sequence[DecodeRecord]) -> Counter[str]:
    """check_cell on what servers answered: there are no rounds beside their sums."""
    plain = _plain_records(records)
    return _checked(path, ((record, _server_claims(record, plain.get(_cell_of(record)))) for record in records))


def _checked(path: Path, claims: Iterable[tuple[DecodeRecord, Iterable[tuple[str, Claim]]]]) -> Counter[str]:
    """Claims per kind; those of each record, in the order of the file."""
    checked: Counter[str] = Counter()
    for line, (record, own) in enumerate(claims, start=1):
        for kind, claim in own:
            if not claim.holds:
                where = f"{path}, line {line} ({record.method}, budget {record.budget}, prompt {record.prompt})"
                raise UserError(f"{where}: {claim.what}: found {claim.found}; expected is {claim.expected}")
            checked[kind] += 1
    return checked


def _plain_records(records: Sequence[DecodeRecord]) -> dict[tuple[str, int], DecodeRecord]:
    """What `ar` gave. A file may hold several cells: those of an ablation."""
    return {_cell_of(r): r for r in records if r.method == "ar" and not r.control and r.status == "ok"}


def _cell_of(record: DecodeRecord) -> tuple[str, int]:
    """The settings and the prompt: what records with the same text share."""
    return record.provenance.config_sha256, record.prompt


def check_roofline(kernels: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Timed kernels that were checked, per implementation: none may beat the limits measured on its device.

    Raises UserError for the first that does, and when there are times but no limit to check them against.
    """
    right = kernels[kernels["status"] == "ok"]
    timed = right[right["roofline_ms"].notna()]
    if timed.empty and not right.empty:
        raise UserError(f"{path}: roofline_ms: found none in {len(right)} timed rows; expected is the device's limit")
    for index, row in timed[timed["median_ms"] < timed["roofline_ms"]].iterrows():
        where = f"{path}, row {index} ({row['implementation']} {row['arm']} {row['phase']}, {row['nodes']} nodes)"
        raise UserError(f"{where}: median_ms: found {row['median_ms']}; expected is {row['roofline_ms']} or more")
    return timed.groupby("implementation", sort=False).size().rename("kernels").reset_index()


def _claims(record: DecodeRecord, rounds: RoundsRecord, plain: DecodeRecord | None) -> Iterator[tuple[str, Claim]]:
    """Claims about a record with their kinds; later ones rely on earlier ones."""
    kinds = {"companion": _companion(record, rounds)}
    if record.status != "ok":
        kinds["no numbers"] = _no_numbers(record, rounds)
    else:
        kinds |= {"counts": _counts(record, rounds), "rounds": _rounds(record, rounds)}
        kinds["stage times"] = _stages(record, rounds)
        if record.method == "ar":
            kinds["plain decoding"] = _plain(rounds)
        if plain is not None and record.rule == TOKEN_IDENTICAL:
            kinds["text"] = _text(record, plain)
    return ((kind, claim) for kind, claims in kinds.items() for claim in claims)


def _server_claims(record: DecodeRecord, plain: DecodeRecord | None) -> Iterator[tuple[str, Claim]]:
    """Unlike the engine's, the control of a server may write another text: its sums are in no fixed order."""
    if record.status != "ok":
        found = [name for name in NUMBERS if getattr(record, name) is not None]
        yield "no numbers", Claim(f"numbers of a record that is {record.status}", found, [], not found)
        return
    rounds, accepted = record.rounds or 0, record.accepted_drafts_sum or 0
    yield "counts", _equal("accepted drafts + rounds", accepted + rounds, record.tokens)
    deepest, most = record.max_depth or 0, record.budget
    yield "counts", Claim("max_depth", deepest, f"0 to the budget, {most}", 0 <= deepest <= most)
    fits = 0 <= accepted <= rounds * most
    yield "counts", Claim("accepted_drafts_sum", accepted, f"0 to the budget in each of {rounds} rounds", fits)
    yield "rounds", _equal("verify_width", record.verify_width, most + 1)
    if plain is not None and record.rule == TOKEN_IDENTICAL:
        same = record.tokens_sha256 == plain.tokens_sha256
        yield "text", _equal("lossless", record.lossless, same)
        yield "text", _equal("first_divergence is empty", record.first_divergence is None, same)


def _companion(record: DecodeRecord, rounds: RoundsRecord) -> Iterator[Claim]:
    found, expected = (
        (r.prompt, r.method, r.budget, r.expansion_width, r.variant, "control" if r.control else "measured")
        for r in (rounds, record)
    )
    yield Claim("record in the same line of the companion file", found, expected, found == expected)


def _no_numbers(record: DecodeRecord, rounds: RoundsRecord) -> Iterator[Claim]:
    found = [name for name in NUMBERS if getattr(record, name) is not None] + ["rounds"] * bool(rounds.accepted)
    yield Claim(f"numbers of a record that is {record.status}", found, [], not found)


def _counts(record: DecodeRecord, rounds: RoundsRecord) -> Iterator[Claim]:
    """Every round emits what it accepted and one token more, cut rounds included: see Generation."""
    count, accepted = len(rounds.accepted), sum(rounds.accepted)
    yield _equal("rounds in the companion file", count, record.rounds)
    yield _equal("sum of accepted in the companion file", accepted, record.accepted_drafts_sum)
    yield _equal("accepted drafts + rounds", accepted + count, record.tokens)
    yield _equal("max_depth", record.max_depth, max(rounds.accepted, default=0))
    for name, total in (("accepted_drafts", accepted), ("acceptance_length", accepted + count)):
        found, expected = getattr(record, name), total / count if count else None
        same = found is not None and math.isclose(found, expected) if expected is not None else found is None
        yield Claim(name, found, expected, same)


def _rounds(record: DecodeRecord, rounds: RoundsRecord) -> Iterator[Claim]:
    """A round accepts at least what its tree's spine would, and at most the depth of the tree.

    Only a variant may verify fewer rows than its budget asks for, and only a rule that follows the target's own draws
    can be held to the spine.
    """
    full, exact = record.variant == DEFAULT_VARIANT, record.rule == TOKEN_IDENTICAL
    yield _equal("verify_width", record.verify_width, record.budget + 1)
    lists = zip(rounds.accepted, rounds.verify_width, rounds.depth, rounds.spine, strict=True)
    for index, (accepted, width, depth, spine) in enumerate(lists):
        fits = width == record.verify_width if full else 1 <= width <= (record.verify_width or 0)
        yield Claim(f"verify_width of round {index}", width, record.verify_width, fits)
        yield Claim(f"depth of round {index}", depth, f"0 to the budget, {record.budget}", 0 <= depth <= record.budget)
        yield Claim(f"accepted drafts of round {index}", accepted, f"0 to its depth, {depth}", 0 <= accepted <= depth)
        if exact:
            yield Claim(f"spine of round {index}", spine, f"0 to what it accepted, {accepted}", 0 <= spine <= accepted)


def _plain(rounds: RoundsRecord) -> Iterator[Claim]:
    yield _equal("accepted drafts of ar", sum(rounds.accepted), 0)


def _stages(record: DecodeRecord, rounds: RoundsRecord) -> Iterator[Claim]:
    """Of a staged record: each stage's sum over the rounds is its total, within 1 % of all stages together."""
    total, per_round = record.stage_ms or {}, rounds.stage_ms or {}
    yield _equal("stages in the companion file", sorted(per_round), sorted(total))
    for stage, milliseconds in total.items():
        found, slack = sum(per_round[stage]), STAGE_TOLERANCE * sum(total.values())
        yield Claim(f"{stage} ms over all rounds", found, milliseconds, abs(found - milliseconds) <= slack)


def _text(record: DecodeRecord, plain: DecodeRecord) -> Iterator[Claim]:
    """lossless says whether the text is that of `ar`; the A/A control's always is."""
    same = record.tokens_sha256 == plain.tokens_sha256
    if record.control:
        yield _equal("tokens_sha256 of the control", record.tokens_sha256, plain.tokens_sha256)
    yield _equal("lossless", record.lossless, same)
    yield _equal("first_divergence is empty", record.first_divergence is None, same)


def _equal(what: str, found: object, expected: object) -> Claim:
    return Claim(what, found, expected, found == expected)
