"""Figures over single rounds, against counting in nested loops over the files."""

import json
import random
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.tfm_bench.decode_rows import decode_rows
from tests.tfm_bench.figure_files import assert_reproducible_truetype
from tfm_bench.errors import UserError
from tfm_bench.report.arms import arms_of
from tfm_bench.report.figures.acceptance_by_depth import figure_acceptance_by_depth, plotted_depths
from tfm_bench.report.figures.accepted_length_histogram import figure_accepted_length_histogram, plotted_lengths
from tfm_bench.report.round_shares import arms_of_one_width, read_test_rounds
from tfm_bench.report.style import METHOD_STYLES, measured_note

MOST = {"ar": 0, "dflash_chain": 5, "ddtree": 2, "tfm": 4}
COMPARED = {
    "dflash_chain": 15,
    "ddtree": 64,
    "tfm": 64,
}  # of decode_rows: the trees have no budget of 15, the next is 64
ARM = ["method", "budget", "expansion_width", "variant", "control"]


@pytest.fixture(scope="module")
def decode():
    """A loop under one arm of one prompt: it takes the prompt from all of them."""
    rows = decode_rows()
    looping = (rows["dataset"] == "code") & (rows["prompt"] == 3) & (rows["method"] == "tfm") & (rows["budget"] == 8)
    return rows.assign(degenerate=looping)


@pytest.fixture(scope="module")
def files(decode, tmp_path_factory):
    """Rounds of all cells, made up at random: a file per cell, 2 to 9 rounds per generation."""
    draw, folder = random.Random(7), tmp_path_factory.mktemp("raw")
    lines = defaultdict(list)
    for row in decode.to_dict("records"):
        cell = f"{row['split']}.{row['dataset']}.t{round(100 * row['temperature']):03d}.r{row['repeat']}"
        depth = [draw.randint(0, MOST[row["method"]]) for _ in range(draw.randint(2, 9))]
        record = {key: row[key] for key in ("prompt", *ARM)} | {
            **{"accepted": [draw.randint(0, deepest) for deepest in depth], "depth": depth},
            **{"verify_width": [row["budget"] + 1] * len(depth), "spine": [0] * len(depth), "stage_ms": None},
        }
        lines[cell].append(json.dumps(record))
    for cell, records in lines.items():
        (folder / f"{cell}.rounds.jsonl").write_text("\n".join(records))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def depths(decode, files):
    return plotted_depths(decode, read_test_rounds(files))


@pytest.fixture(scope="module")
def lengths(decode, files):
    return plotted_lengths(decode, read_test_rounds(files))


def rounds(files, dataset, temperature, method):
    """(accepted, depth) of every round but the last of the test prompts of an arm that do not loop."""
    for path in files:
        place = path.name.split(".")
        if place[0] != "test" or dataset not in (place[1], "all") or place[2] != f"t{round(100 * temperature):03d}":
            continue
        for record in map(json.loads, path.read_text().splitlines()):
            if record["control"] or (record["method"], record["budget"]) != (method, COMPARED[method]):
                continue
            if (place[1], record["prompt"]) != ("code", 3):
                yield from list(zip(record["accepted"], record["depth"], strict=True))[:-1]


def test_shares_by_depth_are_those_of_counting(depths, files):
    assert len(depths) == 2 * 2 * sum(MOST.values())
    for row in depths.itertuples():
        counted = list(rounds(files, row.dataset, row.temperature, row.method))
        assert row.budget == COMPARED[row.method]
        assert row.prompts == (3 if row.dataset == "code" else 4)
        assert row.share == pytest.approx(sum(accepted >= row.depth for accepted, _ in counted) / len(counted))
        assert row.reach == pytest.approx(sum(depth >= row.depth for _, depth in counted) / len(counted))
        assert row.share_low <= row.share <= row.share_high
        assert row.share <= row.reach
    for (dataset, temperature, method), rows in depths.groupby(["dataset", "temperature", "method"]):
        counted = [accepted for accepted, _ in rounds(files, dataset, temperature, method)]
        assert rows["share"].sum() == pytest.approx(sum(counted) / len(counted))  # accepted drafts per round


def test_shares_by_length_are_those_of_counting(lengths, files):
    assert set(lengths["dataset"]) == {"all"}
    for row in lengths.itertuples():
        counted = [accepted for accepted, _ in rounds(files, "all", row.temperature, row.method)]
        assert row.rounds == counted.count(row.accepted_drafts)
        assert row.share == pytest.approx(row.rounds / len(counted))
    for temperature, rows in lengths.groupby("temperature"):
        most = max(accepted for method in COMPARED for accepted, _ in rounds(files, "all", temperature, method))
        for _, of_method in rows.groupby("method"):
            assert list(of_method["accepted_drafts"]) == list(range(most + 1))
            assert of_method["share"].sum() == pytest.approx(1.0)


def test_lines_and_bars_are_the_rows_of_the_companion_tables(depths, lengths):
    axes = figure_acceptance_by_depth(depths, "note").axes[0]
    panel = depths[(depths["dataset"] == "math") & (depths["temperature"] == 0)]
    for method, budget in COMPARED.items():
        rows, label = panel[panel["method"] == method], f"{METHOD_STYLES[method].label} (B = {budget})"
        thick, thin = (line for line in axes.lines if line.get_color() == METHOD_STYLES[method].colour)
        assert thick.get_label() == label
        assert list(thick.get_ydata()) == list(rows["share"])
        assert list(thin.get_ydata()) == list(rows["reach"])
    assert axes.get_ylim()[0] == 0
    axes = figure_accepted_length_histogram(lengths, "note").axes[1]
    heights = [bar.get_height() for container in axes.containers[1::2] for bar in container]
    assert heights == list(lengths.loc[lengths["temperature"] == 1, "share"])
    left = sorted(
        (bar.get_x(), bar.get_x() + bar.get_width()) for container in axes.containers[1::2] for bar in container
    )
    assert all(end <= start for (_, end), (start, _) in pairwise(left))
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize(
    ("dropped", "expected"),
    [
        ([], COMPARED),
        ([("ddtree", 64)], COMPARED | {"ddtree": 8}),
        ([("dflash_chain", 15)], {"dflash_chain": 8, "ddtree": 8, "tfm": 8}),
        ([("dflash_chain", 15), ("dflash_chain", 8)], {"ddtree": 8, "tfm": 8}),
    ],
)
def test_the_trees_that_are_compared_are_as_wide_as_the_chain_or_the_next_wider(decode, dropped, expected):
    test = decode[(decode["split"] == "test") & (decode["dataset"] == "math") & (decode["temperature"] == 1)]
    arms = [arm for arm in arms_of(test) if (arm.method, arm.budget) not in dropped]
    assert {arm.method: arm.budget for arm in arms_of_one_width(arms)} == expected


def test_an_arm_that_is_not_lossless_is_not_drawn(decode, files):
    rows = decode.assign(
        lossless=~((decode["method"] == "tfm") & (decode["dataset"] == "math") & (decode["prompt"] == 0))
    )
    data = plotted_depths(rows, read_test_rounds(files))
    assert set(data.loc[data["dataset"] == "math", "method"]) == {"dflash_chain", "ddtree"}
    assert set(data.loc[data["dataset"] == "code", "method"]) == set(COMPARED)


def test_a_file_that_belongs_to_no_cell_is_one_line(tmp_path):
    with pytest.raises(
        UserError, match=r"math\.rounds\.jsonl: found a name that is none of a cell's rounds; accepted is"
    ):
        read_test_rounds([tmp_path / "math.rounds.jsonl"])


def test_files_are_reproducible_and_embed_truetype(tmp_path, decode, depths, lengths):
    note = measured_note(decode)
    assert_reproducible_truetype(lambda: figure_acceptance_by_depth(depths, note), tmp_path)
    assert_reproducible_truetype(lambda: figure_accepted_length_histogram(lengths, note), tmp_path)
