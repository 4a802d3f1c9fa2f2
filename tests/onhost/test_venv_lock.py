"""One run a venv, wherever its state is kept and by whichever path it is reached."""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.facts import gather
from ddtree_deploy.onhost.recovery import orphans
from ddtree_deploy.onhost.state import holder, layout
from ddtree_deploy.onhost.state import lock as lock_module
from ddtree_deploy.onhost.state.held import is_held
from ddtree_deploy.onhost.state.lock import Held, SiteLock
from tests.root import need_root

from .host import Host, until
from .test_recover import dead_run
from .test_runner import go, waiting

ROOT = Path(__file__).parents[2]


def elsewhere(host: Host, name: str = "state2") -> Host:
    """The same venv, with another state folder."""
    other = copy.copy(host)
    other.state = host.root / name
    other.site_dir = layout.site_dir(str(other.state), str(other.site))
    other.runs = host.runs + 50
    return other


def test_case_40_two_state_folders_are_one_venv(host: Host) -> None:
    other = elsewhere(host)
    first = host.launch(*host.plan(steps=host.steps(waiting(host))))
    first.until(e="progress", text="up")
    second = other.launch(*other.plan())
    assert second.wait() == 5, second.end
    reason = second.end["reason"]
    assert reason.startswith(f"locked by tester@desk, rollout {first.run}, since 20"), reason
    assert f"now at wait (pid {host.runner_pid(first.run)}), whose state is in {host.state};" in reason
    assert second.end["state"] == "nothing was changed"
    go(host)
    assert first.wait() == 0, first.end
    assert not is_held(host.site), "it is free with the run's end"


def test_case_40_the_lock_goes_with_the_process(host: Host) -> None:
    """A runner that is killed, or a host without power, leaves nothing that is held."""
    first = host.launch(*host.plan(steps=host.steps(waiting(host))))
    first.until(e="progress", text="up")
    assert is_held(host.site)
    host.kill_runner(first.run)
    until(lambda: not is_held(host.site))
    first.process.kill()
    code, events = host.recover()
    assert code == 0 and events[-1]["e"] == "recovered", events


def test_case_40_a_recovery_takes_the_venv_too(host: Host) -> None:
    first = host.launch(*host.plan(steps=host.steps(waiting(host))))
    first.until(e="progress", text="up")
    host.kill_runner(first.run)
    first.process.kill()
    theirs = SiteLock(host.root)
    theirs.acquire("r9", "eve", "rollout", [str(host.site)])
    code, events = host.recover()
    assert code == 5 and [e["e"] for e in events] == ["locked"], events
    assert events[0]["owner"]["pid"] == os.getpid() and events[0]["owner"]["who"] == getpass.getuser()
    theirs.release()
    assert host.recover()[0] == 0


def test_case_40_a_recovery_that_outlives_who_began_it_still_holds_the_venv(tmp_path: Path) -> None:
    """The descriptors are handed on: the kernel keeps the lock for as long as one of them is open."""
    venv = tmp_path / "site"
    venv.mkdir()
    run_dir = dead_run(tmp_path, 0)
    said = run_dir / "held"
    text = (run_dir / layout.RUNNER).read_text()
    look = f"""
import fcntl, os
for fd in os.listdir("/proc/self/fd"):
    if os.path.realpath("/proc/self/fd/" + fd) == {str(venv)!r}:
        open({str(said)!r}, "w").write(fd)
"""
    (run_dir / layout.RUNNER).write_text(look + text)
    lock = SiteLock(tmp_path)
    lock.acquire("run", "me", "recover", [str(venv)])
    orphans.by_its_own_runner(run_dir, lock.fd, lambda event: None, lock.folder_fds)
    lock.release()
    assert said.read_text().isdigit()


@contextlib.contextmanager
def bound(source: Path, place: Path) -> Iterator[None]:
    place.mkdir()
    done = subprocess.run(["mount", "--bind", str(source), str(place)], check=False)
    need_root("mounting is not allowed here", lambda: done.returncode == 0)
    try:
        yield
    finally:
        until(lambda: subprocess.run(["umount", str(place)], check=False).returncode == 0)


def test_case_40_another_path_to_the_venv_is_the_same_venv(host: Host) -> None:
    """A bind mount has another real path, and so another key in the state folder."""
    need_root("needs root to mount")
    mine = SiteLock(host.root)
    mine.acquire("r1", "ada", "rollout", [str(host.site)])
    with bound(host.root / "venv", host.root / "mounted"):
        path = str(host.root / "mounted" / host.site.relative_to(host.root / "venv"))
        assert layout.site_key(path) != layout.site_key(str(host.site))
        with pytest.raises(Held) as refused:
            SiteLock(host.root / "venv").acquire("r2", "eve", "rollout", [path])
        assert holder.of(refused.value)["pid"] == os.getpid()
    link = host.root / "link"
    link.symlink_to(host.site)
    with pytest.raises(Held):
        SiteLock(host.root / "venv").acquire("r2", "eve", "rollout", [str(link)])
    mine.release()


def test_case_40_two_venvs_with_one_checkout_of_sglang_are_one(tmp_path: Path) -> None:
    checkout = tmp_path / "src" / "sglang"
    for folder in (checkout, tmp_path / "a", tmp_path / "b"):
        folder.mkdir(parents=True)
    plans = [{"site": str(tmp_path / name), "package_dir": str(checkout)} for name in "ab"]
    first, second = (SiteLock(tmp_path / name) for name in "ab")
    first.acquire("r1", "ada", "rollout", layout.venv_folders(plans[0]))
    with pytest.raises(Held) as refused:
        second.acquire("r2", "eve", "rollout", layout.venv_folders(plans[1]))
    assert refused.value.folder == str(checkout)
    assert not is_held(tmp_path / "b"), "what it had taken is given back"
    first.release()
    inside = {"site": str(tmp_path), "package_dir": str(checkout)}
    assert layout.venv_folders(inside) == [str(tmp_path)]


def test_case_40_another_user_is_told_who_it_is(tmp_path: Path) -> None:
    """He may not read the state of the first; the kernel and the command line say enough."""
    need_root("needs root to be another user")
    shared = Path(tempfile.mkdtemp(prefix="ddtree-lock-"))
    try:
        shared.chmod(0o755)
        state = shared / "state"
        site_dir = layout.site_dir(str(state), str(shared))
        run_dir = site_dir / "runs" / "r1"
        run_dir.mkdir(parents=True)
        state.chmod(0o700)
        code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from ddtree_deploy.onhost.state.lock import SiteLock
lock = SiteLock(Path({str(site_dir)!r}))
lock.acquire("r1", "ada@desk", "rollout", [{str(shared)!r}])
print("held", flush=True)
sys.stdin.read()
"""
        runner = run_dir / layout.RUNNER
        runner.write_text(code)
        argv = [sys.executable, str(runner), "run", str(run_dir)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
            assert first.stdout is not None and first.stdin is not None
            assert first.stdout.readline() == b"held\n"
            seen = _as_nobody(str(shared))
            assert seen == {"who": "root", "pid": first.pid, "run": "r1", "state_dir": str(state)}
            assert holder.of_folder(str(shared))["who"] == "ada@desk", "who may read it is told all"
            first.stdin.close()
        assert holder.of_folder(str(shared)) == {}
    finally:
        shutil.rmtree(shared)


def _as_nobody(folder: str) -> dict[str, Any]:
    """What user 65534 is told of the holder; in a fork, since he may not read this checkout."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgid(65534)
            os.setuid(65534)
            os.write(write, json.dumps(holder.of_folder(folder)).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as f:
        told: dict[str, Any] = json.loads(f.read())
    return told


def test_a_stranger_that_holds_the_venv_is_named_by_his_process(tmp_path: Path) -> None:
    code = f"""
import fcntl, os, sys
fcntl.flock(os.open({str(tmp_path)!r}, os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None and stranger.stdin is not None
        assert stranger.stdout.readline() == b"held\n"
        assert holder.of_folder(str(tmp_path)) == {"who": getpass.getuser(), "pid": stranger.pid}
        stranger.stdin.close()


def test_where_a_folder_cannot_be_locked_that_is_said_and_the_state_s_lock_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where an exclusive lock wants a file that is open for writing."""
    (tmp_path / "site").mkdir()
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if os.path.realpath(f"/proc/self/fd/{fd}") == str(tmp_path / "site"):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(fd, how)

    monkeypatch.setattr(lock_module.fcntl, "flock", flock)
    lock = SiteLock(tmp_path)
    lock.acquire("r1", "ada", "rollout", [str(tmp_path / "site")])
    assert lock.unknown == f"{tmp_path}/site cannot be locked (Bad file descriptor)"
    assert not is_held(tmp_path / "site")
    with pytest.raises(Held):
        SiteLock(tmp_path).acquire("r2", "eve", "rollout", [str(tmp_path / "site")])
    lock.release()


def test_the_facts_name_a_holder_whose_state_is_elsewhere(tmp_path: Path) -> None:
    site, mine, theirs = (tmp_path / name for name in ("site", "mine", "theirs"))
    for folder in (site, mine, theirs):
        folder.mkdir()
    assert not gather.lock_facts(mine, [str(site)]).held
    lock = SiteLock(theirs)
    lock.acquire("r1", "ada", "rollout", [str(site)])
    found = gather.lock_facts(mine, [str(site)])
    assert found.held and found.elsewhere and found.pid == os.getpid()
    lock.release()
    assert not gather.lock_facts(mine, [str(site)]).held
