"""Whole rollouts over OpenSSH to a systemd host: what arrives, what is said, what is imported afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from ddtree_deploy import ssh
from ddtree_deploy.inputs.inventory import Host as Entry
from tests.lab.controller import Result
from tests.lab.fake_venv import VENV
from tests.lab.gated import Gated
from tests.lab.hosts import wait_for
from tests.lab.matrix.looks import STATE
from tests.lab.payloads import OVERLAID, make_payload

pytestmark = pytest.mark.lab
MIB = 1 << 20
BOTH = "import sys; [f.buffer.write(b'x' * 65536) for _ in range(160) for f in (sys.stderr, sys.stdout)]"
LISTEN = (
    "import os, socket, time; s = socket.create_server(('127.0.0.1', 30000)); "
    "open('/run/lab-old-scheduler', 'w').write(str(os.getpid())); time.sleep(600)"
)


def insert(deployment: Gated, before: str, step: object) -> None:
    file = deployment.folder / "rollout.yaml"
    book = yaml.safe_load(file.read_text())
    names = [s if isinstance(s, str) else next(iter(s)) for s in book["steps"]]
    book["steps"].insert(names.index(before), step)
    file.write_text(yaml.safe_dump(book, sort_keys=False))


def entry(deployment: Gated, **changes: object) -> None:
    """Change the host's entry in hosts.yaml."""
    hosts = yaml.safe_load((deployment.folder / "hosts.yaml").read_text())["hosts"]
    deployment.controller.write_hosts({name: fields | changes for name, fields in hosts.items()})


def main_pid(deployment: Gated) -> str:
    return deployment.host.unit()["MainPID"]


def width(deployment: Gated) -> int:
    """Of the module that the payload overlays, as the host's venv imports it, with bytecode."""
    code = "from sglang.srt.speculative import dflash_info as m; print(m.width())"
    return int(deployment.host.run(f'cd / && {VENV}/bin/python -c "{code}"').stdout)


def test_case_01_ten_mebibytes_on_both_streams_arrive_over_ssh_and_in_a_step(deployment: Gated) -> None:
    host = deployment.host
    there = Entry(
        name=host.name,
        address=host.address,
        user="root",
        python=f"{VENV}/bin/python",
        identity_file=host.lab.identity,
        known_hosts=host.lab.known_hosts,
    )
    with host.lab.inside(), ssh.connect(there) as link:
        done = link.run(link.command(there.python, "-I", "-c", BOTH), timeout=300)
    assert (done.rc, len(done.out), len(done.err)) == (0, 10 * MIB, 10 * MIB)
    step = {"run": {"name": "loud", "command": [f"{VENV}/bin/python", "-I", "-c", BOTH], "timeout": "5m"}}
    insert(deployment, "stop", step)
    rolled = deployment.rollout().expect(0)
    assert rolled.verdicts()["loud"] == "pass"
    logs = host.path(STATE).glob(f"sites/*/runs/{rolled.outcome['run']}/logs/loud*")
    assert sum(log.read_bytes().count(b"x") for log in logs) >= 20 * MIB
    deployment.rollback().expect(0)


def test_case_04_another_host_key_is_refused_with_the_command_that_accepts_it(deployment: Gated) -> None:
    host, other = deployment.host, deployment.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    known = deployment.folder / "known_hosts"
    known.write_text(f"{host.address} {other.with_suffix('.pub').read_text()}")
    key = host.path("/etc/ssh/ssh_host_ed25519_key.pub")
    shown = subprocess.run(["ssh-keygen", "-lf", str(key)], check=True, capture_output=True, text=True)
    fingerprint = shown.stdout.split()[1]
    entry(deployment, known_hosts=str(known))
    refused = deployment.rollout().expect(4).outcome
    assert fingerprint in refused["reason"] and "HAS CHANGED" in refused["reason"], refused
    assert refused["next_command"].split()[1:3] == ["trust", host.name], refused
    assert fingerprint in refused["next_command"], refused
    words = refused["next_command"].split()
    accept = [sys.executable, "-m", "ddtree_deploy", *words[1 : words.index(fingerprint) + 1]]
    with host.lab.inside():
        subprocess.run(accept, check=True, capture_output=True)
    deployment.controller.run("status", host.name).expect(0)


def test_case_09_with_the_stage_on_another_filesystem_the_install_is_atomic_and_keeps_what_the_file_had(
    deployment: Gated,
) -> None:
    host, live = deployment.host, deployment.site / OVERLAID
    old = live.read_text()
    os.chown(live, 990, 990)
    live.chmod(0o640)
    os.setxattr(live, "user.note", b"kept")
    deployment.before = deployment.look()
    host.run(f"mkdir -p {STATE} && mount -t tmpfs -o mode=700 lab {STATE}")
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.add(live.read_text())  # a moment without the file is a FileNotFoundError, and fails below

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        deployment.rollout().expect(0)
        info, new = live.stat(), live.read_text()
        kept = (info.st_uid, info.st_gid, info.st_mode & 0o7777, os.getxattr(live, "user.note"))
        deployment.rollback().expect(0)
    finally:
        alive = watcher.is_alive()
        over.set()
        watcher.join()
        # The process that we were connected to ends a moment after its last word.
        wait_for(lambda: host.run(f"umount {STATE}", check=False).returncode == 0, "the state to be let go")
    assert alive and seen == {old, new} and old != new
    assert kept == (990, 990, 0o640, b"kept")
    deployment.assert_as_before()
    os.removexattr(live, "user.note")
    os.chown(live, 0, 0)
    live.chmod(0o644)
    deployment.before = deployment.look()


def test_case_10_with_equal_size_and_mtime_the_imported_code_is_the_old_one_after_a_rollback(
    deployment: Gated,
) -> None:
    live = deployment.site / OVERLAID
    overlay = deployment.payload / "overlay/dflash_info.py"
    overlay.write_text(live.read_text().replace("16", "32"))
    then = 1_700_000_000
    os.utime(live, (then, then))
    assert width(deployment) == 16
    deployment.rollout().expect(0)
    assert width(deployment) == 32
    os.utime(live, (then, then))
    assert width(deployment) == 32  # and its bytecode says: made of a file of this size and time
    deployment.rollback().expect(0)
    assert live.stat().st_size == overlay.stat().st_size
    os.utime(live, (then, then))
    assert width(deployment) == 16


def test_case_11_a_step_that_fails_before_anything_changed_rolls_nothing_back_and_says_so(
    deployment: Gated,
) -> None:
    old = main_pid(deployment)
    broken = make_payload(deployment.folder / "broken", version="0.2.0", broken="check")
    outcome = deployment.rollout(broken).expect(1, "smoke").outcome
    assert "nothing was rolled back, because nothing had been changed" in outcome["reason"], outcome
    assert outcome["state"] == "nothing was changed"
    assert main_pid(deployment) == old


def test_case_12_a_rolled_back_run_ends_with_another_code_than_0_and_says_so(deployment: Gated) -> None:
    deployment.host.mood(when={"DDTREE": {"wrong_tokens": 0}})
    outcome = deployment.rollout().expect(1, "tokens").outcome
    assert "rolled back: " in outcome["reason"] and outcome["state"] == "as before", outcome
    assert verdict_of(deployment, outcome["run"]) == "bad"


def verdict_of(deployment: Gated, run: str) -> str:
    """Of this run; the host has had others."""
    done = deployment.controller.run("releases", deployment.host.name).expect(0)
    (event,) = [e for e in done.events if e["e"] == "releases"]
    (verdict,) = (r["verdict"] for r in event["releases"] if r["run"] == run)
    assert isinstance(verdict, str)
    return verdict


def test_case_15_gates_that_nobody_asked_are_no_pass(deployment: Gated) -> None:
    """All gates but the last have passed when the runner is killed: the release is not one that passed."""
    deployment.gate("soak")
    running = deployment.begin()
    host = deployment.host
    host.run("systemctl kill --kill-who=all --signal=KILL 'ddtree-deploy-*.service'")
    died = running.finish().expect(3)
    assert died.verdicts()["benchmark"] == "pass" and "soak" not in died.verdicts()
    deployment.controller.run("recover", host.name).expect(0)
    assert verdict_of(deployment, died.outcome["run"]) == "rolled-back"
    assert deployment.algorithm() == "DFLASH"


def test_case_15_a_gate_with_nothing_to_judge_is_no_pass(deployment: Gated) -> None:
    steps = ["lock", "stage", {"health": {"requests": 2, "need": 2, "max_new_tokens": 4}}, "tokens", "unlock"]
    file = deployment.folder / "verify.yaml"
    file.write_text(yaml.safe_dump({"schema": 1, "name": "verify", "action": "verify", "steps": steps}))
    done = deployment.controller.run("verify", deployment.host.name, "--playbook", str(file)).expect(7)
    assert done.verdicts()["health"] == "pass" and done.outcome["step"] == "tokens", done


def test_case_18_an_old_scheduler_that_holds_the_port_is_named_before_anything_is_started(
    deployment: Gated,
) -> None:
    host = deployment.host
    host.run("systemctl stop sglang")
    host.run(f'systemd-run -q --unit=lab-old -p KillMode=process {VENV}/bin/python -I -c "{LISTEN}"')
    holder = "cat /run/lab-old-scheduler 2>/dev/null || true"
    wait_for(lambda: host.run(holder).stdout != "", "the old one to listen")
    pid = host.run(holder).stdout
    try:
        done = deployment.rollout().expect(1)
        reason = done.outcome["reason"]
        assert re.search(rf"\b{pid}\b", reason) and "python" in reason and "30000" in reason, done
        assert "start" not in done.verdicts(), done
        assert host.run(f"cat /proc/{pid}/comm").stdout  # it is not ours to end
        assert host.unit()["ActiveState"] == "inactive"
    finally:
        host.run("systemctl kill --signal=KILL lab-old; rm -f /run/lab-old-scheduler; systemctl start sglang")
    wait_for(host.generates, "tokens")


def signed_by(deployment: Gated, key: Path | None) -> Result:
    entry(deployment, sign_with=None if key is None else str(key))
    return deployment.rollout()


def test_a_host_that_asks_for_signatures_takes_a_payload_of_its_signers_only(deployment: Gated) -> None:
    keys = {name: deployment.folder / name for name in ("ada", "eve")}
    for key in keys.values():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    asked = deployment.host.path("/etc/ddtree-deploy/allowed_signers")
    asked.parent.mkdir()
    asked.write_text(f"ada@desk {keys['ada'].with_suffix('.pub').read_text()}")
    old = main_pid(deployment)
    try:
        missing = signed_by(deployment, None).expect(2)
        assert "is not signed" in missing.outcome["reason"], missing
        wrong = signed_by(deployment, keys["eve"]).expect(2)
        assert "signed with a key that is not in" in wrong.outcome["reason"], wrong
        assert main_pid(deployment) == old and not list(deployment.site.rglob("*tiny*"))
        assert width(deployment) == 16
        signed_by(deployment, keys["ada"]).expect(0)
        assert width(deployment) == 32
        deployment.rollback().expect(0)
    finally:
        asked.unlink()
        asked.parent.rmdir()
