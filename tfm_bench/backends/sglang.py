"""A client that starts an SGLang server, waits until it is healthy, decodes with it and stops it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tfm_bench.backends.answers import Reply, ServerError, read_info, read_reply
from tfm_bench.backends.ports import HOST, is_stolen, require_free
from tfm_bench.backends.process import in_one_line, log_tail, server_process

POLL_S = 0.1
PROBE_TIMEOUT_S = 30.0  # SGLang answers /health by decoding a token, which the first time takes long
FLUSH_TIMEOUT_S = 60.0
# Said in every request: some servers take other defaults from the checkpoint's generation_config.json.
NEUTRAL_SAMPLING = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": False,
}


@dataclass(frozen=True)
class Sampling:
    """How a prompt is decoded."""

    temperature: float
    seed: int
    max_new_tokens: int


@dataclass(frozen=True)
class SglangServer:
    """A healthy server. start_s: seconds from its start until it was healthy."""

    process: subprocess.Popen[bytes]
    client: httpx2.Client
    log: Path
    start_s: float

    def info(self) -> dict[str, Any]:
        """What /get_server_info says."""
        reply = self._send("GET", "/get_server_info")
        if not reply.is_success:
            raise ServerError(f"/get_server_info: {_reason(reply)}")
        return read_info(reply.content)

    def flush(self) -> float:
        """Empty the prefix cache; the seconds that it took. Repeated while the server is still busy."""
        start = time.perf_counter()
        while not (reply := self._send("POST", "/flush_cache")).is_success:
            if time.perf_counter() - start > FLUSH_TIMEOUT_S:
                raise ServerError(f"the cache could not be flushed ({_reason(reply)})")
            time.sleep(POLL_S)
        return time.perf_counter() - start

    def generate(self, ids: Sequence[int], sampling: Sampling) -> Reply:
        """Decode one prompt. Raises ServerError where no complete answer comes."""
        body = {
            "input_ids": list(ids),
            "stream": True,
            "sampling_params": NEUTRAL_SAMPLING
            | {
                "temperature": sampling.temperature,
                "sampling_seed": sampling.seed,
                "max_new_tokens": sampling.max_new_tokens,
            },
        }
        try:
            reply = self._streamed(body)
        except httpx2.TimeoutException:
            raise ServerError("the server sent nothing within sglang.request_timeout_s") from None
        except httpx2.HTTPError as error:
            reason = in_one_line(str(error))
            raise ServerError(f"the connection broke in mid-answer ({reason}){self.last_words()}") from None
        if self.process.poll() is not None:  # then another process may have answered at its port
            raise ServerError(f"the server was gone when its answer came{self.last_words()}")
        return reply

    def last_words(self) -> str:
        """How the process ended, if it did, and the last line of its log."""
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return ""
        return f"; {_ending(self.process, log_tail(self.log), self.log)}"

    def _streamed(self, body: dict[str, Any]) -> Reply:
        start, first, last, done = time.perf_counter(), 0.0, "", False
        with self.client.stream("POST", "/generate", json=body) as response:
            if not response.is_success:
                response.read()
                raise ServerError(f"the server refused a request ({_reason(response)})")
            # Not iter_lines: text may hold U+2028 and its like, at which that would cut a chunk in two.
            for event in httpx2.EventSource(response):
                done = event.data == "[DONE]"
                if done:
                    break
                first = first or time.perf_counter()
                last = event.data  # repeats all chunks before it, so no other is worth the time of parsing
        end = time.perf_counter()
        if not done:
            raise ServerError(f"the answer ended too early{self.last_words()}")
        return read_reply(last, first - start, end - start)

    def _send(self, method: str, path: str) -> httpx2.Response:
        try:
            return self.client.request(method, path)
        except httpx2.HTTPError as error:
            raise ServerError(f"{path}: no answer ({in_one_line(str(error))}){self.last_words()}") from None


@contextmanager
def sglang_server(
    command: Sequence[str], port: int, log: Path, *, start_timeout_s: float, request_timeout_s: float
) -> Iterator[SglangServer]:
    """Start `command`, which must listen at `port`, and yield once it is healthy; on leaving nothing of it runs on.

    Raises UserError for a port that is taken and a command that cannot be run, and ServerError for a server that exits
    or is not healthy in time, then the end of its log is shown on stderr, and where another process takes the port.
    """
    require_free(port)
    start, logged = time.monotonic(), log.stat().st_size if log.exists() else 0
    # trust_env: a proxy that the environment names must not come between us and this machine.
    client = httpx2.Client(base_url=f"http://{HOST}:{port}", timeout=PROBE_TIMEOUT_S, trust_env=False)
    with client, server_process(command, log) as process:
        _wait_until_healthy(client, process, start + start_timeout_s, log, logged)
        client.timeout = request_timeout_s
        yield SglangServer(process, client, log, time.monotonic() - start)


def _wait_until_healthy(
    client: httpx2.Client, process: subprocess.Popen[bytes], deadline: float, log: Path, logged: int
) -> None:
    while True:
        healthy = _healthy(client, deadline)
        if process.poll() is not None:  # asked last: a process that took the port in time answers as well
            tail = _show_tail(log, logged)
            raise ServerError(f"the server never became healthy; {_ending(process, tail, log)}")
        if healthy:
            _require_ours(client, process)
            return
        if time.monotonic() > deadline:
            _show_tail(log, logged)
            raise ServerError(f"the server was not healthy within sglang.start_timeout_s; its log is {log}")
        time.sleep(POLL_S)


def _require_ours(client: httpx2.Client, process: subprocess.Popen[bytes]) -> None:
    port = client.base_url.port
    if port and is_stolen(port, process.pid):
        raise ServerError(f"port {port} was free, but before the server could take it another process did")


def _healthy(client: httpx2.Client, deadline: float) -> bool:
    patience = min(PROBE_TIMEOUT_S, max(POLL_S, deadline - time.monotonic()))
    try:
        return client.get("/health", timeout=patience).status_code == httpx2.codes.OK
    except httpx2.HTTPError:
        return False


def _show_tail(log: Path, logged: int) -> list[str]:
    tail = log_tail(log, logged)
    print(f"end of {log}:", *tail, sep="\n  ", file=sys.stderr)
    return tail


def _ending(process: subprocess.Popen[bytes], tail: list[str], log: Path) -> str:
    code = process.returncode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    last = in_one_line(tail[-1]) if tail else ""
    return f"its process ended with {how}, the last line of {log}: {last or '(empty)'}"


def _reason(response: httpx2.Response) -> str:
    return f"status {response.status_code}: {in_one_line(response.text)}"
