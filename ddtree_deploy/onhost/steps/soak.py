"""Many requests: none hangs, none fails, no process of the service dies or is replaced, memory stays.

After a hard restart a server may be healthy, and hang after about a hundred requests.
"""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ..context import Context, StepFailed
from ..judge import verdict
from ..measure import memory
from ..service import serving
from ..service.base import ServiceControl
from ..service.ready import GpuMemory, with_log
from ..service.sglang_api import Endpoint, HttpError, generate


def do(ctx: Context) -> str:
    control = serving.require_serving(ctx)
    requests, concurrency = int(ctx.option("requests", 200)), int(ctx.option("concurrency", 4))
    asked = int(ctx.option("max_new_tokens", 16))
    hang_s = serving.hang_s(ctx, asked)
    before = control.processes()
    began = time.monotonic()
    stop = threading.Event()
    pool = ThreadPoolExecutor(concurrency)
    watch = _Watch(ctx, control, requests)
    try:
        todo = {
            pool.submit(_one, control.endpoint, _prompt(ctx, n), asked, hang_s, stop): n
            for n in range(1, requests + 1)
        }
        watch.over(todo)
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    _same_processes(ctx, control, before.members)
    seconds = time.monotonic() - began
    ctx.result(
        requests=requests,
        concurrency=concurrency,
        seconds=round(seconds, 1),
        memory_mib=[round(v, 1) for v in watch.resident],
        gpu_mib=watch.gpu,
    )
    allowed = float(ctx.option("max_memory_growth", 0.1))
    grown = memory.fault("memory of the service", watch.resident, allowed)
    grown = grown or memory.fault("GPU memory", watch.gpu, allowed)
    if grown:
        raise StepFailed(f"after {requests} requests, {grown}")
    found = memory.growth(watch.resident)
    steady = f"memory {found[0]:.0f} to {found[1]:.0f} MiB" if found else "too short to judge memory"
    return f"{requests} requests, none hung, none failed, every process of the service still there; {steady}"


def _prompt(ctx: Context, number: int) -> str:
    return f"ddtree-deploy {ctx.plan.run} soak {number} {secrets.token_hex(4)}: tell a story."


def _one(endpoint: Endpoint, prompt: str, asked: int, hang_s: float, stop: threading.Event) -> str:
    if stop.is_set():
        return "not asked"
    try:
        made = generate(endpoint, prompt, asked, seconds=hang_s)
    except HttpError as e:
        return f"it hangs: {e}" if e.kind == "timeout" else str(e)
    return verdict.answer(made.tokens, made.completion_tokens, made.finish, asked, exact=True)


class _Watch:
    """Waits for the requests, sampling memory now and then; the first fault ends it."""

    def __init__(self, ctx: Context, control: ServiceControl, requests: int) -> None:
        self.ctx, self.control, self.requests = ctx, control, requests
        self.resident: list[float] = []
        self.gpu: list[int] = []
        self._gpu = GpuMemory()
        self._every = max(1, requests // 40)
        self._next = 0

    def over(self, todo: dict[Future[str], int]) -> None:
        """Until all are done. Raises StepFailed."""
        left = set(todo)
        while left:
            self.ctx.check()
            ended, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in ended:
                fault = future.result()
                if fault:
                    text = f"request {todo[future]} of {self.requests}: {fault}"
                    runs, how = serving.settled(self.ctx, self.control)
                    raise StepFailed(
                        with_log(self.control, text if runs else f"{text}; the service is down: {how}")
                    )
            if ended:
                self.ctx.answered = time.time()
                done = self.requests - len(left)
                self.ctx.progress(f"{done} of {self.requests} requests", done=done, total=self.requests)
                self._sample(done)

    def _sample(self, done: int) -> None:
        if done < self._next:
            return
        self._next = done + self._every
        self.resident.append(memory.used(pid for pid, _ in self.control.processes().members))
        now = self._gpu.used(time.monotonic())
        if now >= 0:
            self.gpu.append(now)


def _same_processes(ctx: Context, control: ServiceControl, before: frozenset[tuple[int, int]]) -> None:
    """A rank that died, or was replaced, while rank 0 stays up is a broken service."""
    runs, how = serving.lives(ctx, control)
    if not runs:
        raise StepFailed(with_log(control, f"the service is down after the soak: {how}"))
    now = control.processes().members
    gone = sorted(pid for pid, start in before if (pid, start) not in now)
    if gone:
        raise StepFailed(
            with_log(
                control, f"process{'es' if len(gone) > 1 else ''} {', '.join(map(str, gone))} ended meanwhile"
            )
        )
