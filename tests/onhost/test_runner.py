"""The runner by itself: gates, interrupts, crashes, recoveries, with the real zipapp and real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.facts import gather
from ddtree_deploy.onhost.state import layout
from ddtree_deploy.onhost.state.lock import read_owner
from ddtree_deploy.onhost.venv import bytecode
from ddtree_deploy.onhost.wire.protocol import StepSpec
from tests.root import need_root

from .host import DEADLINE_S, PATCHED, Host, Session, until


def command(*argv: str, name: str = "wait", undo: list[str] | None = None, timeout: float = 60.0) -> StepSpec:
    return StepSpec(name, "run", timeout, {"command": list(argv), "undo": undo})


def waiting(host: Host, name: str = "wait") -> StepSpec:
    """A step that says `up` and runs until `root/go` is there."""
    script = f"echo up; until [ -e {host.root}/go ]; do sleep 0.02; done"
    return command("/bin/sh", "-c", script, name=name)


def go(host: Host) -> None:
    (host.root / "go").touch()


def assert_as_before(host: Host, before: str, run: str) -> None:
    """Tree, temporary files, bytecode, and nothing of the run but its journal and logs."""
    assert host.digest() == before
    assert not list(host.site.rglob(".ddtree-tmp-*"))
    assert bytecode.stale([str(p) for p in host.package.rglob("*.py")]) == []
    kept = {p.name for p in host.run_dir(run).iterdir()}
    assert kept <= {
        "alive",
        "journal.jsonl",
        "logs",
        "plan.json",
        "previous_installed.json",
        "runner.pyz",
        "watched",
    }
    assert read_owner(host.site_dir) == {}


# ---- gates ----------------------------------------------------------------------------------------------


def test_case_11_a_syntax_error_stops_at_compile_and_nothing_is_rolled_back(host: Host) -> None:
    before = host.digest()
    session = host.rollout(host.payload(worker="NAME = 'tree'\ndef broken(:\n    pass\n"))
    assert session.process.returncode == 1
    end = session.end
    assert (end["step"], end["exit"], end["state"]) == ("compile", 1, "nothing was changed")
    assert "site:sglang_ddtree/worker.py:2: SyntaxError" in end["reason"]
    assert "nothing was rolled back" in end["reason"]
    assert not [e for e in session.lines if e["e"] == "undo"]
    assert_as_before(host, before, session.run)


def test_a_failing_check_stops_before_anything_is_changed(host: Host) -> None:
    before = host.digest()
    session = host.rollout(host.payload(name="other"))
    assert session.end["exit"] == 1
    assert "should be 'ok tree tree', it is 'ok tree other'" in session.end["reason"]
    assert_as_before(host, before, session.run)


def test_a_check_that_writes_into_the_live_tree_fails(host: Host) -> None:
    smoke = f"open({str(host.package / 'srt' / 'cache.txt')!r}, 'w').close()\nprint('ok tree tree')\n"
    session = host.rollout(host.payload(smoke=smoke))
    assert session.end["exit"] == 1
    assert f"+{host.package}/srt/cache.txt" in session.end["reason"]


def test_a_patch_that_does_not_fit_names_the_hunk(host: Host) -> None:
    files = host.payload()
    files["blobs/spec.patch"] = str(files["blobs/spec.patch"]).replace("'chain'", "'other'")
    session = host.rollout(files)
    assert session.end["step"] == "stage"
    assert "hunk 1: line 2 should be" in session.end["reason"]


def test_a_host_that_moved_since_the_plan_is_not_touched(host: Host) -> None:
    plan, archive = host.plan()
    (host.package / "srt" / "spec.py").write_text("# edited by hand\n")
    before = host.digest()
    session = host.launch(plan, archive)
    assert session.wait() == 6
    assert session.end["step"] == "preflight"
    assert "sglang:srt/spec.py" in session.end["reason"]
    assert session.end["next"] == "ddtree-deploy plan testhost"
    assert_as_before(host, before, session.run)


def test_another_process_of_the_venv_is_named(host: Host) -> None:
    process = subprocess.Popen([host.python, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        plan, archive = host.plan()
        session = host.launch(plan, archive)
        assert session.wait() == 1
        assert f"{process.pid}: {host.python} -c input()" in session.end["reason"]
        plan, archive = host.plan(also_stop=["-c input()"])
        session = host.launch(plan, archive)
        assert session.wait() == 0, session.end
    finally:
        process.kill()
        process.communicate()


def test_case_12_a_gate_after_the_install_undoes_everything_and_says_so(host: Host) -> None:
    before = host.digest()
    mark = host.root / "mark"
    steps = host.steps(
        command("/bin/touch", str(mark), name="mark", undo=["/bin/rm", str(mark)]),
        command("/bin/sh", "-c", "echo it is broken; exit 3", name="gate"),
    )
    session = host.rollout(steps=steps)
    end = session.end
    assert (end["exit"], end["state"], end["step"]) == (1, "as before", "gate")
    assert end["reason"] == "/bin/sh ended with 3: it is broken; rolled back: mark, install"
    undone = [(e["step"], e["what"]) for e in session.lines if e["e"] == "undo" and e["phase"] == "done"]
    assert undone == [("mark", "undo"), ("install", "undo"), ("mark", "check"), ("install", "check")]
    assert not mark.exists()
    assert_as_before(host, before, session.run)
    assert host.ask("import sglang.srt.spec as s; print(s.algorithm())") == "chain"


def test_a_failed_undo_needs_a_person_and_the_others_go_on(host: Host) -> None:
    before = host.digest()
    steps = host.steps(
        command("/bin/true", name="mark", undo=["/bin/sh", "-c", "echo stuck; exit 1"]),
        command("/bin/false", name="gate"),
    )
    session = host.rollout(steps=steps)
    end = session.end
    assert (end["exit"], end["state"]) == (3, "needs a person")
    assert "rollback incomplete: mark: /bin/sh ended with 1: stuck" in end["reason"]
    assert end["next"] == "ddtree-deploy recover testhost"
    assert host.digest() == before


def test_a_step_that_takes_too_long_is_ended_with_all_its_children(host: Host) -> None:
    pids = host.root / "pids"
    script = f"setsid sh -c 'echo $$ >> {pids}; exec sleep 600' & echo $$ >> {pids}; exec sleep 600"
    before = host.digest()
    session = host.rollout(steps=host.steps(command("/bin/sh", "-c", script, timeout=1.5)))
    assert session.end["exit"] == 1
    assert "took longer than" in session.end["reason"]
    assert_as_before(host, before, session.run)
    found = [int(p) for p in pids.read_text().split()]
    assert len(found) == 2
    until(lambda: not any(_alive(p) for p in found))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_payload_that_is_not_the_planned_one_is_refused(host: Host) -> None:
    plan, archive = host.plan()
    session = host.launch(plan, archive[:-4] + b"\0\0\0\0")
    assert session.wait() == 2
    assert "not the one that was planned" in session.end["reason"]
    assert not host.run_dir(plan["run"]).exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"on_inconclusive": "wait"}, "on_inconclusive: 'wait' is not known"),
        ({"protocol": 2}, "protocol 2, this runner speaks 1"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"steps": []}, "the first step must be lock"),
    ],
)
def test_a_plan_that_this_runner_cannot_carry_out_is_refused(
    host: Host, change: dict[str, Any], why: str
) -> None:
    plan, archive = host.plan()
    session = host.launch({**plan, **change}, archive)
    assert session.wait() == 2
    assert why in session.end["reason"]
    assert session.end["state"] == "nothing was changed"
    assert not host.run_dir(plan["run"]).exists()


def test_an_unknown_step_is_refused_before_the_start(host: Host) -> None:
    plan, archive = host.plan(steps=[*host.steps()[:-1], StepSpec("magic", "magic", 1.0)])
    session = host.launch(plan, archive)
    assert session.wait() == 2
    assert "unknown kind of step 'magic'" in session.end["reason"]


# ---- interrupts -----------------------------------------------------------------------------------------


def up(session: Session) -> None:
    session.until(e="progress", step="wait", text="up")


@pytest.mark.parametrize("by", ["control line", "SIGTERM", "SIGINT"])
def test_an_interrupt_is_an_orderly_undo(host: Host, by: str) -> None:
    before = host.digest()
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(session)
    assert (host.package / "srt" / "spec.py").read_text() == PATCHED
    if by == "control line":
        session.send("interrupt")
    else:
        os.kill(host.runner_pid(session.run), getattr(signal, by))
    assert session.wait() == 130
    assert session.end["state"] == "as before"
    assert session.end["reason"].startswith("interrupted by SIG")
    assert_as_before(host, before, session.run)


def test_the_run_outlives_its_controller_and_can_be_followed_again(host: Host) -> None:
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(session)
    seen = host.run_dir(session.run) / "journal.jsonl"
    offset = seen.stat().st_size
    session.process.kill()
    session.process.wait()
    again = host.follow(session.run, offset)
    again.until(e="hb")
    go(host)
    assert again.wait() == 0
    assert again.end["verdict"] == "pass"
    assert min(e["n"] for e in again.lines if "n" in e) > 10  # nothing twice
    late = host.follow(session.run, seen.stat().st_size)  # after everything: only the exit status
    assert late.wait() == 0


def test_a_follower_ends_with_its_controller(host: Host) -> None:
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(session)
    assert session.process.stdin is not None
    session.process.stdin.close()
    assert session.wait() == 8
    go(host)
    assert host.follow(session.run).wait() == 0


# ---- one at a time --------------------------------------------------------------------------------------


def test_a_second_run_is_refused_with_owner_and_step(host: Host) -> None:
    first = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(first)
    second = host.launch(*host.plan())
    assert second.wait() == 5
    assert f"locked by tester@desk, rollout {first.run}, since " in second.end["reason"]
    assert "now at wait" in second.end["reason"]
    assert second.end["state"] == "nothing was changed"
    go(host)
    assert first.wait() == 0, first.end


# ---- crashes --------------------------------------------------------------------------------------------


def crashed(host: Host) -> tuple[str, str]:
    """A run killed after its install. (digest before, run)."""
    before = host.digest()
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(session)
    host.kill_runner(session.run)
    assert session.wait() == 3
    lost = session.end
    assert (lost["e"], lost["step"], lost["exit"]) == ("lost", "wait", 3)
    assert lost["next"] == "ddtree-deploy recover testhost"
    assert host.digest() != before
    return before, session.run


def test_recover_undoes_a_dead_run_and_ends_what_it_left_running(host: Host) -> None:
    before, run = crashed(host)
    sleepers = [p for p in Path("/proc").glob("[0-9]*") if _in_environ(p, f"DDTREE_DEPLOY_RUN={run}/")]
    assert sleepers
    code, events = host.recover()
    assert code == 0, events
    assert [e["run"] for e in events if e["e"] == "recovered"] == [run]
    told = [e["text"] for e in events if e["e"] == "progress"]
    assert "undo of install: start" in told and "check of install: done" in told, told
    assert_as_before(host, before, run)
    until(lambda: not any(_alive(int(p.name)) for p in sleepers))
    end = host.journal(run)[-1]
    assert (end["e"], end["exit"], end["state"], end["recovered"]) == ("end", 1, "as before", True)
    assert host.recover() == (0, [])


def _in_environ(process: Path, text: str) -> bool:
    try:
        return text.encode() in (process / "environ").read_bytes()
    except OSError:
        return False


def test_the_next_run_recovers_first(host: Host) -> None:
    _, run = crashed(host)
    session = host.launch(*_plan_for_before(host))
    assert session.wait() == 0, session.end
    lock = next(e for e in session.lines if e["e"] == "verdict" and e["step"] == "lock")
    assert f"recovered run {run}: as before" in lock["reason"]
    assert host.ask("import sglang.srt.spec as s; print(s.algorithm())") == "tree"


def _plan_for_before(host: Host) -> tuple[dict[str, Any], bytes]:
    """A plan as it is made for the state that the recovery will bring back."""
    plan, archive = host.plan()
    for target in plan["targets"]:
        target["before"] = target["base_sha256"]
    return plan, archive


def test_a_torn_last_line_is_no_obstacle(host: Host) -> None:
    before, run = crashed(host)
    with (host.run_dir(run) / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"n":99,"t":1.0,"e":"ver')
    code, events = host.recover()
    assert code == 0, events
    assert_as_before(host, before, run)


def test_a_run_killed_after_its_decision_is_finished(host: Host) -> None:
    """The last event of a run that passed is cut off, as if the runner had died before writing it."""
    session = host.rollout()
    assert session.end["exit"] == 0
    path = host.run_dir(session.run) / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    commit = next(i for i, line in enumerate(lines) if b'"e":"commit"' in line)
    path.write_bytes(b"".join(lines[: commit + 1]))
    (host.site_dir / "installed.json").unlink()
    (host.site_dir / "releases.jsonl").unlink()
    code, events = host.recover()
    assert code == 0, events
    installed = layout.read_json(host.site_dir / "installed.json")
    assert installed["release"] == session.run
    assert host.journal(session.run)[-1]["verdict"] == "pass"
    assert host.ask("import sglang.srt.spec as s; print(s.algorithm())") == "tree"


def test_a_recovery_is_refused_while_the_runner_lives(host: Host) -> None:
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    up(session)
    code, events = host.recover()
    assert code == 5
    assert events[0]["owner"]["run"] == session.run
    go(host)
    assert session.wait() == 0


def test_an_edit_made_after_the_crash_is_kept_apart(host: Host) -> None:
    before, run = crashed(host)
    (host.package / "srt" / "spec.py").write_text("# somebody helped\n")
    code, events = host.recover()
    assert code == 0, events
    assert host.digest() == before
    (kept,) = (host.run_dir(run) / "backup").glob("foreign-*")
    assert kept.read_text() == "# somebody helped\n"


def test_what_failed_to_be_undone_is_tried_again_by_recover(host: Host) -> None:
    before = host.digest()
    key = host.root / "key"
    steps = host.steps(
        command("/bin/true", name="mark", undo=["/bin/sh", "-c", f"test -e {key}"]),
        command("/bin/false", name="gate"),
    )
    session = host.rollout(steps=steps)
    assert session.end["exit"] == 3
    blocked = host.launch(*host.plan())
    assert blocked.wait() == 3
    assert f"run {session.run} could not be recovered" in blocked.end["reason"]
    key.touch()
    assert host.recover()[0] == 0
    assert_as_before(host, before, session.run)


# ---- boot -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["header", "plan", "payload"])
def test_a_connection_that_ends_during_the_upload_leaves_nothing(host: Host, part: str) -> None:
    plan, archive = host.plan()
    length = len(json.dumps(plan).encode())
    cut = {
        "header": 20,
        "plan": 200 + length // 2,
        "payload": 200 + length + len(archive) // 2,
    }[part]
    session = host.launch(plan, archive, cut=cut)
    assert session.wait() != 0
    assert session.end["state"] == "nothing was changed"
    assert not host.run_dir(plan["run"]).exists()


def test_a_wait_whose_input_ends_leaves_nothing(host: Host) -> None:
    """As after `status`, and where the connection is cut before a run was asked for."""
    session = host.launch(*host.plan(), cut=0)
    assert session.process.wait(DEADLINE_S) == 0
    assert not host.state.exists()


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_whose_host_went_down_before_its_first_line_is_put_away(host: Host, whole: bool) -> None:
    """As a power cut leaves it: received whole or in part, and no journal."""
    done = host.rollout()
    plan, archive = host.plan()
    folder = host.run_dir(plan["run"])
    (folder / "logs").mkdir(parents=True)
    shutil.copy(host.run_dir(done.run) / layout.RUNNER, folder, follow_symlinks=False)
    (folder / layout.PAYLOAD).write_bytes(archive)
    if whole:
        (folder / layout.PLAN).write_text(json.dumps(plan))
        (folder / layout.RESERVE).write_bytes(b"0")
    before = host.digest()
    assert gather.orphan_facts(host.site_dir) is not None
    code, said = host.recover()
    assert code == 0 and said[-1]["run"] == plan["run"], said
    assert said[-1]["reason"] == "nothing was changed (it had not begun)", said
    assert gather.orphan_facts(host.site_dir) is None
    assert_as_before(host, before, plan["run"])


def test_a_state_folder_that_cannot_be_made_is_one_clear_line(host: Host) -> None:
    host.state.write_text("a file where the folder should be")
    session = host.launch(*host.plan())
    assert session.wait() == 1
    assert str(host.state) in session.end["reason"]
    assert session.end["state"] == "nothing was changed"


def test_a_run_is_never_started_twice(host: Host) -> None:
    plan, archive = host.plan()
    session = host.launch(plan, archive)
    assert session.wait() == 0
    again = host.launch(plan, archive)
    assert again.wait() == 1
    assert "exists already" in again.end["reason"]
    assert host.journal(plan["run"])[-1]["verdict"] == "pass"  # and the first is not disturbed


def test_the_state_is_private(host: Host) -> None:
    session = host.rollout()
    for path in (host.state, host.site_dir, host.run_dir(session.run)):
        assert path.stat().st_mode & 0o777 == 0o700, path


def test_secrets_are_in_no_log_and_not_kept_after_the_end(host: Host) -> None:
    secret = "hunter2-hunter2"
    steps = host.steps(command("/bin/sh", "-c", f"echo the key is {secret}; echo {secret} >&2"))
    session = host.rollout(steps=steps, secrets={"api_key": secret})
    assert session.end["exit"] == 0, session.end
    found = [
        p for p in host.run_dir(session.run).rglob("*") if p.is_file() and secret.encode() in p.read_bytes()
    ]
    assert [p.name for p in found] == ["plan.json"]  # the command itself, as the user wrote it
    assert '"api_key"' not in found[0].read_text()


# ---- releases -------------------------------------------------------------------------------------------


def verdicts(host: Host) -> list[tuple[str, str]]:
    from ddtree_deploy.onhost.state.releases import lines

    return [(line["action"], line["verdict"]) for line in lines(host.site_dir)]


def test_a_failed_release_is_marked_bad_and_an_interrupted_one_is_not(host: Host) -> None:
    from ddtree_deploy.onhost.state.releases import attempts

    failed = host.rollout(steps=host.steps(command("/bin/false")))
    assert failed.end["exit"] == 1
    digest = host.plan()[0]["release"]
    assert attempts(host.site_dir) == {digest: "bad"}
    good = host.rollout()
    assert good.end["exit"] == 0
    assert attempts(host.site_dir) == {}
    back = host.launch(*host.rollback(good.run))
    assert back.wait() == 0
    assert verdicts(host) == [("rollout", "bad"), ("rollout", "good"), ("rollback", "good")]


def test_an_update_and_its_rollback_return_to_the_release_before(host: Host) -> None:
    first = host.rollout()
    with_first = host.digest()
    second = host.rollout(host.payload(name="two"), steps=host.steps(smoke="ok tree two"))
    assert second.end["exit"] == 0, second.end
    assert host.ask("import sglang_ddtree.worker as w; print(w.NAME)") == "two"
    back = host.launch(*host.rollback(second.run))
    assert back.wait() == 0, back.end
    assert host.digest() == with_first
    assert layout.read_json(host.site_dir / "installed.json")["release"] == first.run


def test_a_rollback_that_fails_leaves_the_release_in_place(host: Host) -> None:
    first = host.rollout()
    released = host.digest()
    plan, archive = host.rollback(first.run)
    plan["steps"].insert(
        -1, {"name": "gate", "kind": "run", "timeout_s": 9.0, "options": {"command": ["/bin/false"]}}
    )
    session = host.launch(plan, archive)
    assert session.wait() == 1
    assert session.end["state"] == "as before"
    assert host.digest() == released
    assert layout.read_json(host.site_dir / "installed.json")["release"] == first.run


def test_a_rollback_without_its_backup_is_refused(host: Host) -> None:
    first = host.rollout()
    plan, archive = host.rollback(first.run)
    shutil.rmtree(host.run_dir(first.run) / "backup")
    session = host.launch(plan, archive)
    assert session.wait() == 6
    assert "its backup is gone" in session.end["reason"]


# ---- no room --------------------------------------------------------------------------------------------


def _unmount(path: Path) -> None:
    """As soon as the runner, which ends after its last line, has left it."""
    until(lambda: subprocess.run(["umount", str(path)], check=False, capture_output=True).returncode == 0)


@pytest.mark.parametrize(("size", "step"), [("100k", "launch"), ("3m", "preflight")])
def test_without_room_for_the_state_nothing_is_touched_and_nothing_left(
    host: Host, size: str, step: str
) -> None:
    need_root("needs root to mount a small tmpfs")
    host.state.mkdir(mode=0o700)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(host.state)], check=False
    )
    need_root("mounting is not allowed here", lambda: mount.returncode == 0)
    try:
        before = host.digest()
        session = host.rollout()
        assert (session.process.returncode, session.end["step"]) == (1, step), session.end
        assert session.end["state"] == "nothing was changed"
        assert host.digest() == before
        if step == "launch":
            assert list(host.state.iterdir()) == []
        else:
            assert_as_before(host, before, session.run)
    finally:
        _unmount(host.state)


def test_a_read_only_venv_is_noticed_before_anything_is_touched(host: Host) -> None:
    need_root("needs root to mount")
    bind = subprocess.run(["mount", "--bind", str(host.site), str(host.site)], check=False)
    need_root("mounting is not allowed here", lambda: bind.returncode == 0)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(host.site)], check=True)
        session = host.rollout()
        assert (session.end["exit"], session.end["step"]) == (1, "preflight"), session.end
        assert "mounted read-only" in session.end["reason"]
    finally:
        _unmount(host.site)


def test_an_immutable_file_is_noticed_before_anything_is_stopped(host: Host) -> None:
    spec = str(host.package / "srt" / "spec.py")
    set_it = subprocess.run(["chattr", "+i", spec], capture_output=True, check=False)
    need_root("chattr is not allowed here", lambda: set_it.returncode == 0)
    try:
        session = host.rollout()
        assert (session.end["exit"], session.end["step"]) == (1, "preflight"), session.end
        assert f"{spec} is immutable" in session.end["reason"]
    finally:
        subprocess.run(["chattr", "-i", spec], check=True)


def test_an_interrupt_sent_before_the_runner_is_up_is_not_lost(host: Host) -> None:
    before = host.digest()
    session = host.launch(*host.plan(steps=host.steps(waiting(host))))
    session.send("interrupt")
    assert session.wait() == 130
    assert_as_before(host, before, session.run)
