"""checkpoints/tiny as committed: what PROVENANCE.md says is what lies there, and it writes text, not loops."""

import re

import pytest

from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.measure.lossless import is_degenerate
from tfm_bench.models.checkpoints import file_sha256
from tfm_bench.prompts.datasets import encode_prompt, load_prompts

WEIGHTS = sorted(SHIPPED.rglob("model.safetensors"))
LARGEST_BYTES = 20_000_000


@pytest.fixture(scope="module")
def stack():
    return Stack.load(SHIPPED, dtype="float32", gdn_verify="fused", commit="replay")


def test_provenance_lists_the_hash_of_every_weight_file():
    listed = dict(
        reversed(pair)
        for pair in re.findall(
            r"`([0-9a-f]{64})` +`([\w/.]+)`", (SHIPPED / "PROVENANCE.md").read_text(encoding="utf-8")
        )
    )
    assert {str(path.relative_to(SHIPPED)): file_sha256(path) for path in WEIGHTS} == listed
    assert len(WEIGHTS) == 6


def test_weight_files_are_small():
    assert max(path.stat().st_size for path in WEIGHTS) < LARGEST_BYTES


@pytest.mark.parametrize("dataset", ["math", "code", "chat"])
def test_prompts_of_dev_and_test_are_disjoint(dataset):
    dev, test = (
        {prompt.text for prompt in load_prompts(dataset, split, SHIPPED / "prompts")} for split in ("dev", "test")
    )
    assert len(dev) >= 6
    assert len(test) >= 16
    assert not dev & test


def answer(stack, prompt, temperature):
    return generate(stack, prompt, Arm("ar"), temperature=temperature, seed=0, max_new_tokens=256).tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_mathematics_is_written_to_its_end_and_hardly_ever_loops(stack, temperature):
    prompts = load_prompts("math", "test", SHIPPED / "prompts", 6)
    texts = [answer(stack, encode_prompt(stack.tokenizer, prompt), temperature) for prompt in prompts]
    assert sum(map(is_degenerate, texts)) <= 1
    assert sum(text[-1] in stack.stop_ids for text in texts) >= 5
