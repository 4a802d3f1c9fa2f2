"""Supervised and adopted services: real processes of the fake server on loopback."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_deploy.onhost.context import StepFailed, StepSkipped
from ddtree_deploy.onhost.service import proc, stopping
from ddtree_deploy.onhost.service.base import ServiceError
from ddtree_deploy.onhost.service.sglang_api import Endpoint, generate, server_info
from ddtree_deploy.onhost.wire.protocol import Launch, StepSpec
from tests.ports import free_port

from .serving_support import Lab, do, journal_text, lab_at, launch, of, port_open, undo, until


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_at(tmp_path) as made:
        yield made


def algorithm(lab: Lab) -> object:
    return server_info(Endpoint(f"http://127.0.0.1:{lab.port}"))["speculative_algorithm"]


def test_a_supervised_service_starts_stops_and_leaves_nothing(lab: Lab) -> None:
    ctx = lab.context(lab.service(launch=launch(lab, "--speculative-algorithm", "DFLASH")), "stop", "start")
    control = of(ctx)
    assert control.describe().state == "absent"
    assert control.describe().problem == ""
    record = control.record(ctx.backup_dir)
    assert (record.active, record.generated, record.definition) == (False, False, None)
    control.apply_launch(ctx)
    assert do(ctx, "start").startswith("generates after")
    facts = control.describe()
    assert (facts.state, facts.listening, facts.problem) == ("active", True, "")
    members = control.footprint().members
    assert len(members) == 2, "the server and its scheduler"
    assert all(os.getsid(pid) != os.getsid(0) for pid, _ in members), "it must outlive us"
    said = stopping.stop(ctx, control, limit_s=20, kill=False)
    assert said == f"2 processes ended, port {lab.port} is free"
    assert not port_open(lab.port)
    assert not control.footprint().members and not control.active()
    assert control.alive() == (False, "it ended with exit status 0")


def test_the_first_start_needs_a_whole_command(lab: Lab) -> None:
    control = of(lab.context(lab.service()))
    assert "`launch.command` must give its whole command line" in control.describe().problem
    with pytest.raises(ServiceError):
        control.future_argv()


def test_an_adopted_service_comes_back_just_as_it_was(lab: Lab) -> None:
    env = {"FAKE_WORDS": "two words ☃", "HF_TOKEN": "hf_verysecret"}
    old = lab.start_by_hand("--model-path", "a b/größe", "--speculative-algorithm", "DFLASH", env=env)
    service = lab.service("adopted", launch=Launch(set={"speculative-algorithm": "DDTREE"}, env={"NEW": "1"}))
    ctx = lab.context(service, "stop", "start")
    control = of(ctx)
    before = proc.argv(old.pid)
    facts = control.describe()
    assert (facts.problem, facts.pid, facts.command) == ("", old.pid, before)
    assert facts.new_command == [*before[:-1], "DDTREE"]
    record = control.record(ctx.backup_dir)
    assert record.active and record.generated
    do(ctx, "stop")
    assert old.wait(10) == 0
    control.apply_launch(ctx)
    do(ctx, "start")
    assert algorithm(lab) == "DDTREE"
    new = of(ctx).describe().pid
    assert proc.environ(new)["NEW"] == "1" and proc.environ(new)["FAKE_WORDS"] == env["FAKE_WORDS"]
    control.restore_launch(ctx, ctx.backup_dir)
    assert undo(ctx) == []
    again = of(ctx).describe().pid
    assert proc.argv(again) == before
    assert proc.cwd(again) == str(lab.root)
    kept = {k: v for k, v in proc.environ(again).items() if k != "DDTREE_SERVICE"}
    assert kept.items() >= env.items() and "NEW" not in kept
    assert "hf_verysecret" not in journal_text(ctx) + json.dumps(facts.__dict__)
    launch_file = lab.site / "services" / "sglang" / "launch.json"
    assert stat.S_IMODE(launch_file.stat().st_mode) == 0o600


def test_edits_are_always_made_from_the_original(lab: Lab) -> None:
    lab.start_by_hand("--speculative-algorithm", "DFLASH")
    for edits in (Launch(set={"first": "1"}), Launch(set={"second": "2"})):
        ctx = lab.context(lab.service("adopted", launch=edits), "stop", "start")
        control = of(ctx)
        control.record(ctx.backup_dir)
        do(ctx, "stop")
        control.apply_launch(ctx)
        do(ctx, "start")
    argv = of(ctx).running_argv()
    assert argv[-2:] == ["--second", "2"] and "--first" not in argv
    assert of(ctx).describe().problem == ""


def test_a_shell_wrapper_is_shown_and_refused_only_if_it_has_to_be_edited(lab: Lab) -> None:
    script = lab.root / "serve.sh"
    command = " ".join(lab.command("--api-key", "s3cret-key"))
    script.write_text(f"#!/bin/sh\n{command} && true\n")
    script.chmod(0o755)
    service = lab.service(launch=Launch(command=[str(script)]))
    ctx = lab.context(service)
    control = of(ctx)
    control.apply_launch(ctx)
    edited = of(lab.context(lab.service(launch=Launch(set={"a": "1"}))))
    assert f"{script} is a shell script" in edited.describe().problem
    unedited = of(lab.context(lab.service()))
    assert unedited.describe().problem == ""


def test_nothing_to_adopt_is_said(lab: Lab) -> None:
    facts = of(lab.context(lab.service("adopted"))).describe()
    assert f"nothing listens on port {lab.port}" in facts.problem
    assert facts.state == "absent"


def test_a_port_held_by_a_stranger_is_said(lab: Lab) -> None:
    old = lab.start_by_hand()
    facts = of(lab.context(lab.service(launch=launch(lab)))).describe()
    assert f"port {lab.port} is held by process {old.pid}" in facts.problem
    assert "kind: adopted" in facts.problem


def test_case_18_a_leftover_that_holds_the_port_is_named_and_not_raced(lab: Lab) -> None:
    lab.mood(zombie=True)
    lab.start_by_hand()
    ctx = lab.context(lab.service("adopted", stop_limit_s=4.0), "stop", "start")
    of(ctx).record(ctx.backup_dir)
    with pytest.raises(StepFailed) as failed:
        do(ctx, "stop")
    (holder,) = proc.holders(lab.port)
    assert f"process {holder} (" in failed.value.reason and "sglang::scheduler-of-fake" in failed.value.reason
    assert f"on port {lab.port}" in failed.value.reason and "stop: {kill: true}" in failed.value.reason
    assert proc.read(holder) is not None, "it was not killed: nobody said so"
    # A later run finds the service down and the leftover in the way.
    later = lab.context(lab.service(launch=launch(lab)), "stop", "start")
    of(later).record(later.backup_dir)
    with pytest.raises(StepFailed, match=f"process {holder} "):
        do(later, "stop")
    of(later).apply_launch(later)
    with pytest.raises(StepFailed, match=f"process {holder} "):
        do(later, "start")


def test_case_18_a_renamed_scheduler_that_outlived_its_server_is_found(lab: Lab) -> None:
    lab.mood(orphan=True)
    ctx = lab.context(lab.service(launch=launch(lab), stop_limit_s=4.0), "stop", "start")
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    os.kill(of(ctx).describe().pid, signal.SIGKILL)
    until(lambda: not of(ctx).active(), "the server is gone")
    until(lambda: not port_open(lab.port), "its port is free")
    of(ctx).record(ctx.backup_dir)
    with pytest.raises(StepFailed, match=r"the service is not running.*sglang::scheduler-of-fake"):
        do(ctx, "stop")
    (left,) = of(ctx).footprint().living()
    stopping.stop(ctx, of(ctx), limit_s=1.0, kill=True)
    assert proc.read(left) is None or proc.read(left).state == "Z"  # type: ignore[union-attr]


def test_a_leftover_is_ended_by_pid_when_allowed(lab: Lab) -> None:
    lab.mood(zombie=True, ignore_term=True)
    lab.start_by_hand()
    service = lab.service("adopted", stop_limit_s=2.0, stop_kill=True, drain_s=1.0)
    ctx = lab.context(service, "stop")
    of(ctx).record(ctx.backup_dir)
    do(ctx, "stop")
    assert not port_open(lab.port)
    assert "SIGKILL to process" in journal_text(ctx)


def test_requests_in_flight_are_drained(lab: Lab) -> None:
    import threading

    lab.mood(token_s=0.1)
    lab.start_by_hand()
    ctx = lab.context(lab.service("adopted"), "stop")
    of(ctx).record(ctx.backup_dir)
    endpoint = of(ctx).endpoint
    made: list[int] = []
    thread = threading.Thread(
        target=lambda: made.append(len(generate(endpoint, "a long one", 64, seconds=60).tokens))
    )
    thread.start()
    from ddtree_deploy.onhost.service.sglang_api import running_requests

    until(lambda: running_requests(endpoint) == 1, "the request runs")
    do(ctx, "stop")
    thread.join(60)
    assert made == [64], "the request was answered in full before the stop"
    assert "draining: 1 requests run" in journal_text(ctx)


def test_a_failed_stop_leaves_a_running_service_alone(lab: Lab) -> None:
    lab.mood(ignore_term=True)
    old = lab.start_by_hand()
    ctx = lab.context(lab.service("adopted", stop_limit_s=1.0), "stop")
    of(ctx).record(ctx.backup_dir)
    with pytest.raises(StepFailed, match=f"process {old.pid} "):
        do(ctx, "stop")
    assert undo(ctx) == []
    assert old.poll() is None and of(ctx).describe().pid == old.pid


def test_one_that_answers_while_it_drains_is_not_taken_for_one_that_stays(lab: Lab) -> None:
    lab.mood(linger_s=6)
    old = lab.start_by_hand()
    service = lab.service("adopted")
    ctx = lab.context(service, StepSpec("stop", "stop", 60, {"limit_s": 1}))
    of(ctx).record(ctx.backup_dir)
    with pytest.raises(StepFailed, match=f"process {old.pid} "):
        do(ctx, "stop")
    assert of(ctx).generates() and of(ctx).ending()
    ctx.plan.steps[0].options["limit_s"] = 30
    assert undo(ctx) == []
    assert old.wait(1) == 0
    assert of(ctx).describe().pid != old.pid and of(ctx).generates()


def test_a_stranger_on_the_port_is_not_stopped_by_the_undo_of_a_start(lab: Lab) -> None:
    """The start failed, and meanwhile somebody else took the port: that one is not ours to end."""
    lab.mood(exit_at_once=1)
    lab_service = lab.service("adopted", launch=launch(lab))
    ctx = lab.context(lab_service, "start")
    (lab.site / "services" / "sglang").mkdir(parents=True)
    of(ctx)._save(  # type: ignore[attr-defined]
        {"argv": lab.command(), "env": {}, "cwd": "/", "base": lab.command(), "base_env": {}}
    )
    with pytest.raises(StepFailed, match="did not stay up"):
        do(ctx, "start")
    lab.mood()
    stranger = lab.start_by_hand()
    assert undo(ctx) == []
    assert stranger.poll() is None and port_open(lab.port)


def test_a_restart_behind_our_back_fails_the_next_gate(lab: Lab) -> None:
    ctx = lab.context(lab.service(launch=launch(lab)), "start", "health")
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    first = of(ctx).describe().pid
    stopping.stop(ctx, of(ctx), limit_s=20, kill=False)
    of(ctx).start(ctx)
    until(lambda: port_open(lab.port), "it serves again")
    with pytest.raises(StepFailed, match=f"process {first} is"):
        do(ctx, "health")


def test_what_was_down_stays_down(lab: Lab) -> None:
    service = lab.service(launch=launch(lab))
    ctx = lab.context(service, "stop", "start")
    control = of(ctx)
    control.record(ctx.backup_dir)
    with pytest.raises(StepSkipped, match="not running"):
        do(ctx, "stop")
    control.apply_launch(ctx)
    do(ctx, "start")
    control.restore_launch(ctx, ctx.backup_dir)
    assert undo(ctx) == []
    assert not port_open(lab.port)
    assert not (lab.site / "services" / "sglang" / "launch.json").exists()


def test_the_undo_says_so_when_the_old_service_does_not_come_back(lab: Lab) -> None:
    lab.start_by_hand()
    service = lab.service("adopted", start_stalled_after_s=5.0)
    ctx = lab.context(service, "stop")
    of(ctx).record(ctx.backup_dir)
    do(ctx, "stop")
    lab.mood(exit_at_once=3)
    (failure,) = undo(ctx)
    assert failure.startswith("stop: the service did not stay up: it ended with exit status 3")
    assert "fake failure at start" in failure


def test_a_process_started_just_before_the_runner_died_is_found_again(lab: Lab) -> None:
    ctx = lab.context(lab.service(launch=launch(lab)), "start")
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    pid = of(ctx).describe().pid
    (lab.site / "services" / "sglang" / "running.json").unlink()
    assert of(ctx).describe().pid == pid
    stopping.stop(ctx, of(ctx), limit_s=20, kill=False)
    assert proc.read(pid) is None or not proc.alive(pid, 0)
    assert not port_open(lab.port)


def test_a_pid_that_was_given_to_another_process_is_not_ours(lab: Lab) -> None:
    folder = lab.site / "services" / "sglang"
    folder.mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mine = proc.read(os.getpid())
    assert mine is not None
    running = {"pid": mine.pid, "start": mine.start - 1, "boot_id": boot, "log": "", "unit": ""}
    (folder / "running.json").write_text(json.dumps(running))
    control = of(lab.context(lab.service(launch=launch(lab))))
    assert not control.active() and not control.footprint().members


def test_limits_umask_and_affinity_survive(lab: Lab) -> None:
    import resource

    from ddtree_deploy.onhost.service.process import spawn

    spec = spawn.of_process(os.getpid())
    assert tuple(spec.limits["RLIMIT_NOFILE"]) == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert set(spec.affinity) == os.sched_getaffinity(0)
    assert spec.argv == proc.argv(os.getpid()) and spec.cwd == str(Path.cwd())


def test_the_session_of_a_users_shell_is_not_the_services(lab: Lab) -> None:
    """Started from a script in somebody's session: only the server and what is below it belongs to it."""
    import subprocess

    shell = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess,time; subprocess.Popen({lab.command()!r}); time.sleep(600)",
        ],
        start_new_session=True,
    )
    lab.started.append(shell.pid)
    until(lambda: port_open(lab.port), "the server listens")
    control = of(lab.context(lab.service("adopted")))
    pids = {pid for pid, _ in control.footprint().members}
    assert shell.pid not in pids and len(pids) == 2
    os.kill(control.footprint().main, signal.SIGTERM)


def test_rollback_of_a_service_that_was_down_leaves_it_down(lab: Lab) -> None:
    first = lab.context(lab.service(launch=launch(lab)), "start")
    of(first).record(first.backup_dir)
    of(first).apply_launch(first)
    do(first, "start")
    back = lab.context(
        first.plan.service, StepSpec("stop", "stop", 60), StepSpec("start", "start", 60),
        StepSpec("health", "health", 60), action="rollback", undoes=first.plan.run,
    )  # fmt: skip
    of(back).record(back.backup_dir)
    do(back, "stop")
    of(back).restore_launch(back, first.backup_dir)
    with pytest.raises(StepSkipped, match="stays down"):
        do(back, "start")
    with pytest.raises(StepSkipped, match="down"):
        do(back, "health")


def test_a_stranger_that_was_given_an_inner_port_is_no_leftover() -> None:
    """The number is the same, the socket is another: it was opened after the stop."""
    import socket

    from ddtree_deploy.onhost.service.base import Footprint

    port, endpoint = free_port(), free_port()
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))
        s.listen()
        (ours,) = [x for x in proc.sockets_of({os.getpid()}) if x[0] == port]
        assert stopping.held_ports(Footprint(sockets=frozenset({ours})), endpoint) == {port: {os.getpid()}}
        assert stopping.held_ports(Footprint(sockets=frozenset({(port, "1")})), endpoint) == {}
        assert stopping.held_ports(Footprint(), port) == {port: {os.getpid()}}


def test_ports_are_seen_on_ipv6_too() -> None:
    import socket

    port = free_port()
    with socket.socket(socket.AF_INET6) as s:
        s.bind(("::1", port))
        s.listen()
        assert proc.holders(port) == {os.getpid()}
        assert proc.port_open(port)


def test_the_undo_of_a_service_that_did_not_generate_waits_until_it_is_itself_again(lab: Lab) -> None:
    """It is not waited for until it generates, so the check may come before the new process has exec'ed."""
    lab.start_by_hand("--fake", '{"no_tokens": true}')
    ctx = lab.context(lab.service("adopted"), "stop")
    do(ctx, "stop")
    assert undo(ctx) == []
    assert of(ctx).running_argv() == lab.command("--fake", '{"no_tokens": true}')


def test_a_stranger_that_took_the_port_after_the_stop_is_not_ended_by_the_undo(lab: Lab) -> None:
    lab.start_by_hand()
    ctx = lab.context(lab.service("adopted"), "stop")
    do(ctx, "stop")
    stranger = lab.start_by_hand("--served-model-name", "someone-elses")
    (reason,) = undo(ctx)
    assert f"port {lab.port} is held by process {stranger.pid}" in reason
    assert stranger.poll() is None
    os.kill(stranger.pid, signal.SIGKILL)
    stranger.wait()
    assert undo(ctx) == []
    assert of(ctx).running_argv() == lab.command()
