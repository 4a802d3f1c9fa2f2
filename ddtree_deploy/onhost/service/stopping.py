"""Stopping a service for good: drain, ask, and prove that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ..context import Context, StepFailed
from . import downtime, proc
from .base import Footprint, ServiceControl
from .sglang_api import Endpoint, running_requests

_POLL_S = (0.02, 0.05)  # users are without service meanwhile, and a look at known processes is cheap
# After the main process is gone its children get this long before they are asked, too.
_CHILDREN_S = 3.0
_PATIENCE_S = 5.0  # between looks at a manager that still ends the service


def drain(ctx: Context, endpoint: Endpoint, bound_s: float) -> str:
    """Wait until no request runs, at most `bound_s`. Returns what was seen, for people."""
    until = time.monotonic() + bound_s
    while True:
        running = running_requests(endpoint)
        if running is None:
            return "running requests unknown"
        ctx.answered = time.time()
        if not running:
            return "no request was running"
        if time.monotonic() >= until:
            return f"{running} requests still ran after {bound_s:.0f} s"
        ctx.progress(f"draining: {running} requests run")
        ctx.pause(min(1.0, bound_s))


def stop(ctx: Context, control: ServiceControl, *, limit_s: float, kill: bool, undoing: bool = False) -> str:
    """Stop the service, wait until its processes and ports are gone. Idempotent.

    Leftovers are ended by pid only with `kill`; who holds a port and is none of the service's, never. An undo
    leaves such a port to its holder, and names it; without `kill` it waits beyond the limit for a stop that
    the service's manager is at work on. Raises StepFailed naming each process that is left.
    """
    before = control.footprint()
    if ctx.lock is not None:
        ctx.lock.starts(False)
    downtime.begin(ctx)
    control.terminate()
    after = wait_gone(ctx, control, before, limit_s=limit_s, kill=kill, undoing=undoing)
    count = len(before.members)
    return f"{count} process{'' if count == 1 else 'es'} ended, {after}"


def wait_gone(
    ctx: Context,
    control: ServiceControl,
    before: Footprint,
    *,
    limit_s: float,
    kill: bool,
    undoing: bool = False,
) -> str:
    """Returns once nothing of `before`, of the service now, or on its ports is left."""
    began = time.monotonic()
    ports = sorted(before.ports | {control.endpoint.port})
    asked = killed = False
    busy: dict[int, set[int]] = {}
    while True:
        left = set(before.living())
        waited = time.monotonic() - began
        if not left:  # only now the costly looks over all processes
            busy = held_ports(before, control.endpoint.port)
            # Of an adopted service all that was seen is gone: who came to its port since is not the service.
            left = set() if control.stranger([]) else {pid for pid, _ in control.processes().members}
            if not left and not busy:
                text = ", ".join(map(str, ports))
                return f"port {text} is free" if len(ports) == 1 else f"ports {text} are free"
            if not left and undoing and (all(busy.values()) or waited > limit_s):
                ctx.progress(leftovers(control, left, busy, waited, False))
                return "what is left is not the service's"
        if waited > _CHILDREN_S and not asked and before.main not in left:
            asked = True
            _signal(before, left, signal.SIGTERM)
        if waited > limit_s and undoing and not kill and (told := control.stop_under_way()):
            ctx.progress(f"still there after {waited:.0f} s: {told}")
            limit_s = waited + _PATIENCE_S
        elif waited > limit_s:
            if killed or not (kill and left):
                busy = busy or held_ports(before, control.endpoint.port)
                raise StepFailed(leftovers(control, left, busy, waited, killed))
            killed, began = True, time.monotonic()
            limit_s = 10.0
            for pid in sorted(left):
                ctx.progress(f"SIGKILL to process {pid}: {proc.command(pid, 200)}")
                _kill(pid, signal.SIGKILL)
        ctx.pause(proc.pause(waited, *_POLL_S))


def held_ports(before: Footprint, endpoint: int) -> dict[int, set[int]]:
    """Ports of `before` still held, and the endpoint's whoever holds it, with their holders (empty: unseen).

    SGLang's inner ports are ephemeral: another program may be given the number at once, not the socket.
    """
    listening = proc.listening_inodes().items()
    ports = {port for inode, port in listening if port == endpoint or (port, inode) in before.sockets}
    return {port: proc.holders(port) for port in ports}


def leftovers(
    control: ServiceControl, left: set[int], busy: dict[int, set[int]], waited: float, killed: bool
) -> str:
    """One line that names what is still there: `left` of the service, and who holds its ports."""
    others = {pid for holders in busy.values() for pid in holders} - left
    parts = [f"process {pid} ({proc.command(pid, 200)})" for pid in sorted(left)]
    parts += [
        f"process {pid} ({proc.command(pid, 200)}), no process of the service" for pid in sorted(others)
    ]
    parts += [f"port {port} is held" for port, holders in sorted(busy.items()) if not holders]
    ports = ", ".join(str(port) for port in sorted(busy))
    text = f"still there after {waited:.0f} s: {'; '.join(parts)}" + (f" on port {ports}" if ports else "")
    if killed:
        text += "; SIGKILL did not end it"
    elif under_way := control.stop_under_way():
        text += f"; {under_way}: a longer `stop: {{limit}}`, or `stop: {{kill: true}}`"
    else:
        text += "; end it by hand" + (", or allow it with `stop: {kill: true}`" if left else "")
    return control.mask(text)


def _signal(before: Footprint, left: set[int], sig: signal.Signals) -> None:
    for pid, start in before.members:
        if pid in left and proc.alive(pid, start):
            _kill(pid, sig)


def _kill(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sig)
