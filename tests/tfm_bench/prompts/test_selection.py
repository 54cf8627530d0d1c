"""The paper's samples against slower words for the same thing: one hash at a time, one seat at a time."""

from __future__ import annotations

import hashlib
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm_bench.errors import UserError
from tfm_bench.prompts.selection import Question, every, quotas, rank, sample, sample_by_category, whole

SEED = 20260617
SIZES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 60), min_size=1, max_size=8)


def questions(categories: list[str]) -> list[Question]:
    return [Question(f"id{i}", str(i), category, f"text {i}") for i, category in enumerate(categories)]


def hex_rank(name: str, question: Question) -> str:
    """Sixteen hexadecimal digits: ordered as the eight bytes are."""
    return hashlib.sha256(f"{SEED}|{name}|{question.key}|{question.category}".encode()).hexdigest()[:16]


def test_rank_is_the_head_of_the_digest() -> None:
    assert rank(SEED, "gsm8k", "7", "") == int(hashlib.sha256(b"20260617|gsm8k|7|").hexdigest()[:16], 16)


@given(count=st.integers(1, 40), extra=st.integers(0, 40))
def test_sample_keeps_the_lowest_ranks_in_file_order(count: int, extra: int) -> None:
    rows = questions(["x"] * (count + extra))
    kept = sample("gsm8k", rows, count, SEED)
    left = [row for row in rows if row not in kept]
    assert len(kept) == count
    assert kept == [row for row in rows if row in kept]
    assert not left or max(hex_rank("gsm8k", row) for row in kept) < min(hex_rank("gsm8k", row) for row in left)


@pytest.mark.parametrize("select", [sample, sample_by_category])
def test_which_rows_are_kept_does_not_depend_on_their_order(select) -> None:
    rows = questions(["a", "b", "b", "c"] * 20)
    forward, backward = select("math500", rows, 30, SEED), select("math500", rows[::-1], 30, SEED)
    assert backward == forward[::-1]


def test_seed_name_key_and_category_all_decide() -> None:
    rows = questions(["x"] * 200)
    base = sample("gsm8k", rows, 20, SEED)
    others = [
        sample("gsm8k", rows, 20, SEED + 1),
        sample("math500", rows, 20, SEED),
        sample("gsm8k", [Question(r.id, r.key, "y", r.text) for r in rows], 20, SEED),
        sample("gsm8k", [Question(r.id, f"{r.key}-", "x", r.text) for r in rows], 20, SEED),
    ]
    ids = [{row.id for row in chosen} for chosen in [base, *others]]
    assert len({frozenset(chosen) for chosen in ids}) == len(ids)


@given(sizes=SIZES, data=st.data())
def test_quotas_by_largest_remainder(sizes: dict[str, int], data: st.DataObject) -> None:
    total = sum(sizes.values())
    count = data.draw(st.integers(0, total))
    exact = {name: Fraction(size * count, total) for name, size in sizes.items()}
    expected = {name: int(share) for name, share in exact.items()}
    for _ in range(count - sum(expected.values())):  # a seat goes to whoever is furthest below its share, then by name
        neediest = min(exact, key=lambda name: (expected[name] - exact[name], name))
        expected[neediest] += 1
    assert quotas(sizes, count) == expected
    assert all(quota <= sizes[name] for name, quota in expected.items())


def test_equal_remainders_go_by_name() -> None:
    assert quotas({"b": 1, "a": 1, "c": 2}, 2) == {"a": 1, "b": 0, "c": 1}


def test_math_500_by_subject() -> None:
    """128 of 500, worked by hand: 0.256 of each subject; the floors sum to 123, and five remainders are above 0.7."""
    sizes = {
        "Algebra": 124,  # 31.744
        "Intermediate Algebra": 97,  # 24.832
        "Prealgebra": 82,  # 20.992
        "Number Theory": 62,  # 15.872
        "Precalculus": 56,  # 14.336
        "Geometry": 41,  # 10.496
        "Counting & Probability": 38,  # 9.728
    }
    rows = questions([subject for subject, size in sizes.items() for _ in range(size)])
    kept = sample_by_category("math500", rows, 128, SEED)
    found = Counter(row.category for row in kept)
    assert [found[subject] for subject in sizes] == [32, 25, 21, 16, 14, 10, 10]
    for subject in sizes:  # within a subject: the lowest ranks
        members = sorted((row for row in rows if row.category == subject), key=lambda row: hex_rank("math500", row))
        assert {row.id for row in kept if row.category == subject} == {row.id for row in members[: found[subject]]}


@pytest.mark.parametrize("select", [sample, sample_by_category])
def test_too_small_a_set_is_refused(select) -> None:
    with pytest.raises(UserError, match="dataset gsm8k: found 3 rows; a sample of 4 needs as many"):
        select("gsm8k", questions(["x"] * 3), 4, SEED)


@pytest.mark.parametrize("found", [29, 31])
def test_a_whole_set_of_another_size_is_another_set(found: int) -> None:
    with pytest.raises(UserError, match=f"dataset aime25: found {found} rows; 30 are accepted"):
        whole("aime25", questions([""] * found), 30, SEED)


def test_whole_sets_are_kept_as_they_are() -> None:
    rows = questions(["x", "y", "x"])
    assert whole("aime25", rows, 3, SEED) == rows
    assert every("mbpp", rows, 257, SEED) == rows
