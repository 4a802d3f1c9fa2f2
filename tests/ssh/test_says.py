"""What breaks on the controller says nothing of the host: its output, its terminal, the encoding, the disk
under its record are broken at each step of a run, and the exit code is what the host's own journal says."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddtree_deploy.sandbox.sshd import SshServer
from tests.root import need_root
from tests.ssh.box import PATIENCE, Box, differs, with_run_step
from tests.ssh.one_flavour import server, serving

__all__ = ["server", "serving"]

pytestmark = [pytest.mark.ssh, pytest.mark.steps]

STEPS = ("local", "lock", "preflight", "backup", "stage", "compile", "smoke", "install", "unlock")
HELD_AFTER = STEPS[1:-1]  # where a step of our own can stand, which waits
QUOTES = "it\u2019s \u201cready\u201d \u2714"


@pytest.fixture
def box(server: SshServer, tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path, server)
    yield made
    (tmp_path / "go-on").touch()  # no step waits longer than its test


def journals(box: Box) -> list[Path]:
    """Of the runs on the host, oldest first."""
    return sorted(box.state.glob("sites/*/runs/*/journal.jsonl"), key=lambda path: path.parent.name)


def host_said(box: Box) -> int:
    """The exit code in the host's own journal of its newest run; 130 where none has begun."""
    for journal in reversed(journals(box)):
        events = map(json.loads, journal.read_text().splitlines())
        return int([event for event in events if event["e"] == "end"][-1]["exit"])
    return 130


def saying(box: Box, word: str) -> Callable[[], bool]:
    """Whether the host has journalled a word."""
    return lambda: any(word in journal.read_text() for journal in journals(box))


@dataclass
class Watched:
    """A command under way whose output is read here, and can be taken from it."""

    box: Box
    process: subprocess.Popen[bytes]
    out: int  # we read from it
    err: int  # -1: the same
    seen: bytes = b""

    def until(self, condition: Callable[[], bool]) -> None:
        """Read what comes meanwhile: a full terminal would make the command wait."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, self.seen
            if select.select([self.out], [], [], 0.05)[0]:
                self.seen += self._read()

    def _read(self) -> bytes:
        try:
            return os.read(self.out, 65536)
        except OSError:  # how a terminal says that the other side has gone
            return b""

    def close(self) -> None:
        """Take both outputs away."""
        for fd in {self.out, self.err} - {-1}:
            os.close(fd)
        self.out = self.err = -1

    def finish(self) -> int:
        """Read all that comes; the exit code."""
        while self.out >= 0 and (data := self._read()):
            self.seen += data
        return self.process.wait(PATIENCE)

    @property
    def stderr(self) -> str:
        return os.read(self.err, 65536).decode()


def start(box: Box, *words: str, terminal: int = 0, **env: str) -> Watched:
    """Start the command line on pipes, or on a terminal of so many columns."""
    argv = [sys.executable, "-m", "ddtree_deploy", *words]
    how: dict[str, Any] = {
        "cwd": box.work,
        "env": {**os.environ, "HOME": str(box.root), "TERM": "xterm", **env},
    }
    how["env"].pop("COLUMNS", None)
    if terminal:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, terminal, 0, 0))
        # With a terminal of its own that can be closed on it, also where our own parent ignores that signal.
        argv = ["env", "--default-signal=HUP", "setsid", "--ctty", "--wait", *argv]
        process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, **how)
        os.close(theirs)
        return Watched(box, process, ours, -1)
    (out, out_there), (err, err_there) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=out_there, stderr=err_there, start_new_session=True, **how
    )
    os.close(out_there)
    os.close(err_there)
    return Watched(box, process, out, err)


# ---- what breaks -----------------------------------------------------------------------------------------


def record(box: Box) -> Path:
    (folder,) = (box.work / ".ddtree-deploy" / "runs").iterdir()
    return folder


def nobody_reads(run: Watched) -> None:
    run.close()


def no_file_may_grow(run: Watched) -> None:
    """As a quota does: writing fails with EFBIG, from the next byte on."""
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def record_gone(run: Watched) -> None:
    shutil.rmtree(run.box.work / ".ddtree-deploy")


def disk_full(run: Watched) -> None:
    with contextlib.suppress(OSError), (run.box.work / ".ddtree-deploy" / "fill").open("wb", 0) as fill:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    fill.write(b"x" * size)


def read_only(run: Watched) -> None:
    folder = str(record(run.box))
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)


@dataclass(frozen=True)
class Break:
    strike: Callable[[Watched], None]
    says: str = ""  # on stderr, at the end
    terminal: int = 0
    root: bool = False


BREAKS = {
    "outputs closed": Break(nobody_reads),
    "terminal closed": Break(nobody_reads, terminal=80),
    "file size": Break(no_file_may_grow, "File too large"),
    "record gone": Break(record_gone, "No such file or directory"),
    "disk full": Break(disk_full, "No space left on device", root=True),
    "read-only": Break(read_only, "Read-only file system", root=True),
}
CELLS = [
    (name, step)
    for name, how in BREAKS.items()
    for step in (STEPS if how.strike is nobody_reads else ("install",) if name == "read-only" else HELD_AFTER)
]


@pytest.fixture
def mounted(box: Box) -> Iterator[Callable[[], None]]:
    """Puts the record on a small disk of its own; it and what was mounted in it are gone after the test."""
    folder = box.work / ".ddtree-deploy"

    def mount() -> None:
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=True)

    yield mount
    here = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    for place in reversed(here):
        subprocess.run(["umount", "-l", place], check=True)


def able_to_mount(folder: Path) -> Callable[[], bool]:
    def able() -> bool:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=False, capture_output=True
        )
        if made.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)
        return made.returncode == 0

    return able


@pytest.mark.parametrize(("broken", "step"), CELLS)
def test_case_35_the_exit_code_is_the_host_s_whatever_breaks_here_at_whatever_step(
    box: Box, mounted: Callable[[], None], broken: str, step: str
) -> None:
    how, before = BREAKS[broken], box.snapshot()
    if how.root:
        need_root("a disk of its own needs root", able_to_mount(box.root))
        mounted()
    fails = step in STEPS[1:-1:2]  # in turns a run that is undone, and one that is not
    if fails:
        insert(box, -1, "no", ["/bin/false"])
    flag = with_run_step(box, step) if step in HELD_AFTER else None
    json_lines = STEPS.index(step) % 3 == 0
    run = start(box, "rollout", "box", "--yes", *["--json"] * json_lines, terminal=how.terminal)
    if flag is not None:
        run.until(saying(box, "waiting"))
    else:
        run.until(lambda: step.encode() in run.seen)
    how.strike(run)
    if flag is not None:
        flag.touch()
    code = run.finish()
    assert code == host_said(box), run.seen
    if journals(box):
        assert code == (1 if fails else 0), run.seen
        assert (differs(box, before) == []) == fails
    if how.says:
        (line,) = [line for line in run.stderr.splitlines() if "here is incomplete" in line]
        assert how.says in line and line.endswith("next: ddtree-deploy attach box")


def insert(box: Box, at: int, name: str, command: list[str], action: str = "rollout") -> None:
    """Put a step of our own into a playbook."""
    file = box.work / "playbooks" / f"{action}.yaml"
    playbook = yaml.safe_load(file.read_text())
    playbook["steps"].insert(at, {"run": {"name": name, "command": command, "timeout": "1m"}})
    file.write_text(yaml.safe_dump(playbook, sort_keys=False))


@pytest.mark.parametrize(
    ("encoding", "fails"), [("ascii", False), ("ascii:strict", True), ("latin-1", False), ("C", True)]
)
@pytest.mark.parametrize("shown", ["plain", "--json", "40 columns", "100 columns"])
def test_case_35_what_steps_say_in_other_letters_is_escaped_at_every_step(
    box: Box, shown: str, encoding: str, fails: bool
) -> None:
    steps = len(yaml.safe_load((box.work / "playbooks" / "rollout.yaml").read_text())["steps"])
    for at in range(steps - 1, 1, -1):  # all but local and lock, which come first
        insert(box, at, f"say{at}", ["/bin/sh", "-c", f"echo '{QUOTES}'"])
    if fails:
        insert(box, -1, "no", ["/bin/sh", "-c", f"echo '{QUOTES}'; exit 1"])
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    env = locale if encoding == "C" else {"PYTHONIOENCODING": encoding}
    columns = int(shown.split(maxsplit=1)[0]) if "columns" in shown else 0
    run = start(box, "rollout", "box", "--yes", *["--json"] * (shown == "--json"), terminal=columns, **env)
    assert run.finish() == host_said(box) == fails, run.seen
    assert run.seen.isascii()
    if shown == "plain":
        assert run.seen.count(b"it\\u2019s") >= 5
    if columns:
        drawn = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", run.seen)
        assert (b"x no" if fails else b"+ unlock") in drawn


# ---- other commands, fleets, and what is broken from the first ------------------------------------------


def test_a_fleet_is_followed_to_its_end_with_nobody_reading(box: Box, tmp_path: Path) -> None:
    other = Box(tmp_path / "other", box.server)
    box.write_hosts(other={"python": f"{other.venv}/bin/python", "state_dir": str(other.state)})
    flag = with_run_step(box, "install")
    run = start(box, "rollout", "all", "--yes")
    run.until(saying(box, "waiting"))
    run.close()
    no_file_may_grow(run)
    flag.touch()
    # The second cannot have a record: that is known before anything is begun there.
    assert run.finish() == 2 and host_said(box) == 0 and journals(other) == []


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>/dev/full"])
def test_a_run_there_and_back_with_outputs_that_take_nothing(box: Box, closed: str) -> None:
    before = box.snapshot()
    assert shell(box, f"rollout box --yes {closed}") == host_said(box) == 0
    assert differs(box, before) != []
    reads_only = 1 if "full" in closed else 0  # whoever asked got no answer
    assert shell(box, f"status box {closed}") == reads_only
    assert shell(box, f"rollback box --yes --json {closed}") == host_said(box) == 0
    assert differs(box, before) == []
    assert shell(box, f"rollout box --yes --payload {box.payload('bad', broken='check')} {closed}") == 1
    assert host_said(box) == 1 and shell(box, f"attach box {closed}") == 1


def shell(box: Box, line: str) -> int:
    """The command line as a shell runs it."""
    argv = ["/bin/bash", "-c", f"{sys.executable} -m ddtree_deploy {line}"]
    env = {**os.environ, "HOME": str(box.root)}
    return subprocess.run(argv, cwd=box.work, env=env, timeout=PATIENCE, check=False).returncode


def test_the_first_line_alone_is_read_and_the_exit_code_is_the_command_s(box: Box) -> None:
    assert shell(box, "plan box | head -1 >/dev/null; exit ${PIPESTATUS[0]}") == 0
    edited = box.site / "sglang/srt/speculative/dflash_info.py"
    edited.write_text(edited.read_text() + "# by hand\n")
    assert shell(box, "plan box | head -1 >/dev/null; exit ${PIPESTATUS[0]}") == 6
    assert shell(box, "rollout box --yes --accept-drift | head -1 >/dev/null; exit ${PIPESTATUS[0]}") == 0
    assert host_said(box) == 0


@pytest.mark.parametrize("command", ["recover", "unlock"])
def test_a_recovery_is_followed_to_its_end_with_nobody_reading(box: Box, command: str) -> None:
    before = box.snapshot()
    with_run_step(box, "install")
    first = box.start("rollout", "box", "--yes")
    first.until(lambda e: e.get("text") == "waiting", "the held step")
    if command == "recover":
        os.kill(next(e["pid"] for e in first.seen if e["e"] == "run"), signal.SIGKILL)
        assert first.finish().code == 3
    words = "recover box" if command == "recover" else "unlock box --force"
    closed = "2>/dev/full" if command == "recover" else ">/dev/full 2>&-"
    assert shell(box, f"{words} {closed}") == 0
    assert differs(box, before) == []
    if command == "unlock":
        assert first.finish().code == host_said(box) == 130


def test_attach_completes_a_record_that_a_full_disk_cut(box: Box) -> None:
    flag = with_run_step(box, "install")
    run = start(box, "rollout", "box", "--yes")
    run.until(saying(box, "waiting"))
    no_file_may_grow(run)
    flag.touch()
    assert run.finish() == 0
    (folder,) = (box.work / ".ddtree-deploy" / "runs").iterdir()
    assert not (folder / "summary.json").exists() and not list(folder.glob(".*"))
    attached = box.run("attach", "box")
    assert attached.code == 0, attached
    assert (folder / "journal.jsonl").read_text() == journals(box)[-1].read_text()
    assert json.loads((folder / "summary.json").read_text())["exit_code"] == 0


def test_confirm_and_sweep_say_what_the_host_says_with_nobody_reading(serving: Box) -> None:
    file = serving.work / "playbooks" / "rollout.yaml"
    playbook = yaml.safe_load(file.read_text())
    baseline, benchmark = (
        next(s[kind] for s in playbook["steps"] if isinstance(s, dict) and kind in s)
        for kind in ("baseline", "benchmark")
    )
    baseline["bench"] = {"num_prompts": 2, "concurrency": 2, "output_len": 4, "rounds": 5, "min_round": "0s"}
    benchmark["min_ratio"] = 0.001
    playbook["on_inconclusive"] = "hold"
    file.write_text(yaml.safe_dump(playbook, sort_keys=False))
    words = "sweep box --budgets 4 --passes 1 --rounds 5 --yes -o /nowhere/plots.html"
    swept = serving.plain(*words.split())
    assert swept.returncode == host_said(serving) == 0, swept
    assert "best at concurrency" in swept.stdout
    (line,) = swept.stderr.splitlines()
    assert "/nowhere/plots.html: the plots were not written" in line and "ddtree-deploy report" in line
    assert shell(serving, "rollout box --yes >/dev/full 2>&-") == host_said(serving) == 7
    assert shell(serving, "confirm box 2>/dev/full >&-") == host_said(serving) == 0
