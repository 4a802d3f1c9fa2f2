"""Works through the cells, several side by side; each has a fresh host, which takes less than a second."""

from __future__ import annotations

import random
import re
import shutil
import threading
import time
from pathlib import Path

from ddtree_deploy.running.zipapp import SOURCE
from tests.lab.hosts import Host, Lab
from tests.lab.image import Image
from tests.lab.matrix import commands
from tests.lab.zoo.draft import Draft
from tests.lab.zoo.story import Told, tell

MOST = 150  # hosts that one lab's network takes


def run(
    folder: Path,
    users: Path,
    drafts: list[Draft],
    *,
    hosts: int,
    seed: int,
    evidence: Path,
    seconds: float = 0.0,
) -> list[Told]:
    """All cells, or those begun within `seconds`. `folder` is for the hosts' disks, `users` for payloads."""
    commands.prepare()
    sources = users / "onhost"  # one state of the code for all cells, also while somebody edits it
    shutil.copytree(SOURCE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    todo = list(drafts)
    random.Random(seed).shuffle(todo)
    done: list[Told] = []
    lock = threading.Lock()
    until = time.monotonic() + seconds if seconds else float("inf")

    def work() -> None:
        while todo and time.monotonic() < until:
            with Lab(folder) as lab:
                some(lab)

    def some(lab: Lab) -> None:
        for _ in range(MOST):
            with lock:
                if not todo or time.monotonic() > until:
                    return
                draft = todo.pop()
            user = users / f"{lab.record.lab}-{draft.name}"
            told = one(lab, draft, user, seed=seed, sources=sources, evidence=evidence)
            with lock:
                done.append(told)
                print(f"[{len(done):3}/{len(drafts)}] {told.line()}", flush=True)
                for problem in told.problems:
                    print(f"          {problem[:900]}", flush=True)

    shutil.rmtree(evidence, ignore_errors=True)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(hosts, len(drafts)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def one(lab: Lab, draft: Draft, user: Path, *, seed: int, sources: Path, evidence: Path) -> Told:
    """A fresh host for one cell."""
    host: Host | None = None
    try:
        host = lab.host(Image(service=False), disk_mb=draft.disk_mb, boot=False)
        draft.build(host.root)
        host.boot()
        for command in draft.live:
            host.run(command)
        for command in draft.logins:
            host.ssh(command)
        told = tell(host, draft, user, seed, sources)
    except Exception as error:
        told = Told(draft, problems=[f"the lab: {type(error).__name__}: {error}"[:1500]], lab_failed=True)
    if told.problems:
        keep(host, told, evidence)
    if host is not None:
        lab.remove(host)
    shutil.rmtree(user, ignore_errors=True)
    return told


def keep(host: Host | None, told: Told, evidence: Path) -> None:
    """What a person needs to understand it."""
    folder = evidence / re.sub(r"\W+", "-", told.draft.name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "problems.txt").write_text("\n".join([told.line(), *told.problems, "", *told.log]))
    (folder / "unit.txt").write_bytes(told.draft.text())
    if host is not None and host.on:
        said = host.run("journalctl -b -n 200 --no-pager; systemctl --failed --no-pager", check=False).stdout
        (folder / "systemd.log").write_text(said)
