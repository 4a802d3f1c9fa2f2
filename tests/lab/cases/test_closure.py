"""Case 25, the other way round: random units on a real systemd are stopped; what was computed went down."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator

import pytest

from ddtree_deploy.running.zipapp import SOURCE
from tests.lab.hosts import Host

pytestmark = pytest.mark.lab
THERE = "/opt/lab-closure"
FOLDER = "/run/systemd/system"
NAMES = [f"lab-graph{i}.service" for i in range(8)]
KINDS = ["Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom", "Wants", "PropagatesStopTo"]
ASK = f"""
import json, sys
sys.path.insert(0, {THERE!r})
from onhost.programs import systemctl
from onhost.service.systemd import closure
shown = systemctl.show(sys.argv[1], closure.ASKED)
print(json.dumps(list(closure.of(sys.argv[1], shown).stopped)))
"""


@pytest.fixture
def host(shared: Host) -> Iterator[Host]:
    shutil.copytree(SOURCE, shared.path(f"{THERE}/onhost"), ignore=shutil.ignore_patterns("__pycache__"))
    shared.path(f"{THERE}/ask.py").write_text(ASK)
    yield shared
    shutil.rmtree(shared.path(THERE))
    names = " ".join(NAMES)
    files = " ".join(f"{FOLDER}/{name}" for name in NAMES)
    shared.run(f"systemctl stop {names}; rm -f {files}; systemctl daemon-reload; systemctl reset-failed")


def draw(rng: random.Random) -> dict[str, str]:
    """A graph without circles: each unit refers to earlier ones."""
    texts = {}
    for number, name in enumerate(NAMES):
        lines = ["[Unit]"]
        for other in NAMES[:number]:
            if rng.random() < 0.3:
                kind = rng.choice(KINDS)
                lines.append(f"{kind}={other}")
                if kind in ("Requisite", "BindsTo") or rng.random() < 0.5:
                    lines.append(f"After={other}")
        texts[name] = "\n".join([*lines, "[Service]", "ExecStart=/bin/sleep infinity", ""])
    return texts


def active(host: Host) -> set[str]:
    said = host.run(f"systemctl show -p ActiveState --value {' '.join(NAMES)}").stdout.split()
    return {name for name, state in zip(NAMES, said, strict=True) if state == "active"}


@pytest.mark.parametrize("seed", range(12))
def test_case_25_what_is_computed_is_what_a_stop_takes_down(host: Host, seed: int) -> None:
    rng = random.Random(seed)
    texts = draw(rng)
    for name, text in texts.items():
        (host.root / "opt/lab-closure" / name).write_text(text)
    up = [name for name in NAMES if rng.random() < 0.8] or NAMES[:1]
    host.run(f"cp {THERE}/lab-*.service {FOLDER}/ && systemctl daemon-reload")
    host.run(f"for unit in {' '.join(up)}; do systemctl start $unit; done", check=False)
    before = active(host)
    unit = rng.choice(sorted(before))
    computed = set(json.loads(host.run(f"/usr/bin/python3 -I -S {THERE}/ask.py {unit}").stdout))
    host.run(f"systemctl stop {unit}")
    gone = before - active(host) - {unit}
    version = int(host.run("systemctl --version").stdout.split()[1])
    # Newer ones spare some of what StopPropagatedFrom= reaches: those are started again for nothing.
    assert gone == computed if version < 254 else gone <= computed, (unit, texts)
