"""Command lines of the server arms: those of the paper's scripts, and nothing that a shell would read."""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.tfm_bench.backends.fake_installation import FLAGS, ROOT, make_config
from tfm_bench.backends.flags import launch_command, method_flags, server_arms
from tfm_bench.backends.server_cell import checkpoints_sha256
from tfm_bench.backends.settings import load_server_config, server_cell_settings, weaver_files
from tfm_bench.config import read_yaml
from tfm_bench.errors import UserError

CONFIG = ROOT / "config" / "qwen36-27b-sglang.yaml"
FORK_CONFIG = ROOT / "config" / "qwen36-27b-sglang-fork.yaml"
REFERENCE = Path(os.environ.get("SGLANG_REFERENCE", ROOT / ".sglang"))
PIN = "sglang==0.5.23"

# method.md, section 8.5; the fork's --cuda-graph-max-bs is --cuda-graph-max-bs-decode in SGLang 0.5.23.
COMMON = """--dtype bfloat16 --tp-size 1 --max-running-requests 1 --cuda-graph-max-bs-decode 32
 --mem-fraction-static 0.75 --page-size 64 --disable-radix-cache"""
FORK_COMMON = COMMON.replace("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")
DRAFTER = """--speculative-draft-model-path z-lab/Qwen3.6-27B-DFlash
 --speculative-draft-model-revision 0919688658996800f86b895034249700e9481106"""
TREE = f"""--decode-attention-backend trtllm_mha --prefill-attention-backend flashinfer
 --speculative-draft-attention-backend fa4 --speculative-gdn-verify-kernel chunk --disable-overlap-schedule
 --speculative-algorithm DFLASH_TFM {DRAFTER} --speculative-dflash-tfm-tree-budget 64"""
EXPECTED = {
    "ar": "--decode-attention-backend trtllm_mha --prefill-attention-backend flashinfer",
    "dflash_chain": f"""--attention-backend trtllm_mha --speculative-draft-attention-backend fa4
 --speculative-algorithm DFLASH {DRAFTER} --speculative-dflash-block-size 16 --speculative-num-draft-tokens 16""",
    "ddtree": f"{TREE} --speculative-dflash-tfm-proposal ddtree",
    "tfm": f"{TREE} --speculative-dflash-tfm-path checkpoints/qwen36-27b/weaver/qwen36_27b_weaver.pth",
}


def paper_settings(file=CONFIG):
    config = load_server_config(read_yaml(file), origin=str(file))
    return server_cell_settings(config, split="test", dataset="gsm8k", temperature_hundredths=100, repeat=0)


def options(words):
    """Flag -> value; a flag without one has None."""
    pairs = re.findall(r"(--\S+)(?: (?!--)(\S+))?", " ".join(words))
    return {flag: value or None for flag, value in pairs}


@pytest.mark.parametrize(("file", "common"), [(CONFIG, COMMON), (FORK_CONFIG, FORK_COMMON)], ids=["upstream", "fork"])
@pytest.mark.parametrize("arm", server_arms(paper_settings()), ids=lambda arm: arm.method)
def test_the_commands_are_those_of_the_paper(arm, file, common):
    command = launch_command(paper_settings(file), arm, 30123)
    assert command[:3] == ["python", "-m", "sglang.launch_server"]
    model = "--model-path Qwen/Qwen3.6-27B --revision 6a9e13bd6fc8f0983b9b99948120bc37f49c13e9"
    expected = f"{model} --host 127.0.0.1 --port 30123 {common} {EXPECTED[arm.method]}"
    assert options(command[3:]) == options(expected.split())
    assert len(command[3:]) == len(expected.split())


def test_both_installations_measure_the_same():
    upstream, fork = read_yaml(CONFIG), read_yaml(FORK_CONFIG)
    assert fork["stack"].pop("name") == "qwen36-27b-sglang-fork"
    assert upstream["stack"].pop("name") == "qwen36-27b-sglang"
    fork_flags, flags = fork["sglang"]["flags"].pop("common"), upstream["sglang"]["flags"].pop("common")
    assert fork_flags == [flag.removesuffix("-decode") for flag in flags]
    assert fork == upstream


def test_arms_are_plain_decoding_the_whole_chain_and_each_budget_of_a_tree():
    settings = paper_settings().model_copy(update={"budgets": [16, 64]})
    arms = [(arm.method, arm.budget, arm.expansion_width) for arm in server_arms(settings)]
    trees = [("ddtree", 16, 0), ("ddtree", 64, 0), ("tfm", 16, 1), ("tfm", 64, 4)]
    assert arms == [("ar", 0, 0), ("dflash_chain", 15, 0), *trees]


@pytest.mark.skipif(not (REFERENCE / "sglang").is_dir(), reason="SGLang's wheel is not unpacked: make sglang-reference")
def test_upstream_sglang_knows_every_flag_of_its_arms():
    fields = (REFERENCE / "sglang" / "srt" / "arg_groups" / "fields").glob("*.py")
    names = set(re.findall(r"^    (\w+): A\[", "".join(file.read_text() for file in fields), flags=re.MULTILINE))
    for arm in server_arms(paper_settings())[:2]:
        used = {
            flag[2:].replace("-", "_") for flag in launch_command(paper_settings(), arm, 1) if flag.startswith("--")
        }
        assert used <= names
    trees = {
        flag[2:].replace("-", "_") for flag in method_flags(paper_settings().stack, server_arms(paper_settings())[-1])
    }
    assert "speculative_dflash_tfm_tree_budget" in trees - names


PUBLISHED = read_yaml(CONFIG)["stack"]
BAD = {
    "flag of ours": (
        {"sglang": make_config()["sglang"] | {"flags": FLAGS | {"tfm": ["--speculative-algorithm=EAGLE"]}}},
        "sglang.flags: tfm: found --speculative-algorithm=EAGLE, which the suite sets itself",
    ),
    "a string of flags": (
        {"sglang": make_config()["sglang"] | {"flags": FLAGS | {"ar": "--tp-size 1"}}},
        "sglang.flags.ar: found '--tp-size 1'; input should be a valid list",
    ),
    "no commit": (
        {"stack": make_config()["stack"] | {"target": {"path": "Qwen/Qwen3.6-27B"}}},
        "stack.target: revision: found none for Qwen/Qwen3.6-27B, which is no folder here; a commit is required",
    ),
    "a branch": (
        {"stack": make_config()["stack"] | {"target": {"path": "Qwen/Qwen3.6-27B", "revision": "main"}}},
        "stack.target.revision: found 'main'; string should match",
    ),
    "nothing to compare with": ({"methods": ["tfm"]}, "methods: 'ar' is missing; every speedup is a ratio to it"),
    "a dataset twice": ({"datasets": ["math", "math"]}, "datasets: found ['math', 'math']; each value"),
    "a method twice": ({"methods": ["ar", "tfm", "tfm"]}, "methods: found ['ar', 'tfm', 'tfm']; each value"),
    "a budget twice": ({"budgets": [9, 9]}, "budgets: found [9, 9]; each value is accepted once"),
    "a temperature twice": ({"temperatures": [1, 1.0]}, "temperatures: found [1.0, 1.0]; each value"),
    "a temperature that no file name holds": (
        {"temperatures": [0.125]},
        "temperatures: found 0.125; whole hundredths are accepted",
    ),
    "prompts prepared elsewhere": (
        {"stack": make_config("/data/qwen")["stack"] | {"wording": "tfm"}},
        "stack: path: found '/data/qwen'; what a run prepares is put into checkpoints/NAME",
    ),
    "Weaver downloaded elsewhere": (
        {"stack": PUBLISHED | {"path": "checkpoints/a/b", "wording": None}},
        "stack: path: found 'checkpoints/a/b'; what a run prepares is put into checkpoints/NAME",
    ),
    "no Weaver": (
        {"stack": {key: value for key, value in make_config()["stack"].items() if key != "weaver"}},
        "stack.weaver: not there, but required where methods has 'tfm'",
    ),
    "unknown key": ({"pyhton": "x"}, "pyhton: unknown key; accepted are the keys of config/qwen36-27b-sglang.yaml"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_refused_with_one_line(name):
    changes, message = BAD[name]
    with pytest.raises(UserError) as failure:
        load_server_config(make_config() | changes, origin="file.yaml")
    assert str(failure.value).startswith(f"file.yaml: {message}")
    assert "\n" not in str(failure.value)


def test_a_missing_key_is_named():
    config = make_config()
    del config["sglang"]["python"]
    with pytest.raises(UserError, match=r"^config: sglang\.python: not there, but required$"):
        load_server_config(config)


def test_a_run_without_tfm_needs_no_weaver():
    config = make_config(methods=["ar", "dflash_chain", "ddtree"])
    del config["stack"]["weaver"]
    loaded = load_server_config(config)
    assert weaver_files(loaded.stack) == []
    settings = server_cell_settings(loaded, split="test", dataset="math", temperature_hundredths=0, repeat=0)
    assert [launch_command(settings, arm, 1)[0] for arm in server_arms(settings)] == [sys.executable] * 3
    assert re.fullmatch("[0-9a-f]{64}", checkpoints_sha256(settings))


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for part in ("target", "drafter"):
        (tmp_path / part).mkdir()
    own = {"target": {"path": "~/target"}, "drafter": {"path": "~/drafter"}, "weaver": "~/weaver.pth"}
    config = make_config(sglang={"python": "~/env/bin/python"})
    loaded = load_server_config(config | {"stack": config["stack"] | own})
    assert loaded.sglang.python == f"{tmp_path}/env/bin/python"
    assert (loaded.stack.target.path, loaded.stack.drafter.path) == (f"{tmp_path}/target", f"{tmp_path}/drafter")
    assert loaded.stack.weaver == f"{tmp_path}/weaver.pth"
    assert load_server_config(make_config(sglang={"python": "python"})).sglang.python == "python"


def test_the_environment_of_servers_is_pinned_whole_and_apart():
    for file in ("environment-sglang.yml", "constraints/sglang.txt", CONFIG, FORK_CONFIG):
        assert "://" not in (ROOT / file).read_text()
    (pip,) = (
        e["pip"]
        for e in yaml.safe_load((ROOT / "environment-sglang.yml").read_text())["dependencies"]
        if isinstance(e, dict)
    )
    assert pip == ["--constraint constraints/sglang.txt", PIN]
    assert PIN in (ROOT / "Makefile").read_text()  # the reference kernel is of the same version
    lines = [line for line in (ROOT / "constraints" / "sglang.txt").read_text().splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[\w.+!]+", line) for line in lines)
    pins = dict(line.split("==") for line in lines)
    assert (pins["sglang"], pins["torch"], pins["transformers"]) == ("0.5.23", "2.14.1", "5.19.0")
    assert len(pins) == len(lines)
