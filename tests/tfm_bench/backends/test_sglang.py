"""The SGLang client against servers in processes of their own: starts, faults, and that nothing is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.tfm_bench.backends.fake_installation import FLAGS, ROOT, install, make_settings
from tests.tfm_bench.scripted_engine import text_of
from tests.tfm_bench.tiny_stack import random_stack
from tfm_bench.backends import process, sglang
from tfm_bench.backends.answers import ServerError
from tfm_bench.backends.flags import AR, ServerArm, contradiction, launch_command
from tfm_bench.backends.ports import free_port
from tfm_bench.backends.sglang import Sampling, sglang_server
from tfm_bench.engine import Arm, generate
from tfm_bench.errors import UserError

PROMPT = [3, 9, 4]
CHAIN = ServerArm("dflash_chain", 7)
TFM = ServerArm("tfm", 9, 1)
SAMPLING = Sampling(temperature=1.0, seed=2, max_new_tokens=40)


@contextmanager
def started(tmp_path, arm=AR, port=None, start_timeout_s=90, **changes):
    port = port or free_port()
    command = launch_command(make_settings(**changes), arm, port)
    limits = {"start_timeout_s": start_timeout_s, "request_timeout_s": 60}
    with sglang_server(command, port, tmp_path / "server.log", **limits) as server:
        yield server


def is_running(pid):
    """Whether a process computes still; one that has ended and waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_gone(pid):
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def test_a_real_engine_answers_until_it_crashes_in_mid_answer(monkeypatch, tmp_path):
    crash = tmp_path / "crash"
    install(monkeypatch, fork=1, crash=crash)
    expected = generate(random_stack(), PROMPT, Arm("tfm", 9, 1), temperature=1.0, seed=2, max_new_tokens=40)
    with started(tmp_path, TFM) as server:
        assert contradiction(server.info(), make_settings().stack, TFM) is None
        assert 0 <= server.flush() < 5
        reply = server.generate(PROMPT, SAMPLING)
        crash.touch()
        with pytest.raises(ServerError, match=r"exit code 7.*server\.log: CUDA error: an illegal memory access"):
            server.generate(PROMPT, SAMPLING)
        with pytest.raises(ServerError, match="no answer"):
            server.flush()
    assert reply.output_ids == expected.tokens
    assert reply.meta.spec_verify_ct == len(expected.rounds)
    assert 0 < reply.first_token_s < reply.total_s
    assert_gone(server.process.pid)


@pytest.fixture
def scripted(monkeypatch):
    """Servers that start in no time."""
    install(monkeypatch, engine="scripted")
    return monkeypatch


def test_a_slow_start_is_waited_for(scripted, tmp_path):
    scripted.setenv("FAKE_SGLANG_START_S", "1.5")
    with started(tmp_path) as server:
        assert server.start_s > 1.5
        assert server.generate(PROMPT, SAMPLING).output_ids == text_of(PROMPT, 1.0, 2, 40)


def test_a_start_that_takes_too_long_is_given_up_with_the_log_shown(scripted, tmp_path, capfd):
    scripted.setenv("FAKE_SGLANG_START_S", "100")
    ends, stop = [], process._stop_group
    scripted.setattr(process, "_stop_group", lambda leader: (stop(leader), ends.append(leader.pid)))
    with (
        pytest.raises(ServerError, match=r"not healthy within sglang\.start_timeout_s"),
        started(tmp_path, start_timeout_s=1),
    ):
        pass
    assert_gone(ends[0])
    assert "server_args: ready to load" in capfd.readouterr().err


def test_a_flag_that_the_server_refuses_is_shown(scripted, tmp_path, capfd):
    sglang_settings = {"flags": FLAGS | {"ar": ["--enable-magic"]}}
    with pytest.raises(ServerError) as failure, started(tmp_path, sglang=sglang_settings):
        pass
    message = str(failure.value)
    assert "exit code 2" in message
    assert message.endswith("unrecognized arguments: --enable-magic")
    assert "\n" not in message
    assert "usage: launch_server.py" in capfd.readouterr().err


def test_only_what_this_start_wrote_counts_as_its_log(scripted, tmp_path, capfd):
    (tmp_path / "server.log").write_text("old trouble\n")
    with pytest.raises(ServerError), started(tmp_path, sglang={"flags": FLAGS | {"ar": ["--enable-magic"]}}):
        pass
    assert "old trouble" not in capfd.readouterr().err


def test_a_port_in_use_is_refused_before_a_start_and_by_the_server(scripted, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UserError, match=f"port: found {port}, where another process listens"),
            started(tmp_path, port=port),
        ):
            pass
        assert not (tmp_path / "server.log").exists()
        # Another process takes it between the look and the start.
        scripted.setattr(sglang, "require_free", lambda _: None)
        scripted.setattr(sglang, "_healthy", lambda *_: False)
        with (
            pytest.raises(ServerError, match=f"exit code 1.*127.0.0.1:{port}, which cannot be bound"),
            started(tmp_path, port=port),
        ):
            pass


def test_a_request_that_the_server_refuses_is_no_crash(scripted, tmp_path):
    with started(tmp_path) as server:
        with pytest.raises(ServerError, match=r"status 400.*found token id 4096"):
            server.generate([4096], SAMPLING)
        assert len(server.generate(PROMPT, SAMPLING).output_ids) == 40


def test_a_server_that_runs_something_else_is_found_out(scripted, tmp_path):
    scripted.setenv("FAKE_SGLANG_REPORTS", "EAGLE")
    with started(tmp_path, CHAIN) as server:
        info = server.info()
    stack = make_settings().stack
    wrong = "speculative_algorithm: asked for DFLASH, the server runs EAGLE"
    assert contradiction(info, stack, CHAIN) == wrong
    assert "asked for NONE" in contradiction(info, stack, AR)
    assert contradiction({"speculative_algorithm": "A\n" * 999}, stack, CHAIN).isprintable()
    tree = {"speculative_algorithm": "DFLASH_TFM", "speculative_dflash_tfm_tree_budget": 9}
    assert contradiction(tree, stack, TFM) is None
    assert "proposal: asked for ddtree, the server runs NONE" in contradiction(tree, stack, ServerArm("ddtree", 9))
    assert "asked for weaver" in contradiction(tree | {"speculative_dflash_tfm_proposal": "ddtree"}, stack, TFM)
    assert "asked for 10, the server runs 9" in contradiction(tree, stack, ServerArm("tfm", 10, 1))


RUNNER = """
import sys
from pathlib import Path
from tfm_bench.backends import process
from tfm_bench.backends.sglang import Sampling, sglang_server
process.GRACE_S = 0.5
log, port, *command = sys.argv[1:]
with sglang_server(command, int(port), Path(log), start_timeout_s=90, request_timeout_s=60) as server:
    print(server.process.pid, flush=True)
    while True:
        server.generate([1, 2], Sampling(0.0, 0, 400))
"""


@pytest.mark.parametrize(
    ("number", "stubborn", "code"),
    [
        (signal.SIGINT, "", -signal.SIGINT),
        (signal.SIGTERM, "", 128 + signal.SIGTERM),
        (signal.SIGTERM, "1", 128 + signal.SIGTERM),
        (signal.SIGKILL, "1", -signal.SIGKILL),
    ],
    ids=["ctrl-c", "sigterm", "a server that ignores sigterm", "kill -9"],
)
def test_no_server_outlives_the_process_that_started_it(scripted, tmp_path, number, stubborn, code):
    scripted.setenv("FAKE_SGLANG_STUBBORN", stubborn)
    port = free_port()
    command = launch_command(make_settings(), AR, port)
    arguments = [sys.executable, "-c", RUNNER, str(tmp_path / "server.log"), str(port), *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as runner:
        server = int(runner.stdout.readline())
        assert is_running(server)
        runner.send_signal(number)
        assert runner.wait(30) == code
    assert_gone(server)


def test_what_a_server_started_itself_goes_with_it(tmp_path):
    script = "import subprocess, time; print(subprocess.Popen(['sleep', '300']).pid, flush=True); time.sleep(300)"
    log = tmp_path / "server.log"
    with process.server_process([sys.executable, "-c", script], log) as leader:
        while not (line := log.read_text().strip()):
            time.sleep(0.02)
        os.kill(leader.pid, signal.SIGKILL)
        assert is_running(int(line))
    assert_gone(int(line))


def test_what_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True)"
    script = f"import os, time; os.fork(); {deaf}; time.sleep(300)"
    log = tmp_path / "server.log"
    with process.server_process([sys.executable, "-c", script], log):
        while len(pids := log.read_text().split()) < 2:
            time.sleep(0.02)
    for pid in pids:
        assert_gone(int(pid))
