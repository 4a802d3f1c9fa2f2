"""Waiting for a server: as long as it makes progress, and not a moment longer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..context import Context, StepFailed
from . import downtime, gpu_memory, proc
from .base import ServiceControl
from .sglang_api import Endpoint, HttpError, generate

_TICK_S = 0.1
_LOOK_S = 1.0  # between looks at all processes
_ATTEMPT_S = 60.0
# Between attempts, growing from when the port is open: a server that warms up for long is not asked twenty
# times a second. While nobody listens an attempt costs nothing, and users wait for the first answer.
_PAUSE_S = (0.05, 0.5)
_GPU_EVERY_S = 5.0
# A server that waits in a loop reads a little all the time; loading reads much.
_READ_STEP = 1 << 20


@dataclass
class Progress:
    """Notices any of: the log grew, a MiB was read, GPU memory moved. Pure but for the samples handed in."""

    since: float
    mark: str = ""
    read: int = 0
    gpu_mib: int = -1
    last: str = "started"

    def sample(self, now: float, mark: str, read: int, gpu_mib: int) -> bool:
        """Take a sample; True when it shows progress since the last one that did."""
        seen = []
        if mark != self.mark:
            seen.append("log")
        if read >= self.read + _READ_STEP or read < self.read:
            seen.append("reading")
        if gpu_mib >= 0 and gpu_mib != self.gpu_mib:
            seen.append(f"GPU memory {gpu_mib} MiB")
        if not seen:
            return False
        self.since, self.mark, self.read, self.gpu_mib = now, mark, read, gpu_mib
        self.last = ", ".join(seen)
        return True

    def stalled(self, now: float, after_s: float) -> bool:
        return now - self.since > after_s


class Prober:
    """Asks for tokens again and again in a thread, so that a server that hangs does not make us blind."""

    def __init__(self, endpoint: Endpoint, prompt: str, max_new_tokens: int = 4) -> None:
        self.endpoint, self.prompt, self.max_new_tokens = endpoint, prompt, max_new_tokens
        self.tokens: tuple[int, ...] = ()
        self.last_error = "not asked yet"
        self.answered = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            try:
                made = generate(self.endpoint, self.prompt, self.max_new_tokens, seconds=_ATTEMPT_S)
            except HttpError as e:
                self.last_error = str(e)
                if e.kind == "refused":
                    began = time.monotonic()
            else:
                if made.tokens:
                    self.tokens = made.tokens
                    self.answered.set()
                    return
                self.last_error = "an answer without tokens"
            self._stop.wait(proc.pause(time.monotonic() - began, *_PAUSE_S))

    def stop(self) -> None:
        self._stop.set()


def wait_ready(ctx: Context, control: ServiceControl, *, stalled_after_s: float, limit_s: float) -> str:
    """Wait until the server generates tokens for a prompt of ours. Returns how, raises StepFailed.

    Ends at once when the server dies or restarts, after `stalled_after_s` without progress, and after
    `limit_s`.
    """
    began = time.monotonic()
    progress = Progress(began)
    gpu = GpuMemory()
    prober = Prober(control.endpoint, f"ddtree-deploy {ctx.plan.run}: the capital of France is")
    shown, look = "", 0.0
    try:
        while not prober.answered.wait(_TICK_S):
            ctx.check()
            now = time.monotonic()
            if now < look and control.main_lives():
                continue
            with control.one_look():
                runs, how = control.alive()
                if not runs:
                    raise StepFailed(with_log(control, f"the service did not stay up: {how}"))
                if now >= look:
                    look = now + _LOOK_S
                    pids = [pid for pid, _ in control.processes().members]
                    progress.sample(now, control.log_mark(), proc.bytes_read(pids), gpu.used(now))
                    line = loading(control.log_tail(5), progress.gpu_mib)
                    if line and line != shown:
                        shown = line
                        ctx.progress(line, elapsed=round(now - began, 1))
            if progress.stalled(now, stalled_after_s):
                text = f"no progress for {stalled_after_s:.0f} s (log, bytes read, GPU memory)"
                raise StepFailed(with_log(control, f"{text}; {prober.last_error}"))
            if now - began > limit_s:
                raise StepFailed(with_log(control, f"not serving after {limit_s:.0f} s; {prober.last_error}"))
    finally:
        prober.stop()
    downtime.over(ctx)
    check_listener(control)
    return f"generates after {time.monotonic() - began:.1f} s"


def loading(lines: list[str], gpu_mib: int) -> str:
    """The newest log line that says something, and GPU memory (MiB; under zero: no GPU), for people."""
    told = [line for line in lines if not line.lstrip().startswith("warnings.warn(")]
    line = told[-1] if told else ""
    return f"{line} (GPU memory {gpu_mib} MiB)".lstrip() if gpu_mib >= 0 else line


def check_listener(control: ServiceControl) -> None:
    """The one that answers is the one we started. Raises StepFailed when it is somebody else."""
    holders = proc.holders(control.endpoint.port)
    members = {pid for pid, _ in control.processes().members}
    strangers = holders - members
    if holders and strangers == holders:
        pid = min(strangers)
        raise StepFailed(
            control.mask(
                f"port {control.endpoint.port} is answered by process {pid} ({proc.command(pid)}), "
                "which does not belong to the service"
            )
        )


def with_log(control: ServiceControl, text: str) -> str:
    """`text` and the last lines of the service's log."""
    lines = control.log_tail()
    return text + (f"; last log lines: {' | '.join(lines)}" if lines else "; the log is empty")


class GpuMemory:
    """Memory in use over all GPUs, in MiB, asked every few seconds; -1 where there is no nvidia-smi."""

    def __init__(self, ask: Callable[[], int] = gpu_memory.used) -> None:
        self._ask = ask
        self._at, self._value = float("-inf"), -1

    def used(self, now: float) -> int:
        if now - self._at >= _GPU_EVERY_S:
            self._at, self._value = now, self._ask()
        return self._value
