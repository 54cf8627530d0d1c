"""Whose process listens at a port: health that a foreign one answers is not that of the server."""

import os
import signal
import subprocess
import sys

import pytest

from tfm_bench.backends import ports
from tfm_bench.backends.answers import ServerError
from tfm_bench.backends.ports import free_port, is_stolen
from tfm_bench.backends.sglang import sglang_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who listens")

LISTENER = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2:] and os.fork():
    listener.close()
else:
    print("up", flush=True)
time.sleep(60)
"""
# Answers 200 to everything.
THIEF = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("up", flush=True)
server.serve_forever()
"""


@pytest.fixture
def listening():
    """Runs a script in a process group of its own, until it says that it is up."""
    started = []

    def start(script, *arguments):
        command = [sys.executable, "-c", script, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_listener_belongs_to_its_process_group(listening):
    port = free_port()
    assert not is_stolen(port, os.getpgid(0))  # nothing listens at all
    owner = listening(LISTENER, port)
    assert not is_stolen(port, owner.pid)
    assert is_stolen(port, os.getpgid(0))


def test_a_child_of_the_leader_may_listen(listening):
    port = free_port()
    leader = listening(LISTENER, port, "in a child")
    assert not is_stolen(port, leader.pid)


def test_where_the_system_does_not_tell_the_port_counts_as_ours(listening, monkeypatch):
    port = free_port()
    listening(LISTENER, port)

    def unreadable(_):
        raise PermissionError

    monkeypatch.setattr(ports, "_members", unreadable)
    assert not is_stolen(port, os.getpgid(0))


def test_a_port_stolen_while_the_server_loads_is_found_out(listening, monkeypatch, tmp_path):
    port = free_port()
    listening(THIEF, port)
    monkeypatch.setattr("tfm_bench.backends.sglang.require_free", lambda _: None)  # taken just after the look
    loading = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        pytest.raises(ServerError, match=f"^port {port} was free, but before the server could take it another process"),
        sglang_server(loading, port, tmp_path / "log", start_timeout_s=30, request_timeout_s=5),
    ):
        pass


def test_a_server_that_ends_is_not_healthy_whoever_answers(monkeypatch, tmp_path):
    def healthy_at_the_end(*_):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr("tfm_bench.backends.sglang._healthy", healthy_at_the_end)
    ending = [sys.executable, "-c", "print('address already in use'); raise SystemExit(3)"]
    with (
        pytest.raises(ServerError, match=r"never became healthy; its process ended with exit code 3.*in use$"),
        sglang_server(ending, free_port(), tmp_path / "log", start_timeout_s=30, request_timeout_s=5),
    ):
        pass
