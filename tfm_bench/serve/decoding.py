"""Decoding in a thread of its own, one request at a time, with the tokens of each round as they come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import anyio

from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.errors import UserError
from tfm_bench.serve.bodies import Job


class _ClientGoneError(Exception):
    """Ends a generation that nobody waits for."""


class EngineError(Exception):
    """The engine failed, by no fault of the request. The message is one line; the cause is what it raised."""


class Decoder:
    """A stack with the method that it decodes by."""

    def __init__(self, stack: Stack, arm: Arm) -> None:
        self.stack, self.arm = stack, arm
        self._turn = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a request is being decoded."""
        return self._turn.locked()

    async def steps(self, job: Job) -> AsyncIterator[list[int]]:
        """The first token, then the tokens of each round. Closing the iterator ends the generation after its round.

        Waits while another request is decoded. Raises UserError as `generate` does, and EngineError for whatever else
        it raises.
        """
        loop, gone = asyncio.get_running_loop(), threading.Event()
        queue: asyncio.Queue[list[int] | None] = asyncio.Queue()

        def hand_over(tokens: list[int]) -> None:
            if gone.is_set():
                raise _ClientGoneError
            loop.call_soon_threadsafe(queue.put_nowait, tokens)

        async with self._turn:
            work = asyncio.create_task(asyncio.to_thread(self._decode, job, hand_over))
            work.add_done_callback(lambda _: queue.put_nowait(None))
            try:
                while (tokens := await queue.get()) is not None:
                    yield tokens
                await work
            except UserError:
                raise
            except Exception as error:
                raise EngineError((str(error).strip() or type(error).__name__).splitlines()[0]) from error
            finally:
                gone.set()
                # The next request must not start while this one still computes.
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([work])
                work.exception()

    def _decode(self, job: Job, hand_over: Callable[[list[int]], None]) -> None:
        generate(
            replace(self.stack, stop_ids=job.stop_ids),
            job.ids,
            self.arm,
            temperature=job.temperature,
            seed=job.seed,
            max_new_tokens=job.max_new_tokens,
            on_tokens=hand_over,
        )
