"""The command line, end to end: over real SSH to a host with a small venv, with and without a service."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddtree_deploy.onhost.state import layout
from ddtree_deploy.onhost.state.lock import write_owner
from ddtree_deploy.sandbox.sshd import SshServer
from tests.lab import tree
from tests.ports import free_port
from tests.ssh.box import OVERLAID, Box, differs, sessions, wait_for, with_run_step
from tests.ssh.one_flavour import server, serving

__all__ = ["server", "serving"]

pytestmark = pytest.mark.ssh


@pytest.fixture
def box(server: SshServer, tmp_path: Path) -> Box:
    """A host without a service."""
    return Box(tmp_path, server)


# ---- files only ------------------------------------------------------------------------------------------


def test_a_rollout_is_one_exec_and_the_record_says_what_they_carried(box: Box) -> None:
    done = box.run("rollout", "box", "--yes")
    assert done.code == 0, done
    (folder,) = (box.work / ".ddtree-deploy" / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["execs"] == 1 and summary["exit_code"] == 0
    assert summary["sent"] > 10_000 and summary["received"] > 1_000
    journal = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [e["n"] for e in journal] == list(range(1, len(journal) + 1))
    assert journal[0]["e"] == "run" and journal[-1]["e"] == "end"
    on_host = box.state.glob(f"sites/*/runs/{folder.name}/journal.jsonl")
    assert (folder / "journal.jsonl").read_text() == next(on_host).read_text()


def test_plan_and_status_touch_nothing(box: Box) -> None:
    before = box.snapshot()
    plan, status = box.plain("plan", "box"), box.plain("status", "box")
    assert plan.returncode == 0, plan.stderr
    assert "+BLOCK = 32" in plan.stdout and "8 new, 1 replaced" in plan.stdout
    assert status.returncode == 0 and "none of ours" in status.stdout
    assert differs(box, before) == [] and not box.state.exists()
    assert not list((box.server.home).glob("*.pyz"))


def test_a_second_rollout_of_the_same_payload_has_nothing_to_do(box: Box) -> None:
    assert box.run("rollout", "box", "--yes").code == 0
    again = box.run("rollout", "box", "--yes")
    assert again.code == 0 and "live already" in again.outcome["reason"], again
    assert again.outcome["execs"] == 1


def test_a_syntax_error_is_found_before_anything_is_sent(box: Box) -> None:
    before = box.snapshot()
    done = box.run("rollout", "box", "--yes", "--payload", box.payload("bad", broken="syntax"))
    assert done.code == 1 and done.verdicts() == {"local": "fail"}, done
    assert "tiny_ddtree/module0.py:1" in done.stderr and "nothing was touched" in done.stderr
    assert differs(box, before) == [] and not box.state.exists()


def test_a_failing_check_ends_the_run_with_the_host_as_before(box: Box) -> None:
    before = box.snapshot()
    done = box.run("rollout", "box", "--yes", "--payload", box.payload("bad", broken="check"))
    assert done.code == 1 and done.verdicts()["smoke"] == "fail", done
    assert done.outcome["step"] == "smoke" and "install" not in done.verdicts()
    assert differs(box, before) == []


def test_a_hand_edited_file_is_drift_until_it_is_accepted_and_comes_back_with_the_rollback(box: Box) -> None:
    edited = box.site / OVERLAID
    edited.write_text(edited.read_text() + "# by hand\n")
    before = box.snapshot()
    refused = box.run("rollout", "box", "--yes")
    assert refused.code == 6 and "dflash_info.py" in refused.stderr, refused
    assert differs(box, before) == []
    shown = box.plain("plan", "box")
    assert shown.returncode == 6 and "-# by hand" in shown.stdout
    assert "foreign" in box.plain("status", "box").stdout
    assert box.run("rollout", "box", "--yes", "--accept-drift").code == 0
    assert box.run("rollback", "box", "--yes").code == 0
    assert differs(box, before) == []


def test_a_venv_that_is_locked_is_refused_naming_its_owner(box: Box) -> None:
    assert box.run("rollout", "box", "--yes").code == 0
    (site_dir,) = (box.state / "sites").iterdir()
    eve = {"run": "20260101T000000-abcdef", "who": "eve@desk", "pid": 1, "since": "noon", "step": "soak"}
    with (site_dir / "lock").open("r+b") as lock:
        write_owner(lock.fileno(), eve)
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = box.run("rollback", "box", "--yes")
    assert done.code == 5, done
    assert "eve@desk" in done.stderr and "soak" in done.stderr and "attach box" in done.stderr


# ---- a fleet ---------------------------------------------------------------------------------------------


def test_an_unreachable_host_is_a_failure_and_stops_the_fleet(box: Box) -> None:
    box.write_hosts(gone={"port": free_port()}, last={})
    done = box.run("rollout", "all", "--yes")
    assert done.code == 4, done
    outcomes = [e for e in done.events if e["e"] == "outcome"]
    assert [(o["host"], o["exit_code"]) for o in outcomes] == [("box", 0), ("gone", 4)]
    assert done.events[-1] | {"t": 0} == {
        "t": 0,
        "e": "fleet",
        "exits": {"box": 0, "gone": 4},
        "waiting": ["last"],
    }


def test_status_goes_on_past_a_host_that_does_not_answer(box: Box) -> None:
    box.write_hosts(gone={"port": free_port()}, last={})
    done = box.plain("status")
    assert done.returncode == 4
    assert done.stdout.startswith("box ") and "\nlast " in done.stdout
    assert "gone: connect: connection refused" in done.stderr


# ---- errors: one line, an exit code ----------------------------------------------------------------------


def fails(box: Box, code: int, says: str, *words: str) -> None:
    before = box.snapshot()
    done = box.plain(*words)
    assert done.returncode == code, (done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert says in line and "nothing was touched" in line and "Traceback" not in line
    assert differs(box, before) == []


def test_an_unknown_target(box: Box) -> None:
    fails(box, 2, "no host or group is named 'nosuch'", "rollout", "nosuch", "--yes")


def test_a_broken_hosts_file(box: Box) -> None:
    file = box.work / "hosts.yaml"
    file.write_text(file.read_text().replace("address:", "adress:", 1))
    fails(box, 2, "hosts.yaml:2: hosts.box", "rollout", "box", "--yes")


def test_a_missing_payload(box: Box) -> None:
    fails(box, 2, "--payload: no such file", "rollout", "box", "--yes", "--payload", "nowhere")


def test_no_terminal_and_no_consent(box: Box) -> None:
    fails(box, 2, "ddtree-deploy rollout box --yes", "rollout", "box")


def test_a_closed_port(box: Box) -> None:
    box.write_hosts(gone={"port": free_port()})
    fails(box, 4, "connection refused", "rollout", "gone", "--yes")


def test_case_04_a_wrong_host_key_and_the_command_that_accepts_it(box: Box) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(box.root / "k")], check=True)
    known = box.root / "known_hosts"
    known.write_text(f"[{box.server.address}]:{box.server.port} {(box.root / 'k.pub').read_text()}")
    box.write_hosts(other={"known_hosts": str(known)})
    fails(box, 4, "HAS CHANGED", "rollout", "other", "--yes")
    line = box.plain("status", "other").stderr
    command = line.split("next: ddtree-deploy ")[1].split("  (")[0].split()
    wrong = box.plain("trust", "other", "--fingerprint", "SHA256:other")
    assert wrong.returncode == 2 and "nothing was touched" in wrong.stderr
    accepted = box.plain(*command)
    assert accepted.returncode == 0, accepted.stderr
    assert box.plain("status", "other").returncode == 0


def test_an_interpreter_that_is_not_there(box: Box) -> None:
    box.write_hosts(bare={"python": "/nowhere/bin/python"})
    done = box.plain("status", "bare")
    assert (
        done.returncode == 2 and "hosts.bare.python" in done.stderr and "/nowhere/bin/python" in done.stderr
    )


# ---- who watches -----------------------------------------------------------------------------------------


def on_terminal(box: Box, answer: str, *words: str) -> tuple[int, str]:
    """Run the command line on a terminal, and answer its question."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(box.work)
        os.environ |= {"HOME": str(box.root), "TERM": "xterm", "COLUMNS": "120"}
        os.execv(sys.executable, [sys.executable, "-m", "ddtree_deploy", *words])
    shown = b""
    asked = False
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # how a terminal says that the other side has gone
            break
        if b"[y/N]" in shown and not asked:
            asked = True
            os.write(terminal, answer.encode() + b"\n")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode(errors="replace")


def test_on_a_terminal_the_plan_is_shown_and_asked_for_and_every_step_drawn(box: Box) -> None:
    code, shown = on_terminal(box, "y", "rollout", "box")
    assert code == 0, shown
    assert shown.index("8 new, 1 replaced") < shown.index("rollout on box? [y/N]") < shown.index("✔")
    assert "files compiled by" in shown and "rollout passed" in shown


def test_a_no_on_the_terminal_touches_nothing(box: Box) -> None:
    before = box.snapshot()
    code, shown = on_terminal(box, "n", "rollout", "box")
    assert code == 130 and "not confirmed; nothing was touched" in shown
    assert differs(box, before) == [] and not box.state.exists()


def test_a_reader_that_goes_away_does_not_end_the_run_nor_change_its_exit_code(box: Box) -> None:
    flag = with_run_step(box, "backup")
    argv = [sys.executable, "-m", "ddtree_deploy", "rollout", "box", "--yes"]
    env = {**os.environ, "HOME": str(box.root)}
    with subprocess.Popen(
        argv, cwd=box.work, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        while b"waiting" not in (line := process.stdout.readline()):
            assert line
        process.stdout.close()
        flag.touch()
        assert process.stderr.read() == b""
        assert process.wait(300) == 0
    assert (box.site / OVERLAID).read_text().startswith("BLOCK = 32")


# ---- connections and signals -----------------------------------------------------------------------------


def test_a_frozen_server_is_noticed_and_the_run_followed_when_it_is_back(
    box: Box, server: SshServer, frozen: Callable[[], None]
) -> None:
    flag = with_run_step(box, "install")
    box.write_hosts(slow={"connect_timeout": "5s"})
    running = box.start("rollout", "slow", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    held = [p for p in [server.process, *sessions(server)] if p is not None]
    frozen()
    lost = running.until(lambda e: e["e"] == "disconnected", "the loss")
    assert "nothing heard from the host for 20 s" in lost["reason"]
    for process in held:
        if process.alive:
            os.kill(process.pid, signal.SIGCONT)
    running.until(lambda e: e["e"] == "reconnected", "the new connection")
    flag.touch()
    done = running.finish()
    assert done.code == 0, done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_an_orderly_undo(box: Box, number: signal.Signals) -> None:
    before = box.snapshot()
    with_run_step(box, "install")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    assert differs(box, before) != []
    running.signal(number)
    done = running.finish()
    assert done.code == 130, done
    assert done.outcome["state"] == "as before" and "rolled back" in done.outcome["reason"]
    assert differs(box, before) == []


def test_a_second_interrupt_leaves_the_host_to_it_and_attach_tells_the_end(box: Box) -> None:
    before = box.snapshot()
    with_run_step(box, "install")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    os.killpg(running.process.pid, signal.SIGINT)
    running.until(lambda e: e["e"] == "interrupt", "the first interrupt")
    os.killpg(running.process.pid, signal.SIGINT)
    done = running.finish()
    if done.code != 130:  # the host may have been the faster one
        assert done.code == 8, done
        assert "attach box" in done.stderr and "goes on by itself" in done.stderr
    attached = box.run("attach", "box")
    assert attached.code == 130, attached
    assert differs(box, before) == []


def test_attach_tells_the_end_of_a_run_whose_controller_was_killed_and_completes_its_record(box: Box) -> None:
    assert box.run("rollout", "box", "--yes", "--payload", box.payload("v0", version="0.0.9")).code == 0
    flag = with_run_step(box, "backup")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    run = running.seen[-1]["run"]
    running.signal(signal.SIGKILL)
    running.process.wait()
    flag.touch()
    wait_for(lambda: f"release  {run}" in box.plain("status", "box").stdout, "the host's own verdict")
    attached = box.run("attach", "box")
    assert attached.code == 0 and attached.outcome["run"] == run, attached
    back = box.run("rollback", "--yes")  # "of the last rollout": this one, although its controller saw no end
    assert back.code == 0 and back.outcome["run"], back
    (shown,) = [e for e in box.run("history").events if e["run"] == run]
    assert shown["verdict"] == "pass" and shown["exit"] == 0


def test_an_interrupt_before_the_start_touches_nothing(box: Box, frozen: Callable[[], None]) -> None:
    frozen()
    running = box.start("rollout", "box", "--yes")
    wait_for(lambda: _connecting(running.process.pid), "the connection attempt")
    running.signal(signal.SIGINT)
    done = running.finish()
    assert done.code == 130 and "nothing was touched" in done.stderr, done
    assert not box.state.exists()


def _connecting(pid: int) -> bool:
    """Whether the process has an open socket."""
    try:
        return any("socket:" in str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_a_runner_that_died_is_said_and_its_run_recovered_by_command(box: Box) -> None:
    before = box.snapshot()
    with_run_step(box, "install")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    os.kill(next(e["pid"] for e in running.seen if e["e"] == "run"), signal.SIGKILL)
    done = running.finish()
    assert done.code == 3, done
    assert done.outcome["next_command"] == "ddtree-deploy recover box"
    status = box.plain("status", "box")
    assert "ended without a verdict at step hold" in status.stdout
    assert differs(box, before) != []
    recovered = box.plain("recover", "box")
    assert recovered.returncode == 0, recovered.stdout + recovered.stderr
    assert differs(box, before) == []
    again = box.plain("recover", "box")
    assert again.returncode == 0 and "nothing to recover" in again.stdout


def test_the_next_rollout_recovers_a_dead_run_first(box: Box) -> None:
    flag = with_run_step(box, "install")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    dead = running.seen[-1]["run"]
    os.kill(next(e["pid"] for e in running.seen if e["e"] == "run"), signal.SIGKILL)
    assert running.finish().code == 3
    flag.touch()
    done = box.run("rollout", "box", "--yes")
    assert done.code == 0, done
    assert [e["run"] for e in done.events if e["e"] == "recovered"] == [dead]


def test_case_40_the_same_venv_under_two_state_dirs_is_one_venv(box: Box) -> None:
    box.write_hosts(other={"state_dir": str(box.root / "state2")})
    flag = with_run_step(box, "install")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    held = f"run {running.seen[-1]['run']} of "
    for words in (["rollout", "--yes"], ["unlock", "--force"], ["attach"], ["recover"]):
        refused = box.run(words[0], "other", *words[1:])
        assert refused.code == 5, refused
        assert held in refused.stderr and f"not here but in {box.state}" in refused.stderr, refused
    assert held.split()[1] in box.plain("status", "other").stdout
    flag.touch()
    assert running.finish().code == 0
    assert box.plain("unlock", "other").returncode == 0
    assert not list((box.root / "state2").glob("sites/*/runs/*"))


def test_case_41_what_was_planned_is_what_goes_out(box: Box) -> None:
    digest = box.run("plan", "box").events[-1]["digest"]
    shown = box.plain("plan", "box").stdout
    assert shown.splitlines()[-1] == f"digest    {digest}", "the same again, as the last line"
    before = box.snapshot()
    module = box.work / "payload/tiny_ddtree/module0.py"
    was = module.read_text()
    module.write_text(was + "X = 1\n")
    refused = box.run("rollout", "box", "--yes", "--expect", digest)
    assert refused.code == 6 and "what differs: payload;" in refused.stderr, refused
    assert "nothing was touched" in refused.stderr
    assert differs(box, before) == [] and not box.state.exists()
    assert box.run("rollout", "box", "--yes", "--expect", digest[:-1]).code == 2
    module.write_text(was)
    done = box.run("rollout", "box", "--yes", "--expect", "0" * 64, "--expect", digest)
    assert done.code == 0, done
    assert next(e for e in done.events if e["e"] == "plan")["digest"] == digest
    again = box.run("rollout", "box", "--yes", "--expect", digest)
    assert again.code == 6 and "what differs: facts;" in again.stderr, "it is live: another plan"


def test_case_41_a_dead_run_is_not_recovered_under_a_digest_made_before(box: Box) -> None:
    digest = box.run("plan", "box").events[-1]["digest"]
    with_run_step(box, "install")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    os.kill(next(e["pid"] for e in running.seen if e["e"] == "run"), signal.SIGKILL)
    assert running.finish().code == 3
    half = box.snapshot()
    refused = box.run("rollout", "box", "--yes", "--expect", digest)
    assert refused.code == 6 and "ended without a verdict" in refused.stderr, refused
    assert differs(box, half) == []
    assert box.run("recover", "box").code == 0


# ---- with a service --------------------------------------------------------------------------------------


def test_a_rollout_with_a_service_shows_before_and_after_and_its_rollback_restores_the_chain(
    serving: Box,
) -> None:
    before = serving.snapshot()
    done = serving.plain("rollout", "box", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert serving.algorithm() == "DDTREE"
    for name in ("verify steps per token", "accept length", "output tokens/s", "TTFT, ms", "TPOT, ms"):
        row = next(line for line in done.stdout.splitlines() if line.strip().startswith(name))
        assert "-" not in row.split()[-2:], row
    back = serving.run("rollback", "--yes")
    assert back.code == 0, back
    assert serving.algorithm() == "DFLASH" and differs(serving, before) == []


@pytest.mark.parametrize(
    ("mood", "step"),
    [({"exit_at_once": 3}, "start"), ({"wrong_tokens": 2}, "tokens"), ({"accept": 1.2}, "acceptance")],
)
def test_a_service_that_does_not_pass_is_rolled_back(serving: Box, mood: dict[str, Any], step: str) -> None:
    before = serving.snapshot()
    serving.moods(when={"DDTREE": mood})
    done = serving.run("rollout", "box", "--yes")
    assert done.code == 1 and done.outcome["step"] == step, done
    assert done.outcome["state"] == "as before" and "rolled back" in done.outcome["reason"]
    assert serving.algorithm() == "DFLASH" and differs(serving, before) == []
    plain = serving.plain("rollback", "--yes")
    assert plain.returncode == 2 and "undone by itself" in plain.stdout, "nothing done is not passed"


def test_the_api_key_is_in_no_record_no_journal_no_process_list_and_no_evidence(serving: Box) -> None:
    key = "sk-very-secret-0815"
    file = serving.work / "hosts.yaml"
    data = yaml.safe_load(file.read_text())
    data["hosts"]["box"]["service"]["api_key"] = {"env": "BOX_KEY"}
    data["hosts"]["box"]["service"]["launch"]["env"] = {"HF_TOKEN": "hf_verySecret4711"}
    file.write_text(yaml.safe_dump(data))
    secrets = (key, "hf_verySecret4711")
    seen: set[str] = set()
    unpacked: list[str] = []
    over = threading.Event()
    watch = threading.Thread(target=watch_process_list, args=(secrets, seen, unpacked, over))
    watch.start()
    try:
        done = serving.start("rollout", "box", "--yes", BOX_KEY=key).finish(300)
    finally:
        over.set()
        watch.join()
    assert done.code == 0, done
    assert seen == set() and unpacked, "it has looked"
    shown = [json.dumps(done.events) + done.stderr]
    assert serving.plain("report", "last", "-o", "report.html").returncode == 0
    for command in (["show", "last"], ["show", "last", "--json"], ["history"]):
        shown.append(serving.plain(*command).stdout)
    assert all(shown) and not [text for text in shown for secret in secrets if secret in text]
    assert layout.RUNNER in {p.name for p in serving.state.rglob("*")}
    kept = [p for p in [*serving.work.rglob("*"), *serving.state.rglob("*")] if p.is_file() and p != file]
    assert serving.work / "report.html" in kept
    holding = {p for p in kept for secret in secrets if secret.encode() in p.read_bytes()}
    # What starts the service again needs its environment; it is in files that only their owner reads.
    assert not [p for p in holding if p.suffix != ".json" or "logs" in p.parts], holding
    assert not [p for p in holding if p.stat().st_mode & 0o077]
    assert not [p for p in kept if key.encode() in p.read_bytes()]
    assert not [p for p in holding if serving.work in p.parents]


def watch_process_list(
    secrets: tuple[str, ...], seen: set[str], unpacked: list[str], over: threading.Event
) -> None:
    """Every command line that any process has while we look, as `ps` would show it."""
    while not over.wait(0.02):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                for packed in re.findall(r"b64decode\('([^']*)'\)", text):  # who looks can unpack it, too
                    text += base64.b64decode(packed).decode(errors="replace")
                    unpacked.append(packed)
                seen.update(text for secret in secrets if secret in text)


def test_unlock_shows_who_holds_the_host_and_ends_the_run_only_when_forced(box: Box) -> None:
    before = box.snapshot()
    with_run_step(box, "install")
    running = box.start("rollout", "box", "--yes")
    running.until(lambda e: e.get("text") == "waiting", "the held step")
    asked = box.run("unlock", "box")
    assert asked.code == 5, asked
    run = next(e["run"] for e in running.seen if e["e"] == "plan")
    assert all(word in asked.stderr for word in (run, "since", "at step hold", "--force")), asked.stderr
    done = box.run("unlock", "box", "--force")
    assert done.code == 0 and done.outcome["state"] == "as before", done
    assert running.finish().code == 130
    assert differs(box, before) == []
    free = box.run("unlock", "box")
    assert free.code == 0 and "nobody holds the host" in free.outcome["reason"], free


def test_drift_releases_and_the_way_back_to_an_earlier_release(box: Box) -> None:
    original = box.snapshot()
    runs, states = [], []
    for version in ("0.1.0", "0.2.0", "0.3.0"):
        done = box.run("rollout", "box", "--yes", "--payload", box.payload(version, version=version))
        assert done.code == 0, done
        runs.append(done.outcome["run"])
        states.append(box.snapshot())
    third = ["--payload", str(box.work / "0.3.0")]
    (found,) = box.run("drift", "box", *third).events
    assert {f["state"] for f in found["files"]} == {"ours"} and found["moved"] == []
    overlaid = next(f for f in found["files"] if f["ref"].endswith("dflash_info.py"))
    assert overlaid["release"] == runs[2] and "+BLOCK = 32" in overlaid["diff"]
    kept = (box.site / OVERLAID).read_bytes()
    (box.site / OVERLAID).write_bytes(kept + b"# by hand\n")
    edited = box.run("drift", "box", *third)
    assert edited.code == 6 and "+# by hand" in next(
        f["diff"] for f in edited.events[0]["files"] if f["state"] == "foreign"
    )
    (box.site / OVERLAID).write_bytes(kept)
    (listed,) = box.run("releases", "box").events
    assert [r["run"] for r in listed["releases"]] == runs[::-1]
    assert listed["back_to"] == [runs[1], runs[0], "base"]
    done = box.run("rollback", "box", "--yes", "--to", runs[0])
    assert done.code == 0, done
    assert tree.difference(states[0], box.snapshot()) == []
    assert box.run("rollback", "box", "--yes", "--to", runs[2]).code == 2
    assert box.run("rollback", "box", "--yes", "--to", "base").code == 0
    assert differs(box, original) == []
