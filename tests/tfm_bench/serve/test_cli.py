"""The command `tfm-bench serve` as a user types it."""

import re
import signal
import socket
import subprocess
import sys

import httpx2
import pytest

from tests.tfm_bench.tiny_stack import SHIPPED, shipped_stack
from tfm_bench.cli import main
from tfm_bench.engine import Arm, generate


def test_the_shipped_stack_is_served_until_ctrl_c():
    command = [sys.executable, "-c", "from tfm_bench.cli import main; main()", "serve", "--budget", "16", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            url = re.search(r"tiny by tfm, budget 16: (http://127\.0\.0\.1:\d+)$", line)[1]
            sampling = {"temperature": 0, "max_new_tokens": 20}
            transport = httpx2.HTTPTransport(retries=5)  # the line comes just before the server listens
            with httpx2.Client(transport=transport, timeout=60) as client:
                reply = client.post(f"{url}/generate", json={"text": "def add(", "sampling_params": sampling}).json()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) in (0, -signal.SIGINT)
        finally:
            process.kill()
    stack = shipped_stack()
    ids = stack.tokenizer.encode("def add(")
    expected = generate(stack, ids, Arm("ar"), temperature=0.0, seed=0, max_new_tokens=20).tokens
    length = len(reply["output_ids"])
    assert reply["output_ids"] == expected[:length]
    assert length == 20 or reply["meta_info"]["finish_reason"]["type"] == "stop"
    assert reply["text"] == stack.tokenizer.decode(reply["output_ids"], skip_special_tokens=True)


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
        (["--budget", "-1"], "budget: found -1; accepted is 0 or more"),
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
