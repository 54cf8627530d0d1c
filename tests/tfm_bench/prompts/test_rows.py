"""One table in every format, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tfm_bench.prompts.published_rows import write_rows
from tfm_bench.errors import UserError
from tfm_bench.prompts.rows import numbered_rows, read_items
from tfm_bench.prompts.selection import Question

ROWS = [{"id": "a", "text": 'Say "1,2"\n\u2028 é'}, {"id": "b", "text": ""}, {"id": "NA", "text": "null"}]


def to_question(number: int, row: dict[str, str]) -> Question:
    return Question(row["id"], str(number), "", row["text"])


@pytest.mark.parametrize("suffix", ["jsonl", "txt", "json", "parquet", "csv"])
def test_every_format_holds_the_same_rows(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows.{suffix}"
    write_rows(file, ROWS)
    assert list(numbered_rows(file)) == list(enumerate(ROWS, start=1))
    assert [(item.id, item.key, item.text) for item in read_items(file, to_question)] == [
        (row["id"], str(number), row["text"]) for number, row in enumerate(ROWS, start=1)
    ]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_tables_are_read_by_column(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows.{suffix}"
    write_rows(file, ROWS)
    assert [row for _, row in numbered_rows(file, ["id"])] == [{"id": row["id"]} for row in ROWS]
    with pytest.raises(UserError, match=r"rows\.\w+: found a file that cannot be read \(.*topic") as caught:
        list(numbered_rows(file, ["topic"]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.parquet", b"PAR1 is not enough", "cannot be read", id="parquet"),
        pytest.param("a.csv", b'x,y\n1,2\n"3,4,5,6', "cannot be read", id="csv"),
        pytest.param("a.json", b"[1,", "cannot be read", id="json"),
        pytest.param("a.json", b"[" * 100_000, "cannot be read", id="deep"),
        pytest.param("a.jsonl", b"[" * 100_000, "a.jsonl:1: found a line that is no prompt", id="deep line"),
        pytest.param("a.json", b'{"id": "a"}', "found dict; accepted is a list", id="object"),
        pytest.param("a.jsonl", b'{"id": "a", "text": "x"}\n{', "a.jsonl:2: found a line that is no prompt", id="line"),
        pytest.param("a.pkl", b"", "found a file of an unknown kind; accepted are .jsonl", id="suffix"),
    ],
)
def test_damaged_files_end_in_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_items(tmp_path / name, to_question)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
