"""Base is always within reach, and a rollback does what its words promise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from ddtree_deploy.sandbox.sshd import SshServer
from tests.ssh.box import Box, differs
from tests.ssh.one_flavour import server

__all__ = ["server"]

pytestmark = pytest.mark.ssh


@pytest.fixture
def box(server: SshServer, tmp_path: Path) -> Box:
    """A host without a service, and a playbook without what costs time only."""
    made = Box(tmp_path, server)
    file = made.work / "playbooks" / "rollout.yaml"
    book = yaml.safe_load(file.read_text())
    book["steps"] = ["lock", "preflight", "backup", "stage", "smoke", "install", "unlock"]
    file.write_text(yaml.safe_dump(book))
    return made


def rollout(box: Box, version: str, *, broken: str = "", extra: str = "") -> str:
    """One release; `extra` is a file that no other one has. Returns its run."""
    folder = Path(box.payload(f"p{version}", version=version, broken=broken))
    if extra:
        (folder / "tiny_ddtree" / extra).write_text(f"V = {version!r}\n")
    done = box.run("rollout", "box", "--yes", "--payload", str(folder))
    assert done.code == (1 if broken else 0), done
    return str(done.outcome["run"])


def live(box: Box) -> str:
    (file,) = box.state.glob("sites/*/installed.json")
    return str(json.loads(file.read_text())["release"])


def test_case_37_base_is_within_reach_after_many_good_rollouts(box: Box) -> None:
    before = box.snapshot()
    made = [rollout(box, f"{n}", extra="only3.py" if n == 3 else "") for n in range(1, 10)]
    runs = {p.name for p in box.state.glob("sites/*/runs/*")}
    assert runs == {made[0], *made[3:]}, "the first, five newest, and what they were made on"
    told = box.run("releases", "box").events[-1]
    assert "base" in told["back_to"] and made[1] not in told["back_to"]
    ways = {row["run"]: row["command"] for row in told["releases"]}
    assert f"rollback box --to {made[-2]}" in ways[made[-2]] and ways[made[-1]] == ""
    assert "rollout box, with tiny 2" in ways[made[1]]
    refused = box.run("rollback", "box", "--to", made[1], "--yes")
    assert refused.code == 2 and "can be gone back to" in refused.outcome["reason"], refused
    back = box.run("rollback", "box", "--to", "base", "--yes")
    assert back.code == 0, back
    assert differs(box, before) == []


def test_case_37_base_is_within_reach_from_an_old_release_too(box: Box) -> None:
    """Back over the kept ones, then to base over those that are gone; failed rollouts push nothing out."""
    before = box.snapshot()
    made = [rollout(box, f"{n}") for n in range(1, 8)]
    for n in range(8, 15):
        rollout(box, f"{n}", broken="check")
    targets = box.run("releases", "box").events[-1]["back_to"]
    assert targets[0] == made[-2] and targets[-1] == "base" and len(targets) > 3
    assert box.run("rollback", "box", "--to", targets[-2], "--yes").code == 0
    assert live(box) == targets[-2]
    back = box.run("rollback", "box", "--to", "base", "--yes")
    assert back.code == 0 and differs(box, before) == [], back


def test_case_37_a_lost_backup_takes_base_out_of_reach_and_that_is_said(box: Box) -> None:
    first = rollout(box, "1")
    for n in range(2, 5):
        rollout(box, f"{n}")
    (backup,) = box.state.glob(f"sites/*/runs/{first}/backup")
    shutil.rmtree(backup)
    told = box.run("releases", "box").events[-1]
    assert "base" not in told["back_to"] and first in told["back_to"]
    refused = box.run("rollback", "box", "--to", "base", "--yes")
    assert refused.code == 2 and "no kept backups lead back to base" in refused.outcome["reason"]


def test_case_38_after_a_failed_rollout_a_rollback_of_a_host_goes_behind_the_live_one(box: Box) -> None:
    first, second = rollout(box, "1"), rollout(box, "2")
    file = box.work / "playbooks" / "rollout.yaml"
    book = yaml.safe_load(file.read_text())
    book["steps"].insert(-1, {"run": {"name": "gate", "command": ["/bin/false"]}})
    file.write_text(yaml.safe_dump(book))
    failed = box.run("rollout", "box", "--yes", "--payload", box.payload("p3", version="3"))
    assert failed.code == 1 and live(box) == second
    undone = box.plain("rollback", "--yes")
    assert undone.returncode == 2 and "passed" not in undone.stdout, undone.stdout
    assert "ended bad and was undone by itself" in undone.stdout and live(box) == second
    assert "ddtree-deploy rollback box" in undone.stdout, "the next command leads on"
    back = box.run("rollback", "box", "--yes")
    assert back.code == 0 and live(box) == first, back
    (plan,) = [e for e in back.events if e["e"] == "plan"]
    assert [w for w in plan["warnings"] if w.startswith("this goes behind the live release")]
    assert box.run("rollback", "box", "--to", first, "--yes").code == 0, "it is so already"
    assert box.run("rollback", "box", "--yes").code == 0
    again = box.run("rollback", "box", "--yes")
    assert again.code == 2 and again.outcome["verdict"] == "skipped", again
    assert box.run("rollback", "box", "--to", "base", "--yes").code == 0
