"""Programs with a deadline: own sessions, both streams drained, nothing left when they are ended."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..context import Context, StepFailed
from ..wire.masking import escape, mask_argv, mask_text

TAIL = 64 * 1024
LOG_LIMIT = 64 * 1024 * 1024
SHOW_EVERY_S = 0.2  # a progress line at most this often; the log has them all
# In the environment of what we start, so that a recovery finds what a dead runner left.
MARK = "DDTREE_DEPLOY_RUN"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BREAK = re.compile(rb"[\r\n]+")  # progress bars end their lines with \r


def account(name: str) -> pwd.struct_passwd:
    """By name or number. Raises KeyError."""
    return pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)


def minimal_env(user: str = "") -> dict[str, str]:
    """HOME, USER, LOGNAME, PATH, LANG of `user` ("" = the user we are)."""
    record = account(user) if user else pwd.getpwuid(os.geteuid())
    name, home = record.pw_name, record.pw_dir
    return {"HOME": home, "USER": name, "LOGNAME": name, "PATH": PATH, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def other_user(user: str) -> str:
    """`user`, when we are root and it is somebody else; else ""."""
    return user if user and os.geteuid() == 0 and user != pwd.getpwuid(0).pw_name else ""


@dataclass(frozen=True)
class Finished:
    """A process that ended. `output` is the tail (at most 64 KiB) of both streams together."""

    rc: int
    seconds: float
    output: str
    stdout: str  # the tail of standard output alone


def run_process(
    ctx: Context,
    argv: list[str],
    *,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float | None = None,
    log_name: str = "",
    user: str = "",
    on_line: Callable[[str], None] | None = None,
    look: Callable[[], None] | None = None,
) -> Finished:
    """Run a program in its own process group, log both streams, kill the whole group at the deadline.

    `env` is the whole environment (None: a minimal one). `timeout`: seconds, beside the step's own. `user`:
    run as this user when we are root. Lines go to `on_line` (default: shown as progress). `look` is called
    all the while; what it raises ends the program.

    Raises StepFailed when it cannot be started or ran out of time, Interrupt if asked.
    """
    user = other_user(user)
    mark = f"{ctx.plan.run}/{time.monotonic_ns()}"
    whole_env = {**(minimal_env(user) if env is None else env), MARK: mark}
    shown = mask_text(" ".join(mask_argv(argv)), ctx.journal.secrets)
    log = ctx.logs_dir / f"{log_name or ctx.step.name}.log"
    log.parent.mkdir(mode=0o700, exist_ok=True)
    start = time.monotonic()
    end = min(start + timeout, ctx.deadline) if timeout is not None else ctx.deadline
    try:
        process = _popen(argv, whole_env, cwd, user)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StepFailed(f"cannot run {argv[0]}: {reason}") from None
    with log.open("ab") as sink, process:
        sink.write(f"$ {shown}\n".encode())
        pump = _Pump(process, sink, ctx.journal.secrets, on_line or _shower(ctx))
        try:
            while not pump.step(0.05):
                ctx.check()
                if look is not None:
                    look()
                if time.monotonic() >= end:
                    raise StepFailed(
                        f"{shown[:200]} took longer than {end - start:.0f} s; last line: {pump.last}"
                    )
        except BaseException:
            _end(process, mark)
            pump.finish()
            raise
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # children that it left in its group
        rc = process.wait()
        pump.finish()
    seconds = round(time.monotonic() - start, 3)
    tail = pump.tail.decode(errors="replace")
    with contextlib.suppress(OSError):
        ctx.journal.write(
            "output", step=ctx.step.name, argv=shown[:2000], rc=rc, seconds=seconds, tail=tail[-2000:]
        )
    return Finished(rc, seconds, tail, pump.stdout.decode(errors="replace"))


def _popen(
    argv: list[str], env: dict[str, str], cwd: str | Path | None, user: str
) -> subprocess.Popen[bytes]:
    as_user: dict[str, object] = {}
    if user:
        record = account(user)
        groups = os.getgrouplist(record.pw_name, record.pw_gid)
        as_user = {"user": record.pw_uid, "group": record.pw_gid, "extra_groups": groups}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        argv,
        env=env,
        cwd=cwd or "/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        umask=0o022,
        **as_user,
    )


def _shower(ctx: Context) -> Callable[[str], None]:
    last = 0.0

    def show(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= SHOW_EVERY_S:
            last = time.monotonic()
            ctx.progress(line)

    return show


class _Pump:
    """Reads both pipes until the program has ended and they are empty."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sink: IO[bytes],
        secrets: list[str],
        show: Callable[[str], None],
    ) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process, self._sink, self._show = process, sink, show
        self._secrets = [s for s in secrets if s]
        self._rest = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
        self._stdout_fd = process.stdout.fileno()
        self.tail, self.stdout, self._logged = b"", b"", 0
        self._ended = 0.0
        self.last = ""
        self._selector = selectors.DefaultSelector()
        for fd in self._rest:
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)

    def step(self, wait: float) -> bool:
        """Read what is there; true when all is over."""
        if self._selector.get_map():
            for key, _ in self._selector.select(wait):
                self._read(key.fd)
        else:
            time.sleep(wait / 5)
        if not self._ended and _has_ended(self._process.pid):
            self._ended = time.monotonic()
        # A child that keeps the pipes open after its parent's end is not waited for.
        return bool(self._ended) and (not self._selector.get_map() or time.monotonic() - self._ended > 1.0)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(fd)
        *lines, rest = _BREAK.split(self._rest[fd] + data)
        if not data or len(rest) > TAIL:
            lines, rest = [*lines, rest], b""
        self._rest[fd] = rest
        for raw in lines:
            if raw:
                self._line(fd, raw)

    def _line(self, fd: int, raw: bytes) -> None:
        text = mask_text(raw.decode(errors="replace"), self._secrets)
        line = text.encode() + b"\n"
        if self._logged < LOG_LIMIT:
            try:
                self._sink.write(line)
                self._logged += len(line)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self._logged = LOG_LIMIT  # a full disk costs the log, not the verdict
        self.tail = (self.tail + line)[-TAIL:]
        if fd == self._stdout_fd:
            self.stdout = (self.stdout + line)[-TAIL:]
        self.last = escape(text)[:300]
        self._show(self.last)

    def finish(self) -> None:
        """Take what is left in the pipes without waiting for more."""
        with contextlib.suppress(OSError):
            while self._selector.get_map() and (ready := self._selector.select(0)):
                for key, _ in ready:
                    self._read(key.fd)
        for fd, rest in self._rest.items():
            if rest:
                self._rest[fd] = b""
                self._line(fd, rest)
        self._selector.close()
        with contextlib.suppress(OSError):
            self._sink.flush()


def _has_ended(pid: int) -> bool:
    """Ended, but not yet reaped: so that its number still names its group."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """TERM, two seconds, KILL for the whole group; then whatever of it moved to a session of its own."""
    for sig, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sig)
        end = time.monotonic() + patience
        while not _has_ended(process.pid) and time.monotonic() < end:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    kill_marked(mark)


def marked(entry: str) -> list[int]:
    """Processes, other than this one, with an entry that begins so (`NAME=`, `NAME=VALUE\\0`) in their
    environment."""
    wanted = b"\0" + entry.encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{name}/environ").read_bytes()
                if wanted in b"\0" + environ:
                    found.append(int(name))
    return found


def kill_marked(mark: str) -> list[int]:
    """KILL what a step of this run (`RUN/`), or one program of it (`RUN/N`), left behind; the pids."""
    pids = marked(f"{MARK}={mark}")
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return pids
