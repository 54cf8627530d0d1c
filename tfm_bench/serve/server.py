"""`tfm-bench serve`: load a stack and answer requests until the process is stopped."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from tfm_bench.config import METHODS
from tfm_bench.engine import Arm, Stack
from tfm_bench.errors import UserError
from tfm_bench.serve.app import create_app
from tfm_bench.serve.meta import draft_count
from tfm_bench.stack_parts import has_gdn

SHUTDOWN_S = 5


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int


def serve(stack: Path, arm: Arm, address: Address, *, dtype: str, device: str) -> None:
    """device: auto, cpu or cuda.

    Raises UserError for a damaged stack, for one without the Weaver that the method needs, for a GPU that is not there
    or too small and for an address that is taken, the latter before anything is loaded.
    """
    with bound_socket(address) as listener:
        _require_weaver(stack, arm.method)
        loaded = Stack.load(
            stack,
            dtype=dtype,
            gdn_verify="fused" if has_gdn(stack) else None,
            commit="replay",
            with_weaver=arm.method == "tfm",
            device=device,
        )
        run(loaded, arm, listener)


def _require_weaver(stack: Path, method: str) -> None:
    if method == "tfm" and stack.is_dir() and not (stack / "weaver").exists():
        others = ", ".join(other for other in METHODS if other != "tfm")
        raise UserError(f"--method: found tfm, but {stack} has no Weaver; accepted are {others}")


def bound_socket(address: Address) -> socket.socket:
    """Bound, but not listening: clients are refused until there is something to answer them."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # Only where the protocol is named does asyncio set TCP_NODELAY; else small chunks wait 40 ms for acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"--host, --port: found {address.host}:{address.port}, which cannot be bound ({reason})"
        ) from None
    return listener


def run(stack: Stack, arm: Arm, listener: socket.socket) -> None:
    """Answers until SIGINT or SIGTERM; running requests are finished first."""
    host, port = listener.getsockname()[:2]
    budget = draft_count(stack, arm)
    print(f"{stack.directory.name} by {arm.method}, budget {budget}: http://{host}:{port}", flush=True)
    # A client that does not read its stream must not keep the server from ending.
    config = uvicorn.Config(create_app(stack, arm), log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S)
    with suppress(KeyboardInterrupt):  # uvicorn raises it again once it has shut down
        uvicorn.Server(config).run(sockets=[listener])
