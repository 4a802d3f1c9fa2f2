"""A host as a value, and what is wrong with it. The judgement is pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_deploy.onhost.state.held import is_held
from tests.lab.fake_venv import VENV
from tests.lab.hosts import Host
from tests.lab.tree import State, difference, state

PROBE = (Path(__file__).with_name("probe.py"), Path(__file__).parents[1] / "stale.py")
THERE = "/opt/sglang"
UNITS = "/etc/systemd/system"
DROP_IN = f"{UNITS}/sglang.service.d/zzzz-ddtree-deploy.conf"
STATE = "/var/lib/ddtree-deploy"
# What a run that has ended does not need any more, wherever it stands in its run folder.
WORKSPACE = ("stage", "payload.tar.gz", "reserve")


@dataclass
class Look:
    """A host: what lies on its disk, what runs."""

    venv: State
    units: State
    stale: list[str]
    left: list[str]  # what should not be there between runs
    inside: dict[str, Any]  # see probe.py
    verified: str  # the release on record as live whose run was judged good; empty for none

    @property
    def algorithm(self) -> str:
        """Of the running server; empty when none runs."""
        argv = self.inside["service"]["argv"]
        return str(argv[argv.index("--speculative-algorithm") + 1]) if argv else ""

    @property
    def generates(self) -> bool:
        return bool(self.inside["service"]["generates"])


def place_probe(host: Host) -> None:
    """Once for a new host; later its disk may be full."""
    for file in PROBE:
        host.path(f"{THERE}/{file.name}").write_bytes(file.read_bytes())


def look(host: Host) -> Look:
    """Look at a host that is on. Nothing of the product is used or started."""
    ran = host.run(f"exec {VENV}/bin/python -I {THERE}/{PROBE[0].name} {VENV}")
    inside = json.loads(ran.stdout)
    return Look(
        state(host.path(VENV)),
        _units(host),
        inside["stale"],
        leftovers(host.path(STATE)),
        inside,
        _verified(host.path(STATE)),
    )


def _units(host: Host) -> State:
    """What systemd reads. Our drop-in names its run in a comment, and the release: the live one."""
    units, live = state(host.path(UNITS)), _verified(host.path(STATE))
    for name, entry in units.items():
        if name.endswith("zzzz-ddtree-deploy.conf"):
            lines = host.path(f"{UNITS}/{name}").read_text().splitlines()
            text = "\n".join(line for line in lines if not line.startswith("#"))
            text = text.replace(f"RELEASE={live}", "RELEASE=live") if live else text
            units[name] = (*entry[:4], hashlib.sha256(text.encode()).hexdigest(), *entry[5:])
    return units


def _verified(folder: Path) -> str:
    for file in folder.glob("sites/*/installed.json"):
        release = str(json.loads(file.read_text())["release"])
        lines = journal(file.with_name("releases.jsonl"))
        if any(line["run"] == release and line["verdict"] == "good" for line in lines):
            return release
        return f"{release}, which no run has found good"
    return ""


def leftovers(folder: Path) -> list[str]:
    """Temporary files, locks that are held, unfinished runs and workspaces of runs in the state folder."""
    found = [str(p) for p in folder.rglob("*.tmp")]
    found += [f"{p}: held" for p in folder.glob("sites/*/lock") if is_held(p)]
    for run in folder.glob("sites/*/runs/*"):
        found += [str(run / name) for name in WORKSPACE if (run / name).exists()]
        events = journal(run / "journal.jsonl")
        ends = [e for e in events if e["e"] == "end"]
        if any(e["e"] == "locked" for e in events) and (not ends or ends[-1]["exit"] == 3):
            found.append(f"{run}: unfinished")
        backup = run / "backup"
        if backup.is_dir() and not (backup / "manifest.json").exists():
            found.append(f"{backup}: half a backup")
    return found


def journal(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's journal."""
    try:
        raw = path.read_bytes()
    except OSError:
        return []
    return [json.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines()]


@dataclass(frozen=True)
class Reference:
    """How a host looks when it is quite before, or quite after, a rollout."""

    venv: State
    units: State
    imported: list[Any]
    algorithm: str
    generates: bool
    released: bool  # a release of ours is live and was verified
    beside: dict[str, str]  # unit -> state, of the units beside the service

    @classmethod
    def of(cls, seen: Look) -> Reference:
        return cls(
            seen.venv,
            seen.units,
            seen.inside["imported"],
            seen.algorithm,
            seen.generates,
            bool(seen.verified),
            seen.inside["beside"],
        )

    def differences(self, seen: Look) -> list[str]:
        """Every way in which `seen` is not this state."""
        lines = difference(self.venv, seen.venv) + difference(self.units, seen.units)
        if seen.inside["imported"] != self.imported:
            lines.append(f"the venv imports {seen.inside['imported']}, not {self.imported}")
        if seen.algorithm != self.algorithm:
            should = f"it should run {self.algorithm}" if self.algorithm else "it should be down"
            lines.append(f"the service runs {seen.algorithm or 'not'}, {should}")
        if self.released != bool(seen.verified) or "," in seen.verified:
            lines.append(f"on record as live: {seen.verified or 'nothing of ours'}")
        for unit, was in self.beside.items():
            if (now := seen.inside["beside"].get(unit, "not loaded")) != was:
                lines.append(f"{unit} is {now}, it should be {was}")
        if self.generates and not seen.generates:
            lines.append(f"the service does not generate ({seen.inside['service']['active']})")
        return lines


def classify(seen: Look, references: dict[str, Reference]) -> str:
    """The name of the state that `seen` is; `between` when it is none."""
    for name, reference in references.items():
        if not reference.differences(seen):
            return name
    return "between"


def untidy(seen: Look) -> list[str]:
    """What is left that should not be: locks, processes, files, bytecode that lies."""
    inside = seen.inside
    lines = [f"stale bytecode: {path}" for path in seen.stale]
    lines += [f"left: {path}" for path in seen.left]
    lines += [f"left: {path}" for path in inside["files"] if path != DROP_IN]
    lines += [f"lock held: {path}" for path in inside["locks"]]
    lines += [f"process: {line}" for line in inside["processes"]]
    return lines
