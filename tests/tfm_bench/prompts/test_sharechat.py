"""ShareChat on made-up conversations: gathering and limits by hand, the greedy choice against a search through all."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from fractions import Fraction

import pytest

from tests.tfm_bench.prompts.published_rows import LANGUAGES, PLATFORMS, conversation, sharechat, sharechat_pin
from tfm_bench.errors import UserError
from tfm_bench.prompts.pins import ShareChatPin
from tfm_bench.prompts.sharechat import conversations, is_usable, select_sharechat

SEED = 20260617
PIN = ShareChatPin.model_validate(sharechat_pin())
ENGLISH = dict(zip(("CHATGPT", "GROK", "PERPLEXITY", "GEMINI", "CLAUDE"), (250, 80, 80, 50, 40), strict=True))
OTHERS = dict(zip(("CHATGPT", "GROK", "PERPLEXITY", "GEMINI", "CLAUDE"), (300, 80, 70, 30, 20), strict=True))


@pytest.fixture(scope="module")
def messages() -> list[dict]:
    return sharechat(english=1000, other=120)


def digest(name: str) -> str:
    return hashlib.sha256(f"{SEED}|{name}".encode()).hexdigest()[:16]


def search(messages: list[dict], language: str, quotas: dict, targets: dict, count: int, taken: Counter) -> list[str]:
    """Platform|url of those chosen: of each topic the 300 smallest digests, then one by one the neediest of all."""
    firsts = [m for m in messages if m["tongue"] == language and m["index"] == "0" and m["subject"] in quotas]
    found = [(m["subject"], m["site"], f"{m['site']}|{m['link']}") for m in firsts]
    pool = [
        one for topic in quotas for one in sorted((f for f in found if f[0] == topic), key=lambda f: digest(f[2]))[:300]
    ]
    chosen = []
    for _ in range(count):
        shares = {topic: Fraction(taken[topic], quota) for topic, quota in quotas.items()}
        shares |= {platform: Fraction(taken[platform], target) for platform, target in targets.items()}
        best = min(pool, key=lambda one: (shares[one[0]], shares[one[1]], digest(one[2])))
        pool.remove(best)
        taken.update(best[:2])
        chosen.append(best[2])
    return chosen


def test_the_choice_is_that_of_a_search_through_all(messages: list[dict]) -> None:
    expected = search(messages, "English", PIN.topics.english, ENGLISH, 250, Counter())
    taken: Counter = Counter()
    for language in LANGUAGES[1:]:
        expected += search(messages, language, PIN.topics.others, OTHERS, 50, taken)
    random.Random(SEED).shuffle(expected)
    questions = select_sharechat(messages, PIN, SEED)
    assert [question.key for question in questions] == expected
    assert len({question.id for question in questions}) == 500
    assert all(question.text.startswith("Question ") for question in questions), "only the user's first turn is sent"


def test_quotas_and_targets_are_met_where_the_pool_allows_it(messages: list[dict]) -> None:
    questions = select_sharechat(messages, PIN, SEED)
    languages = Counter(question.key.split("/")[-2] for question in questions)
    assert languages == {"English": 250} | dict.fromkeys(LANGUAGES[1:], 50)
    english = [question for question in questions if "/English/" in question.key]
    assert Counter(question.category for question in english) == {"coding": 150, "travel": 100}
    platforms = Counter(question.key.split("|")[0] for question in english)
    # The pools hold too few from ChatGPT for its half; what is missing falls to the others, in proportion.
    rest, targets = 250 - platforms["CHATGPT"], {name: target for name, target in ENGLISH.items() if name != "CHATGPT"}
    assert 110 < platforms["CHATGPT"] < 125
    assert all(abs(platforms[name] - rest * target / 250) <= 1 for name, target in targets.items())


def test_the_order_of_the_messages_does_not_matter(messages: list[dict]) -> None:
    shuffled = random.Random(1).sample(messages, len(messages))
    assert select_sharechat(shuffled, PIN, SEED) == select_sharechat(messages, PIN, SEED)


def test_another_seed_chooses_others(messages: list[dict]) -> None:
    keys = [{question.key for question in select_sharechat(messages, PIN, seed)} for seed in (SEED, SEED + 1)]
    assert keys[0] != keys[1]


def test_messages_become_conversations() -> None:
    rows = conversation(0, "French", ["Un.", "Two!", "Trois.", "   "])
    rows[2] |= {"tongue": "English", "subject": "travel"}
    rows[6] |= {"tongue": "English", "subject": "travel"}  # without text: has no say
    rows += conversation(1, "French", [" "])
    (found,) = conversations(rows[::-1], PIN, SEED)
    assert (found.platform, found.url) == ("CHATGPT", "https://share/French/0")
    assert found.turns == ("Un.", "Two!", "Trois.")
    assert (found.language, found.topic) == ("French", "coding")
    assert found.key == int(digest("CHATGPT|https://share/French/0"), 16)


def test_a_tie_for_dominance_goes_to_what_came_first() -> None:
    rows = conversation(0, "French", ["Un.", "Two."])
    rows[2] |= {"tongue": "English", "subject": "travel"}
    (found,) = conversations(rows[::-1], PIN, SEED)
    assert (found.language, found.topic) == ("French", "coding")


@pytest.mark.parametrize(
    ("turns", "usable"),
    [
        ([19], False),
        ([20], True),
        ([10, 10], True),
        ([8000], True),
        ([8001], False),
        ([8000, 4000], True),
        ([8000, 4001], False),
        ([5] * 8, True),
        ([5] * 9, False),
    ],
)
def test_limits_of_length(turns: list[int], usable: bool) -> None:
    (found,) = conversations(conversation(0, "French", ["x" * length for length in turns]), PIN, SEED)
    assert is_usable(found) is usable


def test_unusable_conversations_are_never_chosen(messages: list[dict]) -> None:
    longest = [row for number in range(200) for row in conversation(5000 + number, "English", ["x" * 8001])]
    assert select_sharechat(longest + messages, PIN, SEED) == select_sharechat(messages, PIN, SEED)


def test_too_few_conversations_name_the_language() -> None:
    with pytest.raises(UserError, match="found 49 usable conversations in Japanese; 50 are needed"):
        select_sharechat(sharechat(english=600, other=49), PIN, SEED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"site": "BARD"}, "platform 'BARD'; accepted are CHATGPT, GROK"),
        ({"index": "first"}, "another form"),
        ({"index": float("inf")}, "another form"),
        ({"words": "half \ud800"}, r"another form .*words holds .*ud800"),
        ({"link": "\ud800"}, r"another form .*link holds .*ud800"),
    ],
)
def test_messages_of_another_form_are_refused(change: dict, message: str) -> None:
    rows = conversation(0, "English")
    with pytest.raises(UserError, match=message):
        conversations([rows[0] | change], PIN, SEED)
    del rows[0]["who"]
    with pytest.raises(UserError, match=r"another form .*who"):
        conversations(rows, PIN, SEED)


def test_platforms_of_the_pin_are_those_of_the_notes() -> None:
    assert tuple(name for name, _ in PIN.platforms) == PLATFORMS
