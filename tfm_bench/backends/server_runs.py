"""One arm of a server cell: start its server, warm it up, decode every prompt, and go on after a crash."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tfm_bench.backends.answers import Reply, ServerError
from tfm_bench.backends.detection import Installation, why_unsupported
from tfm_bench.backends.flags import AR, ServerArm, contradiction, launch_command
from tfm_bench.backends.ports import free_port
from tfm_bench.backends.request_log import LoggedRequest, RequestLog, ServerRequest
from tfm_bench.backends.settings import ServerCellSettings
from tfm_bench.backends.sglang import Sampling, SglangServer, sglang_server
from tfm_bench.measure.gpu_state import GpuState, read_gpu, read_gpu_again
from tfm_bench.measure.provenance import CellProvenance, now
from tfm_bench.prompts.datasets import Prompt

WARMUP_TOKENS = 24
RESTARTS = 2  # of the server of one arm; one that keeps crashing would take the GPU for days


@dataclass(frozen=True)
class Run:
    """One server. control: the second one of plain decoding, whose distance from the first is noise."""

    arm: ServerArm
    control: bool = False

    def place(self, prompt: int) -> tuple[str, int, bool, int]:
        """ServerRequest.place of a prompt."""
        return self.arm.method, self.arm.budget, self.control, prompt


@dataclass(frozen=True)
class ServerCell:
    """What stays the same from run to run."""

    settings: ServerCellSettings
    installation: Installation
    prompts: list[Prompt]
    prompt_ids: list[list[int]]
    prompts_sha256: str
    checkpoint_sha256: str
    logs: Path
    origin: dict[str, Any]

    @property
    def label(self) -> str:
        """For lines on the terminal."""
        settings = self.settings
        return f"{settings.split} {settings.dataset} T={settings.temperature:g} repeat {settings.repeat}"


@dataclass(frozen=True)
class _Warm:
    """A server that is ready to be timed."""

    server: SglangServer
    provenance: CellProvenance


def measure_run(cell: ServerCell, run: Run, log: RequestLog) -> None:
    """Add a request per prompt that `log` lacks. What fails is logged with its reason, but raised for plain decoding.

    An arm that the installation lacks starts no server. A request that fails costs a restart: what a server does after
    an error is no measurement.
    """
    if why_unsupported(cell.installation, cell.settings.stack, run.arm):
        return
    for attempt in range(RESTARTS + 1):
        todo = [index for index in range(len(cell.prompts)) if run.place(index) not in log.done]
        if not todo:
            return
        answering = False
        try:
            with _warm_server(cell, run) as warm:
                answering = True
                for index in todo:
                    log.append(_measured(cell, run, index, warm))
        except ServerError as error:
            if run == Run(AR):
                raise ServerError(f"{cell.label}: {run.arm.slug}: {error}") from None
            unanswered = [index for index in todo if run.place(index) not in log.done]
            # The prompt in flight is lost; where a restart is of no use, so are all that follow.
            for index in unanswered[:1] if answering and attempt < RESTARTS else unanswered:
                log.append(_logged(cell, run, index, status="failed", reason=str(error)))


def unmeasured(cell: ServerCell, run: Run, index: int) -> LoggedRequest:
    """The entry of an arm that the installation lacks."""
    reason = why_unsupported(cell.installation, cell.settings.stack, run.arm)
    return _logged(cell, run, index, status="unsupported", reason=reason)


@contextmanager
def _warm_server(cell: ServerCell, run: Run) -> Iterator[_Warm]:
    settings, port = cell.settings, free_port()
    command = launch_command(settings, run.arm, port)
    log = cell.logs / f"{run.arm.slug}{'-control' if run.control else ''}.log"
    limits = {
        "start_timeout_s": settings.sglang.start_timeout_s,
        "request_timeout_s": settings.sglang.request_timeout_s,
    }
    with sglang_server(command, port, log, **limits) as server:
        wrong = contradiction(server.info(), settings.stack, run.arm)
        if wrong:
            raise ServerError(f"the server is not the one that was asked for ({wrong})")
        first, second = (_warm_up(cell, server) for _ in range(2))
        times = {"load_s": server.start_s, "warmup_s": first + second, "jit_s": max(0.0, first - second)}
        print(f"{cell.label}: {run.arm.slug} healthy after {server.start_s:.0f} s", file=sys.stderr)
        yield _Warm(server, _provenance(cell, run, command=command, **times, gpu=read_gpu(_device())))


def _warm_up(cell: ServerCell, server: SglangServer) -> float:
    """Seconds of a short answer to the first prompt."""
    settings, start = cell.settings, time.monotonic()
    limit = min(WARMUP_TOKENS, settings.max_new_tokens)
    server.generate(cell.prompt_ids[0], Sampling(settings.temperature, settings.seed, limit))
    return time.monotonic() - start


def _measured(cell: ServerCell, run: Run, index: int, warm: _Warm) -> LoggedRequest:
    settings = cell.settings
    sampling = Sampling(settings.temperature, settings.seed + index, settings.max_new_tokens)
    flush_s = warm.server.flush()
    reply = warm.server.generate(cell.prompt_ids[index], sampling)
    numbers = {
        "completion_tokens": reply.meta.completion_tokens,
        "verify_steps": _verify_steps(run.arm, reply),
        "drafts_histogram": reply.meta.spec_correct_drafts_histogram,
        "finish_reason": reply.meta.finish_reason.type,
        "flush_s": flush_s,
        "first_token_s": reply.first_token_s,
        "total_s": reply.total_s,
    }
    own = {
        "seed": sampling.seed,
        "finished_at": now(),
        "gpu": read_gpu_again(warm.provenance.gpu, _device()),
    }
    request = _request(cell, run, index, status="ok", reason=None, **numbers)
    return LoggedRequest(
        request=request, output_ids=reply.output_ids, provenance=warm.provenance.model_copy(update=own)
    )


def _verify_steps(arm: ServerArm, reply: Reply) -> int:
    """Raises ServerError where the count is not that of the arm: the server drafted when it should not, or did not."""
    steps, later = reply.meta.spec_verify_ct or 0, reply.meta.completion_tokens - 1
    if arm.algorithm is None and steps:
        raise ServerError(f"plain decoding was asked for, but spec_verify_ct is {steps}")
    if arm.algorithm and not steps and later:
        raise ServerError(f"{arm.algorithm} was asked for, but spec_verify_ct is missing: the server decoded plainly")
    if steps > later:
        raise ServerError(f"spec_verify_ct is {steps} for {later} tokens after the first; every step emits one")
    return steps


def _logged(cell: ServerCell, run: Run, index: int, *, status: str, reason: str | None) -> LoggedRequest:
    """An entry without numbers."""
    command = launch_command(cell.settings, run.arm, 0)
    provenance = _provenance(cell, run, command=command, load_s=0.0, warmup_s=0.0, jit_s=0.0, gpu=None)
    own = {"seed": cell.settings.seed + index}
    request = _request(cell, run, index, status=status, reason=reason)
    return LoggedRequest(request=request, output_ids=[], provenance=provenance.model_copy(update=own))


def _request(cell: ServerCell, run: Run, index: int, **values: Any) -> ServerRequest:
    settings, arm = cell.settings, run.arm
    return ServerRequest(
        stack=settings.stack.name,
        **settings.model_dump(include={"dataset", "split", "temperature", "repeat"}),
        prompt=index,
        prompt_id=cell.prompts[index].id,
        method=arm.method,
        budget=arm.budget,
        expansion_width=arm.expansion_width,
        control=run.control,
        **values,
    )


def _provenance(
    cell: ServerCell,
    run: Run,
    *,
    command: list[str],
    load_s: float,
    warmup_s: float,
    jit_s: float,
    gpu: GpuState | None,
) -> CellProvenance:
    flags = [*cell.settings.sglang.flags.common, *getattr(cell.settings.sglang.flags, run.arm.method)]
    attention = [" ".join(flags[i : i + 2]) for i, flag in enumerate(flags) if "attention-backend" in flag]
    kernel = [flags[i + 1] for i, flag in enumerate(flags[:-1]) if flag == "--speculative-gdn-verify-kernel"]
    return CellProvenance(
        **cell.origin,
        launch_command=command,
        attention_path=f"sglang:{' '.join(attention) or 'default'}",
        gdn_path=f"sglang:{kernel[0] if kernel else 'default'}",
        seed=cell.settings.seed,
        finished_at=now(),
        foreign_load=None,
        load_s=load_s,
        warmup_s=warmup_s,
        jit_s=jit_s,
        gpu=gpu,
    )


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
