"""From a hub to tokens: a stack with the files of the published one, in small, is downloaded, loaded and decoded."""

import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from transformers import Qwen3_5ForConditionalGeneration

from tests.tfm_bench.models import published_checkpoints as published
from tests.tfm_bench.models import published_shapes as shapes_of
from tests.tfm_bench.models.local_hub import COMMIT, LocalHub
from tfm_bench.config import load_config, read_yaml
from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.errors import UserError
from tfm_bench.measure.cells import checkpoint_sha256
from tfm_bench.models.dflash_config import FULL, SLIDING
from tfm_bench.models.hub import download

ROOT = Path(__file__).parents[2]
ARMS = [Arm("dflash_chain", 15), Arm("ddtree", 20), Arm("tfm", 32, 2)]
WINDOW = 20
PROMPT = (1, 2, 3)


def write_repositories(folder):
    """{repository: folder} for the three of config/qwen36-27b.yaml, also with files that are not needed."""
    target = published.write_sharded(
        folder / "target",
        published.multimodal_config(tied=False),
        published.random_tensors(shapes_of.multimodal_shapes(tied=False)),
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (target / name).write_bytes((ROOT / "checkpoints" / "tiny" / "target" / name).read_bytes())
    (target / "preprocessor_config.json").write_text("{}")
    drafter = published.random_tensors(shapes_of.drafter_shapes(), seed=1)
    weaver = published.random_tensors(shapes_of.weaver_shapes(), torch.float32, seed=2)
    return {
        "Qwen/Qwen3.6-27B": target,
        "z-lab/Qwen3.6-27B-DFlash": published.write_drafter(
            folder / "drafter", drafter, [SLIDING] * 4 + [FULL], WINDOW
        ),
        "trymirai/weaver": published.write_weaver(folder / "repo" / "weaver", weaver).parent,
    }


def small_parts():
    """The parts of config/qwen36-27b.yaml, at the commit and with the file names that are served here."""
    parts = read_yaml(ROOT / "config" / "qwen36-27b.yaml")["stack"]["parts"]
    for part in parts.values():
        part.update(revision=COMMIT, sha256={})
    parts["weaver"]["files"] = ["weaver/small_weaver.pth"]
    values = read_yaml(ROOT / "config" / "default.yaml")
    stack = {"name": "small", "path": "checkpoints/small", "parts": parts}
    return load_config(values | {"stack": values["stack"] | stack}).stack.parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    files = {
        repo: {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}
        for repo, root in write_repositories(folder / "repositories").items()
    }
    with LocalHub(files).running() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        for name, part in small_parts().items():
            download(part, folder / "small" / name)
    return folder / "small"


@pytest.fixture(scope="module")
def decode(folder):
    @cache
    def decoded(arm, temperature):
        stack = Stack.load(folder, dtype="float32", gdn_verify="fused", commit="replay")
        return generate(stack, PROMPT, arm, temperature=temperature, seed=3, max_new_tokens=40)

    return decoded


def test_only_what_is_needed_was_downloaded(folder):
    assert not (folder / "target" / "preprocessor_config.json").exists()
    assert (folder / "target" / "chat_template.jinja").is_file()
    assert [file.name for file in sorted((folder / "weaver").iterdir())] == ["small_weaver.pth", "source.json"]


@torch.no_grad()
def test_plain_decoding_is_that_of_the_multimodal_library_model(folder, decode):
    library = Qwen3_5ForConditionalGeneration.from_pretrained(folder / "target", dtype=torch.float32).eval()
    tokens = [*PROMPT]
    found = list(decode(Arm("ar"), 0.0).tokens)
    assert len(found) > 20
    for _ in found:
        tokens.append(int(library(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert found == tokens[3:]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.method)
def test_every_method_emits_the_same_tokens(decode, arm, temperature):
    expected = decode(Arm("ar"), temperature).tokens
    assert len(expected) > 20
    assert decode(arm, temperature).tokens == expected


def test_the_stack_loads_in_bfloat16(folder):
    stack = Stack.load(folder, dtype="bfloat16", gdn_verify="fused", commit="replay")
    assert stack.target.dtype == stack.drafter.dtype == torch.bfloat16
    assert stack.stop_ids == frozenset(published.END_IDS)
    assert len(generate(stack, PROMPT, ARMS[2], temperature=1.0, seed=0, max_new_tokens=8).tokens) > 0


def test_a_stack_without_weaver_decodes_by_all_other_methods(folder, decode):
    stack = Stack.load(folder, dtype="float32", gdn_verify="fused", commit="replay", with_weaver=False)
    assert stack.weaver_implementation == "none"
    options = {"temperature": 1.0, "seed": 3, "max_new_tokens": 40}
    for arm in ARMS[:2]:
        assert generate(stack, PROMPT, arm, **options).tokens == decode(Arm("ar"), 1.0).tokens
    with pytest.raises(UserError, match=r"found 'tfm'; .*small has no Weaver"):
        generate(stack, PROMPT, ARMS[2], **options)


def test_a_hybrid_target_is_not_taken_for_a_dense_one(folder):
    with pytest.raises(UserError, match=r"stack.gdn_verify: found null; .* has Gated-DeltaNet layers"):
        Stack.load(folder, dtype="float32", gdn_verify=None, commit="replay")


def test_the_hash_of_a_downloaded_stack_is_that_of_its_content(folder, tmp_path):
    hashes = checkpoint_sha256(folder)
    shutil.copytree(folder, tmp_path / "copy")  # links become files, which are hashed
    assert checkpoint_sha256(tmp_path / "copy") == hashes
    for source in (tmp_path / "copy").glob("*/source.json"):
        source.write_text("{}")
    assert checkpoint_sha256(tmp_path / "copy") == hashes
