"""Rows with the field names under which each data set is published, and a hub's cache to put their files in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

REVISION = "0123456789abcdef0123456789abcdef01234567"
SUBJECTS = ("Algebra", "Geometry", "Number Theory")
PLATFORMS = ("chatgpt", "grok", "perplexity", "gemini", "claude")
LANGUAGES = ("English", "Japanese", "Spanish", "Russian", "Chinese", "French")
TOPICS = ("coding", "travel", "health")

Row = dict[str, Any]


def gsm8k(number: int) -> Row:
    return {"question": f"How many are {number} and {number}?", "answer": f"Twice {number}.\n#### {2 * number}"}


def math500(number: int) -> Row:
    subject = SUBJECTS[number % 5 % 3]  # two fifths, two fifths, one fifth
    text = {"problem": f"Solve $x = {number}$.", "solution": f"$x$ is \\boxed{{{number}}}.", "answer": str(number)}
    return text | {"subject": subject, "level": 1 + number % 5, "unique_id": f"test/{subject.lower()}/{number}.json"}


def aime25(number: int) -> Row:
    return {"problem": f"Find ${number}b$.", "answer": str(number), "id": str(number)}


def humaneval(number: int) -> Row:
    source = {"prompt": f"def f{number}(x):\n", "canonical_solution": "    return x\n", "entry_point": f"f{number}"}
    return source | {"task_id": f"HumanEval/{number}", "test": "def check(candidate):\n    pass\n"}


def mbpp(number: int) -> Row:
    tests = [f"assert f({number}) == 1", "assert f(2) == 2"]
    source = {"source_file": "Benchmark Questions Verification V2.ipynb", "code": "def f(x): ...", "test_imports": []}
    return source | {"task_id": 11 + number, "prompt": f"Write function {number}.", "test_list": tests}


def livecodebench(number: int) -> Row:
    row = {"question_title": f"Task {number}", "question_content": f"Print {number}.", "platform": "atcoder"}
    row |= {"question_id": f"abc{number}_a", "contest_id": "abc", "contest_date": "2025-01-04T00:00:00"}
    row |= {"starter_code": "class Solution:\n    pass" if number % 2 else "", "difficulty": "easy"}
    return row | {"public_test_cases": "[]", "private_test_cases": "eJw=", "metadata": "{}"}


ROWS = {
    "gsm8k": [gsm8k(number) for number in range(300)],
    "math500": [math500(number) for number in range(300)],
    "aime25": [aime25(number) for number in range(30)],
    "humaneval": [humaneval(number) for number in range(164)],
    "mbpp": [mbpp(number) for number in range(6)],
    "livecodebench": [livecodebench(number) for number in range(4)],
}


def sharechat_pin() -> Row:
    """As a user would write it in config/datasets.yaml; columns and labels are made up."""
    columns = {"platform": "site", "url": "link", "position": "index", "role": "who", "text": "words"}
    return {
        "revision": REVISION,
        "files": ["messages.csv"],
        "columns": columns | {"topic": "subject", "language": "tongue"},
        "user": "user",
        "platforms": {platform: platform.upper() for platform in PLATFORMS},
        "languages": {language.lower(): language for language in LANGUAGES},
        "topics": {"english": {"coding": 150, "travel": 100}, "others": dict.fromkeys(TOPICS, 90)},
    }


def conversation(number: int, language: str, turns: list[str] | None = None, topic: str | None = None) -> list[Row]:
    """Messages in turn by user and assistant, with the columns of sharechat_pin; position says the order."""
    names = {"site": PLATFORMS[number * 7 % 5].upper(), "link": f"https://share/{language}/{number}"}
    messages = []
    for index, turn in enumerate(turns or [f"Question {number} in {language}, please.", "And then?"]):
        labels = {"subject": topic or TOPICS[number % 3], "tongue": language}
        messages.append({**names, "index": str(2 * index), "who": "user", "words": turn, **labels})
        answer = {**names, "index": str(2 * index + 1), "who": "assistant", "words": "Well. " * 40}
        messages.append(answer | {"subject": "chatter", "tongue": "Klingon"})
    return messages


def sharechat(english: int, other: int) -> list[Row]:
    """Messages of so many conversations in English and in each other language."""
    counts = [(language, english if language == "English" else other) for language in LANGUAGES]
    return [message for language, n in counts for number in range(n) for message in conversation(number, language)]


def put_on_hub(cache: Path, repo: str, file: str, rows: list[Row], revision: str = REVISION) -> Path:
    """Write a data set's file where the hub's own library keeps a downloaded snapshot."""
    path = cache / f"datasets--{repo.replace('/', '--')}" / "snapshots" / revision / file
    write_rows(path, rows)
    return path


def write_rows(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path, engine="pyarrow")
    elif path.suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
