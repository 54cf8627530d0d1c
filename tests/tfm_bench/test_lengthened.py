"""Prompts of a given length, against a definition by counting from the end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tfm_bench.fake_cells import PROMPTS, settings_for
from tfm_bench.measure.records import read_records
from tfm_bench.prompts.lengthened import lengthened

IDS = st.lists(st.integers(0, 99), max_size=6)


@given(others=st.lists(IDS, min_size=1, max_size=5).filter(any), prompt=IDS, length=st.integers(1, 60))
def test_the_end_is_the_prompt_and_the_front_repeats_the_others(others, prompt, length):
    result = lengthened(others, prompt, length)
    assert len(result) == length
    kept = min(length, len(prompt))
    assert result[length - kept :] == prompt[len(prompt) - kept :]
    backwards = itertools.cycle(reversed([token for other in others for token in other]))
    assert result[: length - kept] == [next(backwards) for _ in range(length - kept)][::-1]


@given(prompt=IDS.filter(bool), length=st.integers(1, 10))
def test_without_others_a_prompt_can_only_be_shortened(prompt, length):
    if length <= len(prompt):
        assert lengthened([], prompt, length) == prompt[-length:]
    else:
        with pytest.raises(ValueError, match=f"a prompt of {len(prompt)} tokens has no others to reach {length} with"):
            lengthened([[]], prompt, length)


@pytest.mark.parametrize("length", [3, 8, 40])
def test_a_cell_decodes_prompts_of_exactly_this_length(cells, stack_folder, length):
    """Each prompt stands behind the others of its set, never behind itself while there is another."""
    settings = settings_for(stack_folder).model_copy(update={"prompt_tokens": length})
    cells.decode_cell(settings, stack_folder / "cell.jsonl")
    assert {r.prompt_tokens for r in read_records(stack_folder / "cell.jsonl")} == {length}
    decoded = {call.prompt for call in cells.calls}
    assert {len(prompt) for prompt in decoded} == {length}
    names = [f"prompt {index}" for index in range(PROMPTS)]
    for index, name in enumerate(names):
        order = [*names[index + 1 :], *names[:index]]
        assert ("".join(order) * 2 + name)[-length:] in decoded
