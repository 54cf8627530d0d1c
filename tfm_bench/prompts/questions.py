"""How a row of each data set becomes a question: its name, its category and its wording.

Two wordings. "tfm" is that of the paper's benchmark (method notes §8.1): the data set's own text, with the tests of
MBPP and the starter code of LiveCodeBench behind it. "dflash" is that of the DFlash and DDTree papers (arXiv
2602.06036, 2604.12989), for comparison with their numbers. Blank lines and fences in "tfm" are ours, and so are the
key and the category of GSM8K, whose rows have neither: the notes do not give them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Literal, get_args

from tfm_bench.errors import UserError
from tfm_bench.prompts.rows import Row
from tfm_bench.prompts.selection import Question

Wording = Literal["tfm", "dflash"]
TextOf = Callable[[Row], str]

BOXED = r"Please reason step by step, and put your final answer within \boxed{}."
PASSING = "Write a solution to the following problem and make sure that it passes the tests:"


@dataclass(frozen=True)
class Format:
    """Of one data set: the column that names a row (None: its number, from 0), its category, its text by wording."""

    key: str | None
    category: TextOf
    texts: dict[Wording, TextOf]


def read_question(dataset: str, wording: Wording, number: int, row: Row) -> Question:
    """Row `number` (from 1) of a data set. Raises KeyError, TypeError or ValueError for a row of another form."""
    form = FORMATS[dataset]
    key = str(number - 1) if form.key is None else _name(row, form.key)
    # "HumanEval/0" and "aime25-0" name their set already.
    name = key if key.casefold().startswith(dataset) else f"{dataset}-{key}"
    question = Question(name, key, form.category(row), form.texts[wording](row))
    for part in fields(question):
        require_utf8(part.name, getattr(question, part.name))
    return question


def require_utf8(name: str, text: str) -> None:
    """Raises ValueError for half a surrogate pair: JSON can hold it, no file and no tokenizer can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds {text[error.start]!a} at {error.start}; text of UTF-8 is accepted") from None


def require_wording(dataset: str, wording: Wording) -> None:
    """Raises UserError where a data set has no such wording."""
    found = [name for name in get_args(Wording) if name in FORMATS[dataset].texts]
    if wording not in found:
        raise UserError(f"wording: found {wording!r} for dataset {dataset}; accepted are {', '.join(found)}")


def _name(row: Row, key: str) -> str:
    """What a row is called. Parquet gives numbers as numpy's, which are Integral too."""
    if isinstance(row[key], bool) or not isinstance(row[key], str | Integral):
        raise TypeError(f"{key} is {type(row[key]).__name__}; text or a whole number is accepted")
    return _filled(key, str(row[key]))


def _text(row: Row, key: str) -> str:
    """The text, which may be blank."""
    if not isinstance(row[key], str):
        raise TypeError(f"{key} is {type(row[key]).__name__}; text is accepted")
    return row[key]


def _texts(row: Row, key: str) -> list[str]:
    """A list of texts, as JSON or parquet has it."""
    values = row[key].tolist() if hasattr(row[key], "tolist") else row[key]
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{key} is {type(row[key]).__name__}; a list of texts is accepted")
    return values


def _filled(key: str, text: str) -> str:
    """The text, which may not be blank."""
    if not text.strip():
        raise ValueError(f"{key} is blank; text is accepted")
    return text


def _field(name: str) -> TextOf:
    return lambda row: _filled(name, _text(row, name))


def _none(row: Row) -> str:
    return ""


def _first_turn(row: Row) -> str:
    return _filled("turns", _texts(row, "turns")[0])


def _boxed(name: str) -> TextOf:
    return lambda row: f"{_field(name)(row)}\n{BOXED}"


def _passing(row: Row) -> str:
    return f"{PASSING}\n```python\n{_field('prompt')(row)}\n```"


def _with_tests(row: Row) -> str:
    return "\n".join([f"{_field('prompt')(row)}\n", "Examples/tests:", *_texts(row, "test_list")])


def _with_starter_code(row: Row) -> str:
    starter = _text(row, "starter_code")
    return _field("question_content")(row) + (f"\n\nStarter code:\n```python\n{starter}\n```" if starter else "")


def _platform_and_difficulty(row: Row) -> str:
    return f"{_text(row, 'platform')}/{_text(row, 'difficulty')}"


FORMATS = {
    "mt_bench": Format("question_id", _field("category"), {"tfm": _first_turn, "dflash": _first_turn}),
    "gsm8k": Format(None, _none, {"tfm": _field("question"), "dflash": _boxed("question")}),
    "math500": Format("unique_id", _field("subject"), {"tfm": _field("problem"), "dflash": _boxed("problem")}),
    "aime24": Format("id", _none, {"tfm": _field("problem"), "dflash": _boxed("problem")}),
    "aime25": Format("id", _none, {"tfm": _field("problem"), "dflash": _boxed("problem")}),
    "humaneval": Format("task_id", _none, {"tfm": _field("prompt"), "dflash": _passing}),
    "mbpp": Format("task_id", _none, {"tfm": _with_tests, "dflash": _field("prompt")}),
    # The stock instruction that the DFlash wording starts with is not in the notes word by word.
    "livecodebench": Format("question_id", _platform_and_difficulty, {"tfm": _with_starter_code}),
}
