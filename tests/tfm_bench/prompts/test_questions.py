"""What the target is asked, word by word, for a row of every data set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tfm_bench.prompts import published_rows
from tfm_bench.errors import UserError
from tfm_bench.prompts.questions import FORMATS, read_question, require_wording
from tfm_bench.prompts.selection import Question

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Now shorter."]}


@pytest.mark.parametrize(
    ("dataset", "row", "expected"),
    [
        ("mt_bench", MT_BENCH, Question("mt_bench-81", "81", "writing", "Write a poem.")),
        ("gsm8k", published_rows.gsm8k(4), Question("gsm8k-6", "6", "", "How many are 4 and 4?")),
        (
            "math500",
            published_rows.math500(8),
            Question("math500-test/algebra/8.json", "test/algebra/8.json", "Algebra", "Solve $x = 8$."),
        ),
        ("aime25", published_rows.aime25(3), Question("aime25-3", "3", "", "Find $3b$.")),
        ("aime25", {"id": "aime25-3", "problem": "Why?"}, Question("aime25-3", "aime25-3", "", "Why?")),
        ("humaneval", published_rows.humaneval(0), Question("HumanEval/0", "HumanEval/0", "", "def f0(x):\n")),
        (
            "mbpp",
            published_rows.mbpp(1),
            Question("mbpp-12", "12", "", "Write function 1.\n\nExamples/tests:\nassert f(1) == 1\nassert f(2) == 2"),
        ),
        (
            "livecodebench",
            published_rows.livecodebench(1),
            Question(
                "livecodebench-abc1_a",
                "abc1_a",
                "atcoder/easy",
                "Print 1.\n\nStarter code:\n```python\nclass Solution:\n    pass\n```",
            ),
        ),
        (
            "livecodebench",
            published_rows.livecodebench(2),
            Question("livecodebench-abc2_a", "abc2_a", "atcoder/easy", "Print 2."),
        ),
    ],
)
def test_the_papers_wording(dataset: str, row: dict, expected: Question) -> None:
    assert read_question(dataset, "tfm", 7, row) == expected


@pytest.mark.parametrize(
    ("dataset", "row", "text"),
    [
        ("mt_bench", MT_BENCH, "Write a poem."),
        ("gsm8k", published_rows.gsm8k(4), f"How many are 4 and 4?{BOXED}"),
        ("math500", published_rows.math500(8), f"Solve $x = 8$.{BOXED}"),
        ("aime25", published_rows.aime25(3), f"Find $3b$.{BOXED}"),
        ("mbpp", published_rows.mbpp(1), "Write function 1."),
    ],
)
def test_the_wording_of_dflash(dataset: str, row: dict, text: str) -> None:
    assert read_question(dataset, "dflash", 1, row).text == text


def test_a_wording_that_is_not_known_word_by_word_is_refused() -> None:
    with pytest.raises(UserError, match="found 'dflash' for dataset livecodebench; accepted are tfm"):
        require_wording("livecodebench", "dflash")
    for dataset in FORMATS:
        require_wording(dataset, "tfm")


@pytest.mark.parametrize(
    ("dataset", "change", "message"),
    [
        ("mt_bench", {"turns": "Write a poem."}, "turns is str; a list of texts"),
        ("mt_bench", {"turns": []}, "turns is list; a list of texts"),
        ("mt_bench", {"turns": [None]}, "turns is list; a list of texts"),
        ("mt_bench", {"turns": [" ", "And then?"]}, "turns is blank"),
        ("mt_bench", {"question_id": None}, "question_id is NoneType; text or a whole number"),
        ("mt_bench", {"question_id": 81.0}, "question_id is float"),
        ("mt_bench", {"question_id": True}, "question_id is bool"),
        ("mbpp", {"test_list": "assert True"}, "test_list is str; a list of texts"),
        ("mbpp", {"test_list": [1]}, "test_list is list; a list of texts"),
        ("mbpp", {"task_id": " "}, "task_id is blank"),
        ("mbpp", {"task_id": [12]}, "task_id is list"),
        ("mbpp", {"prompt": "\n"}, "prompt is blank"),
        ("mbpp", {"prompt": "half \ud83d"}, r"text holds '\\ud83d' at 5; text of UTF-8"),
        ("math500", {"unique_id": "\ud800"}, r"id holds '\\ud800' at"),
        ("livecodebench", {"starter_code": None}, "starter_code is NoneType"),
        ("livecodebench", {"question_content": 1}, "question_content is int"),
        ("livecodebench", {"platform": 1}, "platform is int"),
    ],
)
def test_a_wrong_value_names_its_key(dataset: str, change: dict, message: str) -> None:
    rows = {"mt_bench": MT_BENCH, "mbpp": published_rows.mbpp(1)}
    row = rows.get(dataset) or getattr(published_rows, dataset)(1)
    read_question(dataset, "tfm", 1, row)
    with pytest.raises((TypeError, ValueError), match=message):
        read_question(dataset, "tfm", 1, row | change)


def test_numbers_and_lists_of_tables_are_accepted() -> None:
    row = published_rows.mbpp(1)
    table = row | {"task_id": np.int64(row["task_id"]), "test_list": np.array(row["test_list"], dtype=object)}
    assert read_question("mbpp", "tfm", 1, table) == read_question("mbpp", "tfm", 1, row)


@pytest.mark.parametrize("row", [{}, {"question": None}, {"question": 5}, [1]])
def test_rows_of_another_form_are_refused(row: object) -> None:
    with pytest.raises((KeyError, TypeError)):
        read_question("gsm8k", "tfm", 1, row)  # type: ignore[arg-type]
