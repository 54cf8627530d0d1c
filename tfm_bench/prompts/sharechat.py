"""ShareChat (tucnguyen/ShareChat): conversations out of messages, and the paper's 500 of them (method notes §8.1).

What the notes say: dominant topic and language of the user turns; 20 to 12,000 characters in all, none of a message
above 8,000, at most 8 turns; pools of the 300 smallest keys by topic (English) or by language and topic; 250 English
and 50 of each other language, chosen greedily by topic quota, platform target and key; shuffled; only turn 0 is sent.

What they leave open, and what is done here: characters and turns are the user's; a tie for dominance goes to the value
that comes first; the next conversation is of the topic that lacks most of its quota in proportion, then of the
platform that lacks most of its target in proportion, then that of smallest key; the other languages follow one another
and share their counts. So whether these are the paper's very conversations cannot be vouched for.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tfm_bench.errors import UserError
from tfm_bench.prompts.pins import ShareChatColumns, ShareChatPin
from tfm_bench.prompts.questions import require_utf8
from tfm_bench.prompts.rows import Row
from tfm_bench.prompts.selection import Question, rank

CHARACTERS, LONGEST_MESSAGE, MOST_TURNS = range(20, 12_001), 8_000, 8
POOL = 300
ENGLISH, OF_EACH_OTHER = 250, 50
ENGLISH_TARGETS = {"chatgpt": 250, "grok": 80, "perplexity": 80, "gemini": 50, "claude": 40}
OTHER_TARGETS = {"chatgpt": 300, "grok": 80, "perplexity": 70, "gemini": 30, "claude": 20}

Cell = tuple[str, str]


@dataclass(frozen=True)
class Conversation:
    """turns: what the user said, in order; platform, topic and language as the data call them; key: its rank."""

    platform: str
    url: str
    topic: str
    language: str
    turns: tuple[str, ...]
    key: int


def select_sharechat(rows: Iterable[Row], pin: ShareChatPin, seed: int) -> list[Question]:
    """The paper's conversations, shuffled by `seed`: turn 0 of each.

    rows: messages with the columns that the pin names, in any order. Raises UserError for an unknown platform, a
    column that is not there and a language with too few conversations.
    """
    usable = [one for one in conversations(rows, pin, seed) if is_usable(one)]
    targets = {label: ENGLISH_TARGETS[name] for name, label in pin.platforms}
    pool = _pool(usable, pin.languages.english, pin.topics.english, ENGLISH)
    chosen = _pick(pool, ENGLISH, pin.topics.english, targets, Counter(), Counter())
    targets = {label: OTHER_TARGETS[name] for name, label in pin.platforms}
    topics: Counter[str] = Counter()
    platforms: Counter[str] = Counter()
    for language in [label for name, label in pin.languages if name != "english"]:
        pool = _pool(usable, language, pin.topics.others, OF_EACH_OTHER)
        chosen += _pick(pool, OF_EACH_OTHER, pin.topics.others, targets, topics, platforms)
    random.Random(seed).shuffle(chosen)
    return [_question(conversation) for conversation in chosen]


def conversations(rows: Iterable[Row], pin: ShareChatPin, seed: int) -> list[Conversation]:
    """The user's messages by platform and url. Those without text do not count, nor a conversation without any."""
    columns, messages = pin.columns, defaultdict(list)
    for row in rows:
        try:
            if row[columns.role] == pin.user and _is_text(row[columns.text]):
                require_utf8(columns.text, row[columns.text])
                require_utf8(columns.url, url := str(row[columns.url]))
                messages[_platform(row, pin), url].append((int(row[columns.position]), row))
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise UserError(f"dataset sharechat: found a message of another form ({error!r})") from None
    return [
        _conversation(*name, [row for _, row in sorted(said, key=lambda one: one[0])], columns, seed)
        for name, said in messages.items()
    ]


def is_usable(conversation: Conversation) -> bool:
    """Whether length and number of the user's turns are within the paper's limits."""
    lengths = [len(turn) for turn in conversation.turns]
    return sum(lengths) in CHARACTERS and max(lengths) <= LONGEST_MESSAGE and len(lengths) <= MOST_TURNS


def _conversation(platform: str, url: str, said: list[Row], columns: ShareChatColumns, seed: int) -> Conversation:
    return Conversation(
        platform=platform,
        url=url,
        topic=_dominant(row[columns.topic] for row in said),
        language=_dominant(row[columns.language] for row in said),
        turns=tuple(row[columns.text] for row in said),
        key=rank(seed, platform, url),
    )


def _platform(row: Row, pin: ShareChatPin) -> str:
    labels = [label for _, label in pin.platforms]
    if row[pin.columns.platform] not in labels:
        raise ValueError(f"platform {row[pin.columns.platform]!r}; accepted are {', '.join(labels)}")
    return str(row[pin.columns.platform])


def _dominant(values: Iterable[Any]) -> str:
    """The most frequent text among values, of equals the first; "" where none is a text."""
    counted = Counter(value for value in values if _is_text(value)).most_common(1)
    return counted[0][0] if counted else ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _pool(
    conversations: list[Conversation], language: str, quotas: Mapping[str, int], count: int
) -> list[Conversation]:
    """Of each topic with a quota, the POOL conversations of smallest key. Raises UserError for fewer than `count`."""
    topics: dict[str, list[Conversation]] = defaultdict(list)
    for conversation in sorted(conversations, key=_order):
        if conversation.language == language and conversation.topic in quotas:
            topics[conversation.topic].append(conversation)
    pool = [conversation for members in topics.values() for conversation in members[:POOL]]
    if len(pool) < count:
        raise UserError(f"dataset sharechat: found {len(pool)} usable conversations in {language}; {count} are needed")
    return pool


def _pick(
    pool: list[Conversation],
    count: int,
    quotas: Mapping[str, int],
    targets: Mapping[str, int],
    topics: Counter[str],
    platforms: Counter[str],
) -> list[Conversation]:
    """`count` of a pool that has as many; `topics` and `platforms` count what was taken before, and count on."""
    queues: dict[Cell, list[Conversation]] = defaultdict(list)
    for conversation in sorted(pool, key=_order, reverse=True):
        queues[conversation.topic, conversation.platform].append(conversation)

    def need(cell: Cell) -> tuple[Fraction, Fraction, tuple[int, str]]:
        topic, platform = cell
        topic_share, platform_share = topics[topic], platforms[platform]
        return (
            Fraction(topic_share, quotas[topic]),
            Fraction(platform_share, targets[platform]),
            _order(queues[cell][-1]),
        )

    chosen: list[Conversation] = []
    while len(chosen) < count:
        topic, platform = cell = min((cell for cell in queues if queues[cell]), key=need)
        chosen.append(queues[cell].pop())
        topics[topic] += 1
        platforms[platform] += 1
    return chosen


def _order(conversation: Conversation) -> tuple[int, str]:
    """By key; a collision, if there ever is one, by name."""
    return conversation.key, f"{conversation.platform}|{conversation.url}"


def _question(conversation: Conversation) -> Question:
    name = f"{conversation.platform}|{conversation.url}"
    return Question(f"sharechat-{name}", name, conversation.topic, conversation.turns[0])
