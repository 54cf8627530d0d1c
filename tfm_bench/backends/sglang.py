"""A client that starts an SGLang server, waits until it is healthy, decodes with it and stops it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from pydantic import BaseModel, ValidationError

from tfm_bench.backends.flags import HOST
from tfm_bench.backends.process import log_tail, server_process
from tfm_bench.errors import UserError

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


class ServerError(UserError):
    """A server that does not start, stops or answers what it must not. The message is one line."""


class FinishReason(BaseModel):
    """Why a generation ended: "stop" at a stop id, "length" at max_new_tokens; "abort" is no answer."""

    type: str


class MetaInfo(BaseModel):
    """What we read of SGLang's meta_info. Plain decoding has no spec_* entries."""

    completion_tokens: int
    prompt_tokens: int
    finish_reason: FinishReason
    spec_verify_ct: int | None = None
    spec_correct_drafts_histogram: list[int] | None = None


@dataclass(frozen=True)
class Reply:
    """One generation. Seconds since the request was sent: to the first token, and to the end of the answer."""

    output_ids: list[int]
    meta: MetaInfo
    first_token_s: float
    total_s: float


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
        if reply.is_error:
            raise ServerError(f"/get_server_info: {_reason(reply)}")
        return dict(reply.json())

    def flush(self) -> float:
        """Empty the prefix cache; the seconds that it took. Repeated while the server is still busy."""
        start = time.perf_counter()
        while (reply := self._send("POST", "/flush_cache")).is_error:
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
            return self._streamed(body)
        except httpx2.TimeoutException:
            raise ServerError("the server sent nothing within sglang.request_timeout_s") from None
        except httpx2.HTTPError as error:
            raise ServerError(f"the connection broke in mid-answer ({error}){self.last_words()}") from None

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
            if response.is_error:
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
        return _reply(last, first - start, end - start)

    def _send(self, method: str, path: str) -> httpx2.Response:
        try:
            return self.client.request(method, path)
        except httpx2.TransportError as error:
            raise ServerError(f"{path}: no answer ({error}){self.last_words()}") from None


@contextmanager
def sglang_server(
    command: Sequence[str], port: int, log: Path, *, start_timeout_s: float, request_timeout_s: float
) -> Iterator[SglangServer]:
    """Start `command`, which must listen at `port`, and yield once it is healthy; on leaving nothing of it runs on.

    Raises UserError for a port that is taken and a command that cannot be run, and ServerError for a server that exits
    or is not healthy in time; then the end of its log is shown on stderr.
    """
    _require_free(port)
    start, logged = time.monotonic(), log.stat().st_size if log.exists() else 0
    # trust_env: a proxy that the environment names must not come between us and this machine.
    client = httpx2.Client(base_url=f"http://{HOST}:{port}", timeout=PROBE_TIMEOUT_S, trust_env=False)
    with client, server_process(command, log) as process:
        _wait_until_healthy(client, process, start + start_timeout_s, log, logged)
        client.timeout = request_timeout_s
        yield SglangServer(process, client, log, time.monotonic() - start)


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def _require_free(port: int) -> None:
    """The health of a foreign server would pass for that of ours."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise UserError(f"port: found {port}, where another process listens already; a free one is accepted")


def _wait_until_healthy(
    client: httpx2.Client, process: subprocess.Popen[bytes], deadline: float, log: Path, logged: int
) -> None:
    while True:
        if process.poll() is not None:
            tail = _show_tail(log, logged)
            raise ServerError(f"the server never became healthy; {_ending(process, tail, log)}")
        if _healthy(client, deadline):
            return
        if time.monotonic() > deadline:
            _show_tail(log, logged)
            raise ServerError(f"the server was not healthy within sglang.start_timeout_s; its log is {log}")
        time.sleep(POLL_S)


def _healthy(client: httpx2.Client, deadline: float) -> bool:
    patience = min(PROBE_TIMEOUT_S, max(POLL_S, deadline - time.monotonic()))
    try:
        return client.get("/health", timeout=patience).status_code == httpx2.codes.OK
    except httpx2.TransportError:
        return False


def _show_tail(log: Path, logged: int) -> list[str]:
    tail = log_tail(log, logged)
    print(f"end of {log}:", *tail, sep="\n  ", file=sys.stderr)
    return tail


def _ending(process: subprocess.Popen[bytes], tail: list[str], log: Path) -> str:
    code = process.returncode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"its process ended with {how}, the last line of {log}: {tail[-1].strip() if tail else '(empty)'}"


def _reason(response: httpx2.Response) -> str:
    text = " ".join(response.text.split())
    return f"status {response.status_code}: {text[:300]}"


def _reply(payload: str, first_token_s: float, total_s: float) -> Reply:
    """Reads the last chunk of a stream."""
    try:
        chunk = json.loads(payload)
        if "error" in chunk:
            raise ServerError(f"the server gave up ({str(chunk['error'])[:300]})")
        meta = MetaInfo.model_validate(chunk["meta_info"])
        ids = [int(token) for token in chunk["output_ids"]]
    except (ValueError, TypeError, KeyError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
        raise ServerError(f"the last chunk of an answer is not in SGLang's form ({reason})") from None
    if meta.finish_reason.type == "abort":
        raise ServerError("the server aborted the request")
    if len(ids) != meta.completion_tokens:
        raise ServerError(
            f"found {len(ids)} output_ids for {meta.completion_tokens} completion_tokens; all are expected"
        )
    return Reply(ids, meta, first_token_s, total_s)
