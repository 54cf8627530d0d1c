"""The command `tfm-bench serve` as a user types it."""

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import httpx2
import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tests.tfm_bench.tiny_stack import BLOCK, SHIPPED, VOCAB, random_stack, shipped_stack
from tfm_bench.cli import main
from tfm_bench.engine import Arm, generate
from tfm_bench.models.dflash import DFlashDrafter
from tfm_bench.serve.server import Address, bound_socket, run


@contextmanager
def serving(*arguments):
    """A client of `tfm-bench serve` in a process of its own, and the line that it began with."""
    command = [sys.executable, "-m", "tfm_bench.cli", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            url = re.search(r": (http://127\.0\.0\.1:\d+)$", line)[1]
            transport = httpx2.HTTPTransport(retries=5)  # the line comes just before the server listens
            with httpx2.Client(base_url=url, transport=transport, timeout=60) as client:
                yield client, line
            process.send_signal(signal.SIGINT)
            assert process.wait(20) in (0, -signal.SIGINT)
        finally:
            process.kill()


def test_the_shipped_stack_is_served_until_ctrl_c():
    sampling = {"temperature": 0, "max_new_tokens": 20}
    with serving("--budget", "16") as (client, line):
        reply = client.post("/generate", json={"text": "def add(", "sampling_params": sampling}).json()
    assert line.startswith("tiny by tfm, budget 16: ")
    stack = shipped_stack()
    ids = stack.tokenizer.encode("def add(")
    expected = generate(stack, ids, Arm("ar"), temperature=0.0, seed=0, max_new_tokens=20).tokens
    length = len(reply["output_ids"])
    assert reply["output_ids"] == expected[:length]
    assert length == 20 or reply["meta_info"]["finish_reason"]["type"] == "stop"
    assert reply["text"] == stack.tokenizer.decode(reply["output_ids"], skip_special_tokens=True)


def write_dense_stack(folder):
    """The random dense stack in Hugging Face layout, without its Weaver; letters are its tokens."""

    def save(module):
        tensors = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        if isinstance(module, DFlashDrafter):
            values = dataclasses.asdict(module.config)
            values["dflash_config"] = {key: values.pop(key) for key in ("mask_token_id", "target_layer_ids")}
            (folder / "drafter").mkdir()
            (folder / "drafter" / "config.json").write_text(json.dumps(values))
            save_file(tensors, folder / "drafter" / "model.safetensors")
        elif isinstance(module, Qwen3ForCausalLM):
            module.save_pretrained(folder / "target", state_dict=tensors)
        return module

    random_stack("dense", place=save)
    letters = Tokenizer(models.WordLevel({chr(ord("a") + token): token for token in range(VOCAB)}, unk_token="a"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(folder / "target")


def test_a_dense_stack_without_weaver_is_served_by_ddtree_and_not_by_tfm(tmp_path):
    write_dense_stack(tmp_path)
    sampling = {"sampling_seed": 2, "max_new_tokens": 30, "ignore_eos": True}
    with serving("--stack", str(tmp_path), "--method", "ddtree", "--budget", "9") as (client, line):
        reply = client.post("/generate", json={"text": "dje", "sampling_params": sampling}).json()
    assert line.startswith(f"{tmp_path.name} by ddtree, budget 9: ")
    expected = generate(random_stack("dense"), [3, 9, 4], Arm("ar"), temperature=1.0, seed=2, max_new_tokens=30).tokens
    assert reply["output_ids"] == expected
    with pytest.raises(SystemExit) as end:
        main(["serve", "--stack", str(tmp_path), "--port", "0"])
    accepted = "accepted are ar, dflash_chain, ddtree"
    assert str(end.value) == f"error: --method: found tfm, but {tmp_path} has no Weaver; {accepted}"


def test_what_is_announced_is_what_is_drafted(monkeypatch, capsys):
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    with bound_socket(Address("127.0.0.1", 0)) as listener:
        run(random_stack(), Arm("dflash_chain", 64), listener)
    assert capsys.readouterr().out.startswith(f"random by dflash_chain, budget {BLOCK - 1}: ")


def test_the_module_is_the_command():
    shown = subprocess.run(
        [sys.executable, "-m", "tfm_bench.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("usage: tfm-bench")


def test_a_port_in_use_is_said_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as end:
            main(["serve", "--port", str(port), "--stack", "missing"])
    assert re.fullmatch(
        rf"error: --host, --port: found 127\.0\.0\.1:{port}, which cannot be bound \(.+\)", str(end.value)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stack", "missing", "--port", "0"], "missing"),
        (["--method", "tfm", "--expansion-width", "0"], "expansion_width: found 0; tfm accepts 1 or more"),
        (["--budget", "-1"], "--budget: found -1; accepted are 1 to 1024"),
        (["--budget", "100000"], "--budget: found 100000; accepted are 1 to 1024"),
        (["--device", "cuda", "--port", "0"], "stack.device: found cuda, but torch sees no GPU here"),
        (["--port", "70000"], "--host, --port: found 127.0.0.1:70000"),
    ],
)
def test_bad_arguments_end_with_one_line(arguments, message):
    with pytest.raises(SystemExit) as end:
        main(["serve", *arguments])
    assert message in str(end.value)
    assert "\n" not in str(end.value)


def test_the_default_stack_is_the_shipped_one(monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "tfm_bench.serve.server.serve", lambda stack, arm, _, **options: asked.update(stack=stack, arm=arm, **options)
    )
    main(["serve"])
    assert asked == {"stack": SHIPPED, "arm": Arm("tfm", 64, 4), "dtype": "float32", "device": "auto"}
    main(["serve", "--method", "ar"])
    assert asked["arm"] == Arm("ar")
