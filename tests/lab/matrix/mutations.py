"""With each undo disabled in turn the matrix must report failures: else its checks could not fail.

A mutation is a changed copy of `onhost/`, which the controller packs instead of the real one.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ddtree_deploy.running.zipapp import SOURCE
from tests.lab.hosts import Lab
from tests.lab.image import Image
from tests.lab.matrix import fleet
from tests.lab.matrix.cells import Cell
from tests.lab.matrix.target import Known, Target, with_dependents
from tests.lab.matrix.trial import Trial

Change = Callable[[str], str]


def appended(code: str) -> Change:
    """A module with this at its end: what it defines replaces what was defined above."""
    return lambda text: f"{text}\n\n{code}\n"


def replaced(old: str, new: str) -> Change:
    """A module with one line changed. Raises ValueError where it is not there (any more)."""

    def change(text: str) -> str:
        if text.count(old) != 1:
            raise ValueError(f"a mutation no longer fits: {text.count(old)} times {old!r}")
        return text.replace(old, new)

    return change


@dataclass(frozen=True)
class Mutation:
    """One undo (or recovery) that does nothing any more; `cells` are those that need it."""

    name: str
    module: str
    change: Change
    cells: tuple[Cell, ...]
    enabled: bool = True  # the service runs before
    dependents: bool = False  # and other units go down with it

    @property
    def image(self) -> Image:
        return with_dependents() if self.dependents else Image(enabled=self.enabled)

    @property
    def host(self) -> str:
        """The sort of host that it needs."""
        return f"enabled-{self.enabled}-dependents-{self.dependents}"


NO_UNDO = appended("def undo(ctx, intents):\n    return None")
LATE = (
    Cell("rollout", "health", "before", "SIGTERM"),
    Cell("rollout", "start", "after", "kill-runner"),
    Cell("rollout", "benchmark", "before", "power-cut"),
)
INSTALLED = (
    Cell("rollout", "install", "after", "SIGINT"),
    Cell("rollout", "install", "after", "kill-runner"),
)
RESTORE = "    def restore_launch(self, ctx: Context, folder: Path) -> None:\n"
MUTATIONS = (
    Mutation("stop: the old service is not started", "steps/stop.py", NO_UNDO, (*INSTALLED, LATE[0])),
    Mutation("install: nothing is restored", "steps/install.py", NO_UNDO, (*INSTALLED, LATE[0])),
    Mutation(
        "install: files are not restored",
        "steps/install.py",
        replaced("                files.restore(entry, str(ctx.backup_dir))", "                pass"),
        INSTALLED,
    ),
    Mutation(
        "install: folders are not removed",
        "steps/install.py",
        replaced('left = files.remove_folder(intent["path"])', "left = []"),
        INSTALLED,
    ),
    Mutation(  # by install, and by stop once more
        "the launch is not restored",
        "service/systemd/control.py",
        replaced(RESTORE, f"{RESTORE}        return\n"),
        INSTALLED,
    ),
    Mutation(  # where the old one ran, the undo of stop ends the new one, too
        "start: the new service is not stopped",
        "steps/start.py",
        NO_UNDO,
        LATE[:2],
        enabled=False,
    ),
    Mutation(
        "no undo at all",
        "run/undo.py",
        replaced("    names = [n for n in specs if n in intents][::-1]", "    names: list[str] = []"),
        LATE,
    ),
    Mutation(
        "a dead run is not an orphan",
        "state/releases.py",
        replaced('    return not ends or ends[-1]["exit"] == 3', "    return False"),
        LATE[1:],
    ),
    Mutation(  # neither recorded nor, then, started and checked: only a look from outside can tell
        "dependents are not started",
        "service/systemd/unit.py",
        replaced("        return self._closure().stopped", "        return {}"),
        tuple(replace(cell, dependents=True) for cell in (*INSTALLED, LATE[0])),
        dependents=True,
    ),
)


def run(lab: Lab, folder: Path, seed: int, evidence: Path, only: str = "") -> int:
    """Each mutation on a host of its own, several side by side. 0 when the matrix noticed every one."""
    chosen = [mutation for mutation in MUTATIONS if re.search(only, mutation.name)]
    known: dict[str, Known] = {}
    for mutation in chosen:
        if mutation.host not in known:
            known[mutation.host] = Known()
            learner = Target(lab, folder / mutation.host, known[mutation.host], image=mutation.image)
            learner.learn()
            learner.close()
    waiting = list(chosen)
    found: dict[str, list[Trial]] = {}
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                mutation = waiting.pop(0)
            trials = _one(lab, folder, known[mutation.host], mutation, seed, evidence)
            with lock:
                found[mutation.name] = trials
                for trial in trials:
                    print(f"{mutation.name}: {trial.line()}", flush=True)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"\n{'undo that was disabled':44} reported by")
    for mutation in chosen:
        seen = [t for t in found.get(mutation.name, []) if not t.survived and not t.lab_failed]
        print(f"{mutation.name:44} {len(seen)} of {len(mutation.cells)} cells")
        if seen:
            print(f"{'':6}{seen[0].cell}: {seen[0].problems[0][:120]}")
    caught = sum(any(not t.survived and not t.lab_failed for t in found.get(m.name, [])) for m in chosen)
    print(f"mutations noticed: {caught}/{len(chosen)}")
    return 0 if caught == len(chosen) else 1


def _one(  # noqa: PLR0917
    lab: Lab, folder: Path, known: Known, mutation: Mutation, seed: int, evidence: Path
) -> list[Trial]:
    name = mutation.name.replace(" ", "-").replace(":", "")
    sources = folder / f"onhost-{name}"
    shutil.copytree(SOURCE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    module = sources / mutation.module
    module.write_text(mutation.change(module.read_text()))
    target = Target(lab, folder / name, known, sources, image=mutation.image)
    trials = [fleet.one(target, cell, seed, evidence / name) for cell in mutation.cells]
    target.close()
    return trials
