"""Works through the cells on several hosts side by side: most of a cell is waiting."""

from __future__ import annotations

import random
import re
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from ddtree_deploy.running.zipapp import SOURCE
from tests.lab.hosts import Lab
from tests.lab.image import Image
from tests.lab.matrix.cells import Cell
from tests.lab.matrix.target import Known, Target, with_dependents
from tests.lab.matrix.trial import ORIGINS, Trial, attempt


class Pool:
    """Cells to do; a worker asks for one that fits the state its host is in."""

    def __init__(self, cells: Iterable[Cell], until: float = float("inf")) -> None:
        self._until = until
        self._lock = threading.Lock()
        self._cells: dict[str, list[Cell]] = {state: [] for state in ORIGINS.values()}
        for cell in cells:
            self._cells[ORIGINS[cell.action]].append(cell)
        self.total = sum(map(len, self._cells.values()))
        self.done: list[Trial] = []

    def take(self, state: str) -> Cell | None:
        """One for a host in this state; else one for another state; None when there are none."""
        if time.monotonic() > self._until:
            return None
        with self._lock:
            other = next(s for s in self._cells if s != state)
            for cells in (self._cells[state], self._cells[other]):
                if cells:
                    return cells.pop()
        return None

    def add(self, trial: Trial) -> None:
        with self._lock:
            self.done.append(trial)
            print(f"[{len(self.done):4}/{self.total}] {trial.line()}", flush=True)
            for problem in trial.problems[:4]:
                print(f"            {problem[:400]}", flush=True)


def run(
    lab: Lab, folder: Path, cells: list[Cell], *, hosts: int, seed: int, evidence: Path, seconds: float = 0.0
) -> list[Trial]:
    """All cells, or those begun within `seconds`; of each sort of host the first one learns how a run without
    faults looks.
    """
    until = time.monotonic() + seconds if seconds else float("inf")
    # One state of the code for all cells, also while somebody edits it.
    sources = folder / "onhost"
    shutil.copytree(SOURCE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    beside = [cell for cell in cells if cell.dependents]
    plain = [cell for cell in cells if not cell.dependents]
    work = []
    # One host is enough for the few cells with dependents.
    for mine, count, image in ((beside, 1, with_dependents()), (plain, hosts - bool(beside), Image())):
        if not mine:
            continue
        known, pool = Known(), Pool(mine, until)
        targets = [Target(lab, folder, known, sources, image=image)]
        targets[0].learn()
        more = max(1, min(count, len(mine))) - 1
        targets += [Target(lab, folder, known, sources, image=image) for _ in range(more)]
        work += [(target, pool) for target in targets]
    shutil.rmtree(evidence, ignore_errors=True)
    threads = [
        threading.Thread(target=_work, args=(target, pool, seed, evidence), daemon=True)
        for target, pool in work
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for target, _ in work:
        target.close()
    return [trial for pool in {id(p): p for _, p in work}.values() for trial in pool.done]


def _work(target: Target, pool: Pool, seed: int, evidence: Path) -> None:
    while (cell := pool.take(target.state)) is not None:
        pool.add(one(target, cell, seed, evidence))


def one(target: Target, cell: Cell, seed: int, evidence: Path) -> Trial:
    """Bring the host where the cell begins, run it; after a failure keep the evidence, take a new host."""
    needed = ORIGINS[cell.action]
    if target.state != needed:
        target.run("rollback" if needed == "before" else "rollout").expect(0)
        target.state = needed
    # The instants of a cell depend on the seed and the cell, not on which host came to do it.
    trial = attempt(target, cell, random.Random(f"{seed} {cell}"))
    if not trial.survived:
        keep(target, trial, evidence)
        target.renew()
    return trial


def keep(target: Target, trial: Trial, evidence: Path) -> None:
    """What a person needs to understand a failure."""
    folder = evidence / re.sub(r"\W+", "-", str(trial.cell))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "problems.txt").write_text("\n".join([trial.line(), *trial.problems, "", *trial.log]))
    for run in target.host.path("/var/lib/ddtree-deploy").glob("sites/*/runs/*"):
        for name in ("journal.jsonl", "logs/runner.log", "logs/recover.log"):
            if (run / name).exists():
                (folder / f"{run.name}-{name.replace('/', '-')}").write_bytes((run / name).read_bytes())
    if target.host.on:
        said = target.host.run("journalctl -b -n 200 --no-pager", check=False).stdout
        (folder / "systemd.log").write_text(said)
