"""Whole rollouts to a systemd host over SSH: the launch edit, every way back, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.controller import Controller, Result
from tests.lab.fake_venv import VENV, site_packages
from tests.lab.hosts import Host, wait_for
from tests.lab.image import COMMAND, MOOD, Image
from tests.lab.payloads import OVERLAID, make_payload, write_playbooks
from tests.lab.tree import State, difference, stale_bytecode, state

pytestmark = pytest.mark.lab
AddHosts = Callable[..., list[Host]]
LAUNCH = {"set": {"speculative-algorithm": "DDTREE", "speculative-ddtree-budget": "16"}}
UNITS = "/etc/systemd/system"
DROP_IN = f"{UNITS}/sglang.service.d/zzzz-ddtree-deploy.conf"


class Deployment:
    """One host, a payload, playbooks: what a user has in a folder. And how the host was before."""

    def __init__(
        self, host: Host, folder: Path, *, service: dict[str, Any] | None = None, **steps: Any
    ) -> None:
        self.host, self.folder = host, folder
        self.controller = Controller(folder, [host])
        entry = host.inventory()
        entry["service"] |= {"launch": LAUNCH, "stop": {"drain": "5s", "limit": "20s"}} | (service or {})
        entry["service"].setdefault("start", {"stalled_after": "60s", "limit": "120s"})
        self.controller.write_hosts({host.name: entry})
        write_playbooks(folder, **steps)
        self.payload = make_payload(folder / "payload")
        self.site = site_packages(host.root)
        self.before = self.look()

    def look(self) -> tuple[State, State]:
        """The venv, and everything that systemd reads."""
        return state(self.host.path(VENV)), state(self.host.path(UNITS))

    def rollout(self, payload: Path | None = None, **more: Any) -> Result:
        words = ["--payload", str(payload or self.payload), "--playbook", str(self.folder / "rollout.yaml")]
        return self.controller.run("rollout", self.host.name, "--yes", *words, **more)

    def plan(self) -> Result:
        words = ["--payload", str(self.payload), "--playbook", str(self.folder / "rollout.yaml")]
        return self.controller.run("plan", self.host.name, *words)

    def settings(self, **changes: Any) -> None:
        """Change the service's entry in hosts.yaml."""
        hosts = yaml.safe_load((self.folder / "hosts.yaml").read_text())["hosts"]
        for fields in hosts.values():
            fields["service"] |= changes
        self.controller.write_hosts(hosts)

    def rollback(self) -> Result:
        words = ["--playbook", str(self.folder / "rollback.yaml")]
        return self.controller.run("rollback", self.host.name, "--yes", *words)

    def assert_as_before(self) -> None:
        """The venv and the units are what they were; nothing of ours is left beside the state."""
        for before, after in zip(self.before, self.look(), strict=True):
            assert difference(before, after) == []
        self.assert_clean()

    def assert_clean(self) -> None:
        """No valid stale bytecode, and no temporary file of ours anywhere but in the state folder."""
        assert stale_bytecode(self.host.path(VENV)) == []
        left = self.host.run(
            "find / -xdev \\( -path /usr -o -path /proc -o -path /sys -o -path /var/lib/ddtree-deploy \\) "
            "-prune -o "
            "\\( -iname '*ddtree-deploy*' -o -iname '.ddtree*' \\) -print"
        ).stdout.splitlines()
        assert [path for path in left if path != DROP_IN and not path.startswith("/var/log")] == []

    def argv(self) -> list[str]:
        """The command line of the service's main process."""
        pid = self.host.unit()["MainPID"]
        if pid == "0":
            return []
        return self.host.run(f"tr '\\0' '\\n' < /proc/{pid}/cmdline").stdout.splitlines()

    def algorithm(self) -> str:
        argv = self.argv()
        return argv[argv.index("--speculative-algorithm") + 1] if argv else ""


@pytest.fixture
def deployment(host: Host, tmp_path: Path) -> Deployment:
    """A host whose service runs the chain and generates."""
    wait_for(host.generates, "tokens")
    return Deployment(host, tmp_path / "user")


def test_a_rollout_changes_files_and_command_and_a_rollback_takes_both_back(deployment: Deployment) -> None:
    host = deployment.host
    old = host.unit()["MainPID"]
    done = deployment.rollout().expect(0)
    assert set(done.verdicts().values()) == {"pass"}, done
    assert host.unit()["MainPID"] != old and host.generates()
    assert deployment.algorithm() == "DDTREE"
    argv = deployment.argv()
    assert argv[argv.index("--speculative-ddtree-budget") + 1] == "16"
    assert (deployment.site / OVERLAID).read_text().startswith("BLOCK = 32")
    venv = deployment.before[0], deployment.look()[0]
    changed = {line.rsplit("site-packages/", 1)[-1].split(":")[0] for line in difference(*venv)}
    assert OVERLAID in changed and "tiny_ddtree/module0.py" in changed
    assert all(name.startswith(("tiny", "sglang/srt/speculative/dflash_info")) for name in changed), changed
    assert host.path(DROP_IN).exists()
    deployment.assert_clean()

    deployment.rollback().expect(0)
    assert deployment.algorithm() == "DFLASH" and host.generates()
    deployment.assert_as_before()


def test_a_reboot_after_a_rollout_serves_the_new_release(deployment: Deployment) -> None:
    deployment.rollout().expect(0)
    after = deployment.look()
    deployment.host.reboot()
    wait_for(deployment.host.generates, "tokens")
    assert deployment.algorithm() == "DDTREE"
    for then, now in zip(after, deployment.look(), strict=True):
        assert difference(then, now) == []
    deployment.rollback().expect(0)
    deployment.assert_as_before()


@pytest.mark.parametrize(("broken", "step"), [("syntax", "local"), ("check", "smoke")])
def test_a_broken_payload_never_stops_the_service(deployment: Deployment, broken: str, step: str) -> None:
    old = deployment.host.unit()
    deployment.rollout(make_payload(deployment.folder / "broken", broken=broken)).expect(1, step)
    now = deployment.host.unit()
    assert (now["MainPID"], now["ActiveState"]) == (old["MainPID"], "active")
    deployment.assert_as_before()


def test_what_the_controller_cannot_compile_is_stopped_on_the_host_too(host: Host, tmp_path: Path) -> None:
    wait_for(host.generates, "tokens")
    deployment = Deployment(host, tmp_path)
    playbook = tmp_path / "rollout.yaml"
    playbook.write_text(playbook.read_text().replace("- local\n", ""))
    old = host.unit()["MainPID"]
    done = deployment.rollout(make_payload(tmp_path / "broken", broken="syntax")).expect(1, "compile")
    assert "module0.py" in done.outcome["reason"]
    assert host.unit()["MainPID"] == old
    deployment.assert_as_before()


BAD_MOODS = {
    "never-answers": ({"hung": True}, "start"),
    "answers-empty": ({"no_tokens": True}, "start"),
    "crash-loop": ({"exit_at_once": 3}, "start"),
    "stalls-while-loading": ({"stall": True}, "start"),
    "hangs-at-the-second-prompt": ({"hang_after_requests": 2}, "health"),
    "other-tokens": ({"wrong_tokens": 3}, "tokens"),
    "loses-requests": ({"fail_every": 3}, "health"),
}


@pytest.mark.parametrize("name", BAD_MOODS)
def test_a_new_server_that_fails_a_gate_is_taken_back(host: Host, tmp_path: Path, name: str) -> None:
    mood, step = BAD_MOODS[name]
    wait_for(host.generates, "tokens")
    host.mood(when={"DDTREE": mood})
    short = {"start": {"stalled_after": "10s", "limit": "60s"}}
    health = {"requests": 3, "need": 3, "max_new_tokens": 4, "deadline": "10s"}
    deployment = Deployment(host, tmp_path, service=short, health=health)
    deployment.rollout().expect(1, step)
    assert deployment.algorithm() == "DFLASH" and host.generates()
    deployment.assert_as_before()
    assert host.run("systemctl is-failed sglang", check=False).stdout == "active\n"


def test_an_inactive_service_stays_inactive(add_hosts: AddHosts, tmp_path: Path) -> None:
    (host,) = add_hosts(1, Image(enabled=False))
    host.mood(when={"DDTREE": {"hung": True}})
    short = {"start": {"stalled_after": "10s", "limit": "60s"}}
    undecidable = dict.fromkeys(("baseline", "tokens", "acceptance", "benchmark"))
    for name in ("blind", "told"):
        (tmp_path / name).mkdir()
    blind = Deployment(host, tmp_path / "blind")
    blind.rollout().expect(7, "baseline")  # nothing to compare with, so nothing is touched
    blind.assert_as_before()
    deployment = Deployment(host, tmp_path / "told", service=short, **undecidable)
    deployment.rollout().expect(1)
    assert host.unit()["ActiveState"] == "inactive" and not host.generates()
    assert host.run("systemctl is-enabled sglang", check=False).stdout == "disabled\n"
    deployment.assert_as_before()


def test_a_shell_wrapper_is_refused_and_shown(add_hosts: AddHosts, tmp_path: Path) -> None:
    (host,) = add_hosts(1, Image(command=f"/bin/sh -c 'exec {COMMAND}'"))
    wait_for(host.generates, "tokens")
    deployment = Deployment(host, tmp_path)
    old = host.unit()["MainPID"]
    done = deployment.rollout().expect(2)
    assert "/bin/sh" in done.outcome["reason"] and "sglang" in done.outcome["reason"], done
    assert host.unit()["MainPID"] == old
    assert not host.path("/var/lib/ddtree-deploy").exists()
    deployment.assert_as_before()


ID = "4f2a9c0d7b1e4f2a9c0d7b1e4f2a9c0d7b1e4f2a9c0d7b1e4f2a9c0d7b1e4f2a"


@pytest.mark.parametrize("launch", [LAUNCH, {}], ids=["edits", "files-only"])
def test_a_service_in_a_container_is_named_and_refused(
    add_hosts: AddHosts, tmp_path: Path, launch: dict[str, Any]
) -> None:
    """A unit that starts a container: a client waits, the server is in a world of its own."""
    docker = (
        "#!/bin/sh\n"
        f"exec systemd-run --scope --quiet --unit=docker-{ID} "
        f"unshare --pid --fork --kill-child --mount-proc {COMMAND}\n"
    )
    client = "/opt/docker/docker"
    image = Image(command=f"{client} start --attach sglang", files={client: docker})
    (host,) = add_hosts(1, image, boot=False)
    host.path(client).chmod(0o755)
    host.boot()
    wait_for(host.generates, "tokens")
    deployment = Deployment(host, tmp_path, service={"launch": launch})
    done = deployment.rollout().expect(2)
    assert "container" in done.outcome["reason"] and "docker" in done.outcome["reason"], done
    assert not host.path("/var/lib/ddtree-deploy").exists()
    deployment.assert_as_before()


def test_case_22_a_file_edited_by_hand_is_drift_and_nothing_is_touched(deployment: Deployment) -> None:
    edited = deployment.site / OVERLAID
    edited.write_text(edited.read_text() + "# by hand\n")
    deployment.before = deployment.look()
    old = deployment.host.unit()["MainPID"]
    done = deployment.rollout().expect(6)
    assert "dflash_info.py" in done.outcome["reason"]
    assert deployment.host.unit()["MainPID"] == old
    deployment.assert_as_before()


def test_other_drop_ins_of_the_unit_survive_rollout_and_rollback(host: Host, tmp_path: Path) -> None:
    host.ssh(
        f"mkdir -p {UNITS}/sglang.service.d && cd {UNITS}/sglang.service.d && "
        "printf '[Service]\\nEnvironment=GREETING=50%%%%\\n' > 10-own.conf && systemctl daemon-reload && "
        "systemctl restart sglang"
    )
    wait_for(host.generates, "tokens")
    deployment = Deployment(host, tmp_path)
    deployment.rollout().expect(0)
    pid = host.unit()["MainPID"]
    assert "GREETING=50%" in host.run(f"tr '\\0' '\\n' < /proc/{pid}/environ").stdout.splitlines()
    deployment.rollback().expect(0)
    deployment.assert_as_before()


def test_words_with_percent_dollar_and_spaces_reach_the_server_as_they_are(
    host: Host, tmp_path: Path
) -> None:
    wait_for(host.generates, "tokens")
    odd = "50% of $HOME, 'quoted' \"twice\" \\ and ${PATH}"
    launch = {"set": {"speculative-algorithm": "DDTREE", "served-model-name": odd}}
    deployment = Deployment(host, tmp_path, service={"launch": launch})
    deployment.rollout().expect(0)
    argv = deployment.argv()
    assert argv[argv.index("--served-model-name") + 1] == odd
    assert argv[argv.index("--fake-control") + 1] == MOOD
    deployment.rollback().expect(0)
    deployment.assert_as_before()
