"""Many requests in a row: none hangs, none fails, no process of the service dies or is replaced meanwhile.

After a hard restart a server may be healthy, and hang after about a hundred requests.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from .. import serving, verdict
from ..context import Context, StepFailed
from ..http import Endpoint, HttpError, generate
from ..service import ServiceControl
from ..service.ready import with_log


def do(ctx: Context) -> str:
    control = serving.control_of(ctx)
    serving.require_serving(ctx, control)
    requests, concurrency = int(ctx.option("requests", 200)), int(ctx.option("concurrency", 4))
    asked, hang_s = int(ctx.option("max_new_tokens", 16)), float(ctx.option("hang_after_s", 60))
    before = control.footprint()
    began = time.monotonic()
    stop = threading.Event()
    pool = ThreadPoolExecutor(concurrency)
    try:
        todo = {
            pool.submit(_one, control.endpoint, _prompt(ctx, n), asked, hang_s, stop): n
            for n in range(1, requests + 1)
        }
        done = _watch(ctx, control, todo, requests)
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    _same_processes(control, before.members)
    seconds = time.monotonic() - began
    ctx.result(requests=done, concurrency=concurrency, seconds=round(seconds, 1))
    return f"{done} requests, none hung, none failed, every process of the service still there"


def _prompt(ctx: Context, number: int) -> str:
    return f"ddtree-deploy {ctx.plan.run} soak {number}: tell a story."


def _one(endpoint: Endpoint, prompt: str, asked: int, hang_s: float, stop: threading.Event) -> str:
    if stop.is_set():
        return "not asked"
    try:
        made = generate(endpoint, prompt, asked, seconds=hang_s)
    except HttpError as e:
        return str(e)
    return verdict.answer(made.tokens, made.completion_tokens, made.finish, asked, exact=True)


def _watch(ctx: Context, control: ServiceControl, todo: dict[Future[str], int], requests: int) -> int:
    left = set(todo)
    while left:
        ctx.check()
        ended, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
        for future in ended:
            fault = future.result()
            if fault:
                text = f"request {todo[future]} of {requests}: {fault}"
                runs, how = _settled(ctx, control)
                raise StepFailed(with_log(control, text if runs else f"{text}; the service is down: {how}"))
        if ended:
            done = requests - len(left)
            ctx.progress(f"{done} of {requests} requests", done=done, total=requests)
    return requests


def _settled(ctx: Context, control: ServiceControl) -> tuple[bool, str]:
    """Whether it lives; a process closes its connections a moment before it is gone."""
    for _ in range(10):
        runs, how = control.alive()
        if not runs:
            break
        ctx.pause(0.2)
    return runs, how


def _same_processes(control: ServiceControl, before: frozenset[tuple[int, int]]) -> None:
    """A rank that died while rank 0 stays up is a broken service."""
    runs, how = control.alive()
    if not runs:
        raise StepFailed(with_log(control, f"the service is down after the soak: {how}"))
    now = {pid for pid, _ in control.footprint().members}
    gone = sorted(pid for pid, _ in before if pid not in now)
    if gone:
        raise StepFailed(
            with_log(
                control, f"process{'es' if len(gone) > 1 else ''} {', '.join(map(str, gone))} ended meanwhile"
            )
        )
