"""The example tree: a real round of the shipped stack, against plain decoding and plain forward passes."""

from itertools import combinations

import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tests.tfm_bench.figure_files import assert_reproducible_truetype
from tests.tfm_bench.tiny_kernels import DEFAULTS
from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.config import CellSettings, load_config
from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.example_config import BUDGET, example_settings
from tfm_bench.measure.example_tree import COLUMNS, example_tree, round_rows, telling_round, visible
from tfm_bench.prompts.datasets import encode_prompt, load_prompts
from tfm_bench.report.figures.example_tree import figure_example_tree, plotted_tree, tree_note
from tfm_bench.tree import TokenTree
from tfm_bench.verification.sample_match import Acceptance

TOKENS = 24
#        anchor, its children 1 (better) and 2, below 1: 3; below 2: 4 and 5 (better); row 6 is padding
TREE = TokenTree.from_lists([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 2], [0.0, -0.5, -1.0, -0.1, -2.0, -0.3], width=7)


@pytest.fixture(scope="module")
def settings() -> CellSettings:
    stack = load_config(DEFAULTS).stack.model_copy(update={"path": str(SHIPPED), "threads": 1})
    changes = {"stack": stack, "max_new_tokens": TOKENS}
    return CellSettings.model_validate(example_settings(load_config(DEFAULTS)).model_copy(update=changes).model_dump())


@pytest.fixture(scope="module")
def table(settings, tmp_path_factory) -> pd.DataFrame:
    output = tmp_path_factory.mktemp("example") / "example_tree.csv"
    example_tree(settings, output)
    return pd.read_csv(output, keep_default_na=False, na_values=[""])


@pytest.fixture(scope="module")
def stack() -> Stack:
    return Stack.load(SHIPPED, dtype="float32", gdn_verify="fused", commit="replay")


@pytest.fixture(scope="module")
def text(settings, stack) -> tuple[list[int], list[int]]:
    """Prompt ids, and what plain decoding gives."""
    (prompt,) = load_prompts(settings.dataset, settings.split, SHIPPED / "prompts", 1)
    ids, place = encode_prompt(stack.tokenizer, prompt), {"seed": settings.seed, "max_new_tokens": TOKENS}
    return ids, generate(stack, ids, Arm("ar"), temperature=settings.temperature, **place).tokens


def path_to(table, node):
    """Token ids from below the anchor to the node."""
    row = table.loc[node]
    return [] if row["parent"] < 0 else [*path_to(table, row["parent"]), row["token_id"]]


def test_the_accepted_path_is_the_text_that_plain_decoding_emits(table, text):
    assert list(table.columns) == COLUMNS
    assert list(table["node"]) == list(range(BUDGET + 2))
    assert list(table["kind"]) == ["anchor", *["draft"] * BUDGET, "bonus"]
    path = table.loc[table["accepted"], "token_id"].to_list()
    assert list(table.loc[table["accepted"], "depth"]) == list(range(len(path)))
    _, emitted = text
    assert any(emitted[start : start + len(path)] == path for start in range(len(emitted)))
    assert len(path) > 3


def test_probabilities_are_those_of_plain_forward_passes(table, text, stack, settings):
    ids, emitted = text
    path = table.loc[table["accepted"], "token_id"].to_list()
    start = next(i for i in range(len(emitted)) if emitted[i : i + len(path)] == path)
    before = [*ids, *emitted[: start + 1]]
    assert visible(stack.tokenizer.decode(before[:-1]), blank=" ").endswith(table["context"].iloc[0])
    for parent, children in table[table["parent"] >= 0].groupby("parent"):
        tokens = torch.tensor([*before, *path_to(table, parent)])
        logits = stack.target.prefill(stack.target.new_state(len(tokens), 1), tokens).logits[-1]
        law = (logits / settings.temperature).softmax(-1)
        expected = law[children["token_id"].tolist()].tolist()
        assert children["target_probability"].to_numpy() == pytest.approx(expected, abs=1e-4)
    drafts = table[table["kind"] == "draft"]
    above = table["path_probability"].to_numpy()[drafts["parent"]]
    assert drafts["path_probability"].to_numpy() == pytest.approx(above * drafts["edge_probability"].to_numpy())
    assert drafts.groupby("parent")["edge_probability"].sum().max() <= 1 + 1e-6


def test_rows_of_a_round_leave_padding_out_and_end_with_the_bonus_token():
    logits = torch.randn(7, 12, generator=torch.Generator().manual_seed(1))
    rows = round_rows(TREE, logits, Acceptance([0, 2, 4], bonus=7), temperature=0.5)
    assert [row["kind"] for row in rows] == ["anchor", *["draft"] * 5, "bonus"]
    assert [row["parent"] for row in rows] == [-1, 0, 0, 1, 2, 2, 4]
    assert [row["depth"] for row in rows] == [0, 1, 1, 2, 2, 2, 3]
    assert [row["accepted"] for row in rows] == [True, False, True, False, True, False, True]
    assert rows[4]["path_probability"] == pytest.approx(torch.tensor(-3.0).exp().item())
    for row in rows[1:]:
        weights = [torch.tensor(score / 0.5).exp().item() for score in logits[row["parent"]].tolist()]
        assert row["target_probability"] == pytest.approx(weights[row["token_id"]] / sum(weights), rel=1e-5)
    greedy = round_rows(TREE, logits, Acceptance([0], bonus=int(logits[0].argmax())), temperature=0.0)
    assert greedy[-1]["target_probability"] == 1.0
    assert {row["target_probability"] for row in greedy[1:]} <= {0.0, 1.0}


def test_the_round_is_the_longest_that_goes_against_the_drafter():
    none, spine, detour, deep = (
        round_rows(TREE, torch.zeros(7, 12), Acceptance(path, 7), 1.0) for path in ([0], [0, 1, 3], [0, 2], [0, 2, 5])
    )
    assert telling_round([spine, detour, none]) == 1
    assert telling_round([spine, detour, deep, deep, none]) == 2
    assert telling_round([none, spine, none]) == 1
    assert telling_round([none, deep]) == 0  # the last round is cut
    assert telling_round([deep]) == 0


@pytest.mark.parametrize(
    ("token", "expected"), [(" left", "␣left"), ("\n  ", "\\n␣␣"), ("\x00", "\\x00"), ("é", "é"), ("\ufffd", "\ufffd")]
)
def test_blanks_are_shown_and_control_characters_escaped(token, expected):
    assert visible(token) == expected


def test_an_example_does_not_depend_on_what_else_is_measured():
    config = load_config(DEFAULTS)
    other = config.model_copy(update={"budgets": [4], "methods": ["ar"], "repeats": 9, "datasets": ["math", "chat"]})
    assert example_settings(other) == example_settings(config)
    assert example_settings(config).temperature == 1.0


def leaves(table):
    return len(set(table["node"]) - set(table["parent"]))


def test_every_node_stands_in_the_lane_of_its_best_child_and_none_on_another(table):
    data = plotted_tree(table)
    assert len(set(zip(data["depth"], data["lane"], strict=True))) == len(data)
    best = table.sort_values("edge_probability").drop_duplicates("parent", keep="last")
    lane = data.set_index("node")["lane"]
    for row in best[best["parent"] >= 0].itertuples():
        if row.kind == "draft":
            assert lane[row.node] == lane[row.parent]
    assert sorted(set(lane)) == list(range(leaves(table)))


def test_no_edge_crosses_one_of_another_parent(table):
    """Edges run along the lanes of parent and child and go down between the columns: there lanes must be apart."""
    spans: dict[tuple[int, int], set[int]] = {}
    data = plotted_tree(table).set_index("node")
    for row in data[data["parent"] >= 0].itertuples():
        parent = data.loc[row.parent]
        spans.setdefault((parent["depth"], row.parent), set()).update(range(parent["lane"], row.lane + 1))
    for (one, lanes), (other, others) in combinations(spans.items(), 2):
        assert one[0] != other[0] or not lanes & others


def test_the_drawing_shows_every_token_once_and_no_two_overlap(table):
    awkward = table.assign(token=[f"$x_{node}^a$ and more" for node in table["node"]])
    for rows in (table, awkward):
        figure = figure_example_tree(plotted_tree(rows), "note")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in figure.axes[0].texts]
        assert len(boxes) == 2 * len(table)
        assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    shown = [text.get_text() for text in figure_example_tree(plotted_tree(table), "note").axes[0].texts[::2]]
    for drawn, token in zip(shown, table["token"], strict=True):
        assert drawn == token or (drawn[-1] == "…" and token.startswith(drawn[:-1]))
    thick = [line for line in figure.axes[0].lines if line.get_linewidth() > 2]
    assert len(thick) == table["accepted"].sum() - 1


def test_files_are_reproducible_and_the_note_says_where_the_tree_is_from(table, tmp_path):
    data = plotted_tree(table)
    note = tree_note(data)
    for part in (f"stack tiny, math dev prompt {table['prompt_id'].iloc[0]}, T = 1", "n = 1", table["context"].iloc[0]):
        assert part in note
    assert_reproducible_truetype(lambda: figure_example_tree(data, note), tmp_path)
