"""Both protocols against nested loops over the same requests."""

import random

import pytest

from tfm_bench.backends.protocols import ALL, table_protocols
from tfm_bench.backends.request_log import ServerRequest

ARMS = {("ar", 0): 1, ("dflash_chain", 15): 3, ("tfm", 64): 5}
DATASETS = {"math": 4, "code": 7, "chat": 2}
REPEATS = 2


def make_request(dice, *, method, budget, dataset, repeat, prompt, control=False):
    tokens = dice.randrange(2, 60)
    place = {"stack": "fake", "split": "test", "temperature": 1.0, "dataset": dataset, "repeat": repeat}
    arm = {"method": method, "budget": budget, "expansion_width": 0, "control": control}
    numbers = {
        "completion_tokens": tokens,
        "verify_steps": 0 if method == "ar" else max(1, (tokens - 1) // ARMS[method, budget]),
        "finish_reason": "length",
        "flush_s": dice.random(),
        "first_token_s": dice.random(),
        "total_s": 1 + 3 * dice.random(),
    }
    return ServerRequest(prompt=prompt, prompt_id=str(prompt), status="ok", reason=None, **place, **arm, **numbers)


@pytest.fixture
def requests():
    dice = random.Random(3)
    return [
        make_request(dice, method=method, budget=budget, dataset=dataset, repeat=repeat, prompt=prompt)
        for method, budget in ARMS
        for dataset, prompts in DATASETS.items()
        for repeat in range(REPEATS)
        for prompt in range(prompts)
    ]


def chosen(requests, method, dataset):
    return [r for r in requests if r.method == method and dataset in (r.dataset, ALL)]


def whereabouts(request):
    return request.method, request.dataset, request.repeat, request.prompt


def ours(requests, method, dataset):
    """(tokens per second, acceptance length) of pooled requests, after the first token."""
    tokens = seconds = rounds = 0
    for request in chosen(requests, method, dataset):
        tokens += request.completion_tokens - 1
        seconds += request.total_s - request.first_token_s
        rounds += request.completion_tokens - 1 if method == "ar" else request.verify_steps
    return tokens / seconds, tokens / rounds


def paper(requests, method, dataset):
    """The same as the paper's script has it."""
    if dataset == ALL:
        each = [paper(requests, method, name) for name in DATASETS]
        return sum(rate for rate, _ in each) / len(each), sum(length for _, length in each) / len(each)
    tokens, wall, lengths = 0, 0.0, []
    for request in chosen(requests, method, dataset):
        tokens += request.completion_tokens
        wall += request.flush_s + request.total_s
        lengths.append(request.completion_tokens / request.verify_steps if request.verify_steps else 1.0)
    return tokens / wall, sum(lengths) / len(lengths)


@pytest.mark.parametrize(("protocol", "loop"), [("ours", ours), ("paper", paper)])
def test_each_protocol_is_that_of_a_loop_over_requests(requests, protocol, loop):
    table = table_protocols(requests)
    rows = table[table.protocol == protocol]
    assert len(rows) == len(ARMS) * (len(DATASETS) + 1)
    for row in rows.itertuples():
        rate, length = loop(requests, row.method, row.dataset)
        assert row.tokens_per_second == pytest.approx(rate)
        assert row.acceptance_length == pytest.approx(length)
        assert row.speedup == pytest.approx(rate / loop(requests, "ar", row.dataset)[0])
        assert row.prompts == len(chosen(requests, "ar", row.dataset))


def test_the_protocols_differ_where_they_should(requests):
    table = table_protocols(requests).set_index(["protocol", "method", "dataset"]).sort_index()
    slow_flush = [r.model_copy(update={"flush_s": 10.0}) for r in requests]
    slow = table_protocols(slow_flush).set_index(["protocol", "method", "dataset"]).sort_index()
    assert (table.loc["ours"] == slow.loc["ours"]).to_numpy().all()
    assert (table.loc["paper"].tokens_per_second > slow.loc["paper"].tokens_per_second).all()
    assert (table.loc["ours", "ar"].acceptance_length == 1).all()


def test_only_requests_that_both_arms_answered_are_compared(requests):
    dice = random.Random(4)
    control = make_request(dice, method="ar", budget=0, control=True, dataset="math", repeat=1, prompt=2)
    lost = {("tfm", "math", 1, 2), ("ar", "code", 0, 3)}
    failed = {"status": "failed", "reason": "a crash"}
    answers = [r.model_copy(update=failed) if whereabouts(r) in lost else r for r in requests]
    table = table_protocols([*answers, control])
    counts = table.groupby(["method", "dataset"]).prompts.first()
    assert (counts["tfm", "math"], counts["ar", "math"]) == (REPEATS * 4 - 1, REPEATS * 4)
    assert (counts["tfm", "code"], counts["ar", "code"]) == (REPEATS * 7 - 1, REPEATS * 7 - 1)
    skipped = {place[1:] for place in lost}
    fewer = [r for r in requests if whereabouts(r)[1:] not in skipped]
    row = table[(table.protocol == "ours") & (table.method == "tfm") & (table.dataset == ALL)].iloc[0]
    assert row.speedup == pytest.approx(ours(fewer, "tfm", ALL)[0] / ours(fewer, "ar", ALL)[0])


def test_no_requests_make_an_empty_table():
    assert table_protocols([]).empty
