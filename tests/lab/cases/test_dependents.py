"""Case 25: what a stop of the service takes down with it comes back, whatever way the run ends."""

from __future__ import annotations

import shlex
import signal

import pytest
import yaml

from tests.lab.beside import UNITS, Beside, Make, service
from tests.lab.controller import Running
from tests.lab.gated import GATE, Gated
from tests.lab.hosts import wait_for

pytestmark = pytest.mark.lab
OURS = "sglang.service"
AFTER = f"After={OURS}"
# One of each kind, two more levels over a service and over a target, and one that is down.
ALL = {
    "lab-requires.service": service(f"Requires={OURS}\n{AFTER}"),
    "lab-requisite.service": service(f"Requisite={OURS}\n{AFTER}"),
    "lab-binds.service": service(f"BindsTo={OURS}\n{AFTER}"),
    "lab-part.service": service(f"PartOf={OURS}"),
    "lab-propagates.service": service(f"StopPropagatedFrom={OURS}\n{AFTER}"),
    "lab-second.service": service("Requires=lab-requires.service\nAfter=lab-requires.service"),
    "lab-third.service": service("PartOf=lab-second.service"),
    "lab-stack.target": f"[Unit]\nRequires={OURS}\n{AFTER}\n",
    "lab-of-target.service": service("PartOf=lab-stack.target"),
    "lab-of\\x2dtarget@1.service": service("PartOf=lab-stack.target"),
    "lab-wants.service": service(f"Wants={OURS}\n{AFTER}"),
    "lab-down.service": service(f"PartOf={OURS}"),
}
EDGES = {
    "lab-edge.service": service(f"Requires={OURS}\n{AFTER}"),
    "lab-over.target": "[Unit]\nBindsTo=lab-edge.service\nAfter=lab-edge.service\n",
}
UP = [name for name in ALL if name != "lab-down.service"]
STOPPED = {name for name in UP if name != "lab-wants.service"}


def test_case_25_each_kind_of_dependent_is_named_and_comes_back_after_rollout_and_rollback(
    deployment: Gated, beside: Make
) -> None:
    units = beside(ALL, UP)
    (changes,) = [e for e in deployment.plan().expect(0).events if e["e"] == "changes"]
    assert set(changes["dependents"]) == STOPPED
    done = deployment.rollout().expect(0)
    assert units.as_wanted() == "" and deployment.algorithm() == "DDTREE", done
    deployment.rollback().expect(0)
    assert units.as_wanted() == "" and deployment.algorithm() == "DFLASH"


@pytest.mark.parametrize("step", ["start", "health"])
def test_case_25_they_come_back_after_a_rollout_that_fails(
    deployment: Gated, beside: Make, step: str
) -> None:
    units = beside(ALL, UP)
    mood = {"exit_at_once": 3} if step == "start" else {"fail_every": 2}
    deployment.host.mood(when={"DDTREE": mood})
    deployment.rollout().expect(1, step)
    assert units.as_wanted() == "" and deployment.algorithm() == "DFLASH"


def kill_runner(deployment: Gated) -> None:
    deployment.host.run("systemctl kill --kill-who=all --signal=KILL 'ddtree-deploy-*.service'")


def power_cut(deployment: Gated, running: Running) -> None:
    deployment.host.power_cut()
    running.signal(signal.SIGKILL)
    running.process.wait(60)
    deployment.host.boot()


def recovered(deployment: Gated) -> bool:
    said = "! systemctl list-units --all --plain --no-legend 'ddtree-deploy-*' | grep -q ."
    return deployment.host.run(said, check=False).returncode == 0


@pytest.mark.parametrize("enabled", [False, True], ids=["started-by-hand", "started-at-boot"])
def test_case_25_after_a_power_cut_between_stop_and_start_they_are_up_with_no_command(
    deployment: Gated, beside: Make, enabled: bool
) -> None:
    texts = ALL
    if enabled:
        texts = {
            name: text + ("[Install]\nWantedBy=multi-user.target\n" if name in UP else "")
            for name, text in ALL.items()
        }
    units = beside(texts, UP)
    if enabled:
        deployment.host.run(f"systemctl enable {shlex.join(UP)}")
        deployment.before = deployment.look()
    deployment.gate("start")
    power_cut(deployment, deployment.begin())
    wait_for(deployment.host.generates, "tokens from the host that booted by itself")
    wait_for(lambda: recovered(deployment), "the recovery to be over")
    assert deployment.algorithm() == "DFLASH"
    up = [name for name in UP if name != "lab-wants.service" or enabled]  # the boot does not start that one
    states = units.states()
    assert {name: states[name] for name in up} == dict.fromkeys(up, "active"), states
    assert states["lab-down.service"] == "inactive"
    if enabled:
        deployment.assert_as_before()
        deployment.host.run(f"systemctl disable {shlex.join(UP)}")
        deployment.before = deployment.look()


@pytest.mark.parametrize("step", ["install", "start", "health"])
def test_case_25_recover_brings_them_back_after_the_runner_was_killed(
    deployment: Gated, beside: Make, step: str
) -> None:
    units = beside(ALL, UP)
    deployment.gate(step)
    running = deployment.begin()
    kill_runner(deployment)
    running.finish().expect(3)
    deployment.controller.run("recover", deployment.host.name).expect(0)
    assert units.as_wanted() == "" and deployment.algorithm() == "DFLASH"


def test_case_25_a_runner_killed_while_a_dependent_still_ends_leaves_nothing_down(
    deployment: Gated, beside: Make
) -> None:
    """The service waits for what is ordered after it: active, with a stop that has not begun."""
    slow = service(f"Requires={OURS}\n{AFTER}", more="ExecStop=/bin/sh -c 'sleep 4'")
    units = beside({"lab-slow.service": slow})
    words = ["--payload", str(deployment.payload), "--playbook", str(deployment.folder / "rollout.yaml")]
    running = deployment.controller.start("rollout", deployment.host.name, "--yes", *words)
    running.step("stop")
    wait_for(lambda: units.states()["lab-slow.service"] == "deactivating", "the dependent to end")
    kill_runner(deployment)
    running.finish().expect(3)
    deployment.controller.run("recover", deployment.host.name).expect(0)
    units.settle()
    assert deployment.host.generates() and deployment.algorithm() == "DFLASH"


def test_case_25_a_dependent_that_the_new_release_does_not_suit_is_a_failed_gate(
    deployment: Gated, beside: Make
) -> None:
    """It ends at once beside a new server: named, undone, and up again beside the old one."""
    choosy = "/bin/sh -c 'pgrep -f [s]peculative-algorithm.DFLASH >/dev/null && exec sleep infinity; exit 4'"
    units = beside({"lab-choosy.service": service(f"Requires={OURS}\n{AFTER}", choosy)})
    done = deployment.rollout().expect(1, "start")
    assert "lab-choosy.service" in done.outcome["reason"] and done.outcome["state"] == "as before", done
    assert units.as_wanted() == "" and deployment.algorithm() == "DFLASH"


def test_case_25_a_dependent_that_ends_some_time_after_the_start_is_seen_by_the_last_look(
    deployment: Gated, beside: Make
) -> None:
    old = "pgrep -f [s]peculative-algorithm.DFLASH >/dev/null && exec sleep infinity"
    late = f"/bin/sh -c '{old}; until [ -e /run/lab-late ]; do sleep .1; done; exit 4'"
    units = beside({"lab-late.service": service(f"Requires={OURS}\n{AFTER}", late)})
    deployment.gate("unlock")
    running = deployment.begin()
    deployment.host.run("touch /run/lab-late")
    wait_for(lambda: units.states()["lab-late.service"] == "failed", "the dependent to end")
    deployment.open()
    done = running.finish().expect(1, "unlock")
    assert "lab-late.service (failed (exit-code))" in done.outcome["reason"], done
    assert units.as_wanted() == "" and deployment.algorithm() == "DFLASH"
    deployment.host.run("rm /run/lab-late")


def test_case_25_what_a_dependent_alone_keeps_up_comes_back_with_it(deployment: Gated, beside: Make) -> None:
    units = beside(
        {
            "lab-helper.service": service("StopWhenUnneeded=yes"),
            "lab-edge.service": service(
                f"Requires={OURS} lab-helper.service\nAfter=lab-helper.service {OURS}"
            ),
        },
    )
    deployment.rollout().expect(0)
    assert units.as_wanted() == ""
    deployment.rollback().expect(0)
    assert units.as_wanted() == ""


def test_case_25_one_that_systemd_run_made_is_refused_because_it_could_not_come_back(
    deployment: Gated, beside: Make
) -> None:
    beside({})
    host = deployment.host
    host.run(f"systemd-run --quiet --unit=lab-passing --property=PartOf={OURS} /bin/sleep infinity")
    old = host.unit()["MainPID"]
    done = deployment.rollout().expect(2)
    assert "lab-passing.service" in done.outcome["reason"] and "systemd-run" in done.outcome["reason"], done
    assert host.unit()["MainPID"] == old
    host.run("systemctl stop lab-passing")


def test_case_25_a_sweep_restarts_them_each_time_and_leaves_them_up(deployment: Gated, beside: Make) -> None:
    units = beside({"lab-edge.service": service(f"Requires={OURS}\n{AFTER}")})
    words = ["--budgets", "4", "--passes", "1", "--rounds", "5", "--yes"]
    words += ["--playbook", str(deployment.folder / "rollout.yaml")]
    done = deployment.controller.run("sweep", deployment.host.name, *words).expect(0)
    (shown,) = [e for e in done.events if e["e"] == "plan"]
    assert shown["dependents"] == ["lab-edge.service"], shown
    assert units.as_wanted() == "" and deployment.algorithm() == "DFLASH"


def test_case_25_after_a_power_cut_past_the_decision_what_boots_is_up_beside_the_new_release(
    deployment: Gated, beside: Make
) -> None:
    """The run died after it had decided: its guard finishes it, and starts the service anew."""
    host = deployment.host
    units = beside({name: text + "[Install]\nWantedBy=multi-user.target\n" for name, text in EDGES.items()})
    host.run(f"systemctl enable {' '.join(EDGES)}")
    deployment.before = deployment.look()
    deployment.gate("health")
    running = deployment.begin()
    guard = f"{UNITS}/{OURS}.d/zzzz-ddtree-deploy-guard.conf"
    text = host.path(guard).read_bytes()
    deployment.open()
    run = running.finish().expect(0).outcome["run"]
    (journal,) = host.path("/var/lib/ddtree-deploy").glob(f"sites/*/runs/{run}/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    decided = next(i for i, line in enumerate(lines) if b'"e":"commit"' in line)
    journal.write_bytes(b"".join(lines[: decided + 1]))
    host.path(guard).write_bytes(text)
    host.power_cut()
    host.boot()
    wait_for(host.generates, "tokens")
    wait_for(lambda: not host.path(guard).exists(), "the guard to be removed")
    assert deployment.algorithm() == "DDTREE"
    units.settle()
    host.run(f"rm -f {GATE} {GATE}.reached")
    deployment.rollback().expect(0)
    deployment.assert_as_before()
    host.run(f"systemctl disable {' '.join(EDGES)}")
    deployment.before = deployment.look()


def test_case_25_a_dependent_that_does_not_come_back_in_the_undo_is_named_and_recover_goes_on(
    deployment: Gated, beside: Make
) -> None:
    host = deployment.host
    host.run("touch /run/lab-allowed")
    once = "/bin/sh -c 'test -e /run/lab-allowed && exec sleep infinity'"
    units = beside({"lab-once.service": service(f"PartOf={OURS}\n{AFTER}", once)})
    host.run("rm /run/lab-allowed")
    done = deployment.rollout().expect(3)
    assert "rollback incomplete" in done.outcome["reason"], done
    assert done.outcome["reason"].count("lab-once.service") >= 2, done
    assert host.generates() and deployment.algorithm() == "DFLASH"
    host.run("touch /run/lab-allowed")
    deployment.controller.run("recover", host.name).expect(0)
    assert units.as_wanted() == ""


TRIGGERS = {
    "upheld": {"lab-keeper.service": service(f"Upholds={OURS}")},
    "upheld-over-two": {
        "lab-keeper.service": service(f"Upholds={OURS}"),
        "lab-keepers.service": service("Upholds=lab-keeper.service"),
    },
    "timer": {"lab-again.timer": f"[Timer]\nOnUnitInactiveSec=100ms\nAccuracySec=1ms\nUnit={OURS}\n"},
    "path": {"lab-again.path": f"[Path]\nPathExists=/\nUnit={OURS}\n"},
}


@pytest.mark.parametrize("name", TRIGGERS)
def test_case_25_what_starts_the_service_by_itself_is_stopped_before_and_started_again(
    deployment: Gated, beside: Make, name: str
) -> None:
    units = beside(TRIGGERS[name])
    assert all(unit in str(deployment.plan().expect(0)) for unit in TRIGGERS[name])
    deployment.rollout().expect(0)
    assert units.as_wanted() == "" and deployment.algorithm() == "DDTREE"
    deployment.rollback().expect(0)
    assert units.as_wanted() == "" and deployment.algorithm() == "DFLASH"


def test_case_25_a_socket_that_would_start_it_over_a_dependent_does_not_in_the_middle(
    deployment: Gated, beside: Make
) -> None:
    """Its service is down and needs ours: one connection would start both."""
    listen = "[Socket]\nListenStream=127.0.0.1:31111\n"
    front = service(f"Requires={OURS}\n{AFTER}", "/bin/sleep 600")
    units = beside({"lab-front.socket": listen, "lab-front.service": front}, ["lab-front.socket"])
    deployment.gate("install")
    running = deployment.begin()
    knock = "exec 3<>/dev/tcp/127.0.0.1/31111"
    assert deployment.host.run(f"bash -c '{knock}'", check=False).returncode != 0, "nobody listens meanwhile"
    deployment.open()
    running.finish().expect(0)
    assert units.as_wanted() == ""
    deployment.rollback().expect(0)
    assert units.as_wanted() == ""


def test_case_25_what_a_target_upholds_is_refused_before_anything_is_touched(
    deployment: Gated, beside: Make
) -> None:
    beside({"lab-all.target": f"[Unit]\nUpholds={OURS}\n"})
    old = deployment.host.unit()["MainPID"]
    done = deployment.rollout().expect(2)
    assert "lab-all.target" in done.outcome["reason"] and "Upholds=" in done.outcome["reason"], done
    assert deployment.host.unit()["MainPID"] == old


def test_case_25_what_a_start_stops_comes_back_where_the_service_was_down(
    deployment: Gated, beside: Make
) -> None:
    """A stand-in serves elsewhere while ours is down; they exclude each other."""
    host = deployment.host
    file = deployment.folder / "rollout.yaml"
    book = yaml.safe_load(file.read_text())
    comparing = ("baseline", "tokens", "acceptance", "benchmark")
    book["steps"] = [
        s for s in book["steps"] if (s if isinstance(s, str) else next(iter(s))) not in comparing
    ]
    file.write_text(yaml.safe_dump(book, sort_keys=False))
    host.run("systemctl stop sglang")
    texts = {
        "lab-standin.service": service(f"Conflicts={OURS}"),
        "lab-over.service": service("Requires=lab-standin.service"),
        "lab-part.service": service(f"PartOf={OURS}"),
    }
    units = Beside(host, texts, texts)
    deployment.before = deployment.look()
    try:
        assert "lab-standin.service" in str(deployment.plan().expect(0))
        host.mood(when={"DDTREE": {"exit_at_once": 3}})
        deployment.rollout().expect(1, "start")
        assert units.as_wanted() == "" and host.unit()["ActiveState"] == "inactive"
        host.mood()
        deployment.rollout().expect(0)
        assert deployment.algorithm() == "DDTREE" and units.states()["lab-standin.service"] == "inactive"
        deployment.rollback().expect(0)
        assert units.as_wanted() == "" and host.unit()["ActiveState"] == "inactive"
        deployment.assert_as_before()
    finally:
        units.remove()
        deployment.before = deployment.look()


def test_case_25_a_slow_dependent_is_waited_for(deployment: Gated, beside: Make) -> None:
    """Its start takes longer than the server's own; nobody calls it down meanwhile."""
    slow = service(f"Requires={OURS}\n{AFTER}", more="ExecStartPre=/bin/sleep 6")
    units = beside({"lab-slow.service": slow})
    deployment.rollout().expect(0)
    assert units.as_wanted() == ""
    deployment.rollback().expect(0)
    assert units.as_wanted() == ""
