"""Documents of the tiny stack: splits by content, prompts and answers that join to the source."""

import ast
import json

import pytest

from tfm_bench.training import data
from tfm_bench.training.data import Document

SOURCE = '''
def area(width, height):
    """Area of a rectangle in square units, from its two sides; the sides may be any numbers that multiply."""
    if width < 0 or height < 0:
        raise ValueError("sides are lengths")
    return width * height


class Shape:
    """Anything with an outline, described by the points that the outline passes through, in order.

    A second paragraph.

    Examples
    --------
    >>> Shape()
    """

    def corners(self):
        return [point for point in self.points if point.angle != 0] + [self.points[0], self.points[-1], None, None]
'''


@pytest.fixture
def source_file(tmp_path):
    path = tmp_path / "shapes.py"
    path.write_text(SOURCE)
    return path


def test_split_depends_on_the_prompt_alone():
    first, second = Document("math", "chat", "question", "one"), Document("code", "text", "question", "two")
    assert (first.split, first.id) == (second.split, second.id)


def test_splits_have_their_shares():
    splits = [Document("math", "chat", f"question {i}", "").split for i in range(20_000)]
    assert splits.count("dev") == pytest.approx(200, rel=0.3)
    assert splits.count("test") == pytest.approx(400, rel=0.3)


def test_definitions_are_qualified_and_complete(source_file):
    names = [name for name, _, _ in data.definitions(source_file)]
    assert names == ["shapes.area", "shapes.Shape", "shapes.Shape.corners"]
    for _, text, _ in data.definitions(source_file):
        ast.parse(text)


def test_unreadable_python_gives_no_definitions(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def broken(:")
    assert not list(data.definitions(path))


def test_code_prompt_and_answer_join_to_the_source(source_file, monkeypatch):
    monkeypatch.setattr(data, "standard_library_files", lambda: [source_file])
    documents = list(data.code_documents())
    assert [document.prompt.splitlines()[0] for document in documents] == [
        "def area(width, height):",
        "def corners(self):",
    ]
    for document in documents:
        ast.parse(document.prompt + document.answer)
    assert documents[0].answer.lstrip().startswith("if width < 0")


def test_chat_answers_are_whole_paragraphs_before_the_examples(source_file, monkeypatch):
    monkeypatch.setattr(data, "standard_library_files", lambda: [source_file])
    monkeypatch.setattr(data, "package_files", lambda package: [])
    answers = {document.prompt: document.answer for document in data.chat_documents()}
    assert answers["What does the class `shapes.Shape` of python do?"].endswith("in order.\nA second paragraph.")
    assert len(answers) == 2


def test_prompts_are_written_for_dev_and_test_only(tmp_path):
    items = [Document("math", "chat", f"question {i}", f"answer {i}") for i in range(2000)]
    data.write_prompts(tmp_path, {"math": items}, limit=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["math.dev.jsonl", "math.test.jsonl"]
    assert len((tmp_path / "math.dev.jsonl").read_text().splitlines()) == 5


def test_prompts_whose_answer_stands_in_train_are_left_out(tmp_path):
    items = [Document("math", "chat", f"question {i}", f"answer {i % 900}") for i in range(2000)]
    data.write_prompts(tmp_path, {"math": items}, limit=100)
    trained = {item.answer for item in items if item.split == "train"}
    answers = {item.prompt: item.answer for item in items}
    texts = [json.loads(line)["text"] for line in (tmp_path / "math.test.jsonl").read_text().splitlines()]
    assert texts
    assert not {answers[text] for text in texts} & trained
