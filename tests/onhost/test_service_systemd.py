"""systemd services with a stand-in for systemctl: what is written, asked, refused. Real ones: tests/lab."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.context import StepFailed
from ddtree_deploy.onhost.service.systemd import expansion, unitfile
from ddtree_deploy.onhost.service.systemd.control import DROP_IN, SystemdControl
from ddtree_deploy.onhost.state import durable
from ddtree_deploy.onhost.wire.protocol import Launch

from .serving_support import Lab, lab_at, of

UNIT = """[Unit]
Description=SGLang

[Service]
Environment=OMP_NUM_THREADS=1
EnvironmentFile=-{env_file}
ExecStart={python} -m sglang.launch_server --model-path /m --api-key s3cret-key --port ${{PORT}} --fmt 5%%
Restart=always
"""

SYSTEMCTL = """#!{python} -S
import json, os, sys
from pathlib import Path
root = Path({root!r})
args = [a for a in sys.argv[1:] if a != "--no-pager"]
with (root / "calls").open("a") as f:
    f.write(" ".join(args) + "\\n")
state = json.loads((root / "state.json").read_text())
if args[0] == "show" and "--" in args:
    names = args[1].split("=", 1)[1].split(",")
    units = [{{"Id": u, "ActiveState": "active", **state.get("beside", {{}}).get(u, {{}})}} for u in args[3:]]
    print("\\n".join("".join(f"{{n}}={{u[n]}}\\n" for n in names if n in u) for u in units), end="")
elif args[0] == "show":
    names = args[2].split("=", 1)[1].split(",")
    print("\\n".join(f"{{n}}={{state[n]}}" for n in names if n in state))
elif args[0] in state.get("fails", []):
    print("Job failed.", file=sys.stderr)
    sys.exit(1)
"""

# It reads the units of the folder by our own reader; that systemd reads them so is shown in tests/lab.
BUSCTL = """#!{python}
import json, sys
from pathlib import Path
sys.path.insert(0, {repo!r})
from ddtree_deploy.onhost.service.systemd import expansion, unitfile
root = Path({root!r})
args = [a for a in sys.argv[1:] if not a.startswith("--")]
if args[0] == "get-property":
    print(json.dumps({{"type": "as", "data": ["LANG=C.UTF-8", "PATH=/usr/bin"]}}))
    print(json.dumps({{"type": "s", "data": "252.1"}}))
elif args[4] == "LoadUnit":
    print(json.dumps({{"type": "o", "data": ["/unit"]}}))
else:
    d = root / "units" / "sglang.service.d"
    drop_ins = sorted(d.glob("*.conf")) if d.is_dir() else []
    texts = [p.read_text() for p in (root / "units" / "sglang.service", *drop_ins)]
    told = {{"LoadState": "loaded", "DropInPaths": [str(p) for p in drop_ins], "User": "root"}}
    told["FragmentPath"] = str(root / "units" / "sglang.service")
    try:
        commands = []
        for line in unitfile.effective(texts, "ExecStart"):
            at, words = line.startswith("@"), unitfile.split(line.removeprefix("@"))
            words = [unitfile.specified(w, {{}}) for w in words]
            commands.append([words[0], words[at:], []])
        told["ExecStartEx"] = commands
        told["Environment"] = [unitfile.specified(w, {{}}) for w in unitfile.environment(texts)]
    except ValueError as error:
        told |= {{"LoadState": "bad-setting", "LoadError": ["org.x", str(error)]}}
    files = unitfile.effective(texts, "EnvironmentFile")
    told["UnsetEnvironment"] = unitfile.effective(texts, "UnsetEnvironment")
    told["EnvironmentFiles"] = [[f.lstrip("-"), f.startswith("-")] for f in files]
    told |= json.loads((root / "state.json").read_text()).get("held", {{}})
    print(json.dumps({{"type": "a{{sv}}", "data": [{{k: {{"data": v}} for k, v in told.items()}}]}}))
"""


@dataclass
class Host:
    lab: Lab
    root: Path

    @property
    def drop_in(self) -> Path:
        return self.root / "units" / "sglang.service.d" / DROP_IN

    def state(self, **values: Any) -> None:
        base = {
            "LoadState": "loaded",
            "ActiveState": "inactive",
            "SubState": "dead",
            "MainPID": "0",
            "NRestarts": "0",
        }
        (self.root / "state.json").write_text(json.dumps(base | values))

    def calls(self) -> list[str]:
        return [c for c in (self.root / "calls").read_text().splitlines() if not c.startswith("show")]

    def control(self, **edits: Any) -> SystemdControl:
        service = self.lab.service("systemd", unit="sglang.service", launch=Launch(**edits))
        found = of(self.lab.context(service))
        assert isinstance(found, SystemdControl)
        return found


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    root = tmp_path / "sd"
    (root / "units").mkdir(parents=True)
    (root / "calls").touch()
    (root / "env").write_text("PORT=31399\nFROM_FILE=1\n")
    text = UNIT.format(env_file=root / "env", python=sys.executable)
    (root / "units" / "sglang.service").write_text(text)
    repo = str(Path(__file__).parents[2])
    for name, text in (("systemctl", SYSTEMCTL), ("busctl", BUSCTL)):
        fake = root / name
        fake.write_text(text.format(python=sys.executable, root=str(root), repo=repo))
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")
    monkeypatch.setattr(SystemdControl, "units", root / "units")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with lab_at(tmp_path) as lab:
        made = Host(lab, root)
        made.state()
        yield made


EDITS = {"set": {"speculative-algorithm": "DDTREE", "note": "50% of $HOME"}, "env": {"A": "two words"}}


def test_the_drop_in_clears_sets_and_is_read(host: Host) -> None:
    control = host.control(**EDITS)
    ctx = host.lab.context(control.service)
    control.apply_launch(ctx)
    text = host.drop_in.read_text()
    assert "\nExecStart=\nExecStart=" in text
    assert "--port ${PORT} --fmt 5%% --speculative-algorithm DDTREE" in text
    assert '--note "50%% of $$HOME"' in text
    assert 'Environment="A=two words"' in text
    assert host.calls() == ["daemon-reload"]
    plain = control.future_argv()
    assert plain[-8:] == [
        "--port",
        "31399",
        "--fmt",
        "5%",
        "--speculative-algorithm",
        "DDTREE",
        "--note",
        "50% of $HOME",
    ]
    assert (
        control.environment().items() >= {"A": "two words", "PORT": "31399", "OMP_NUM_THREADS": "1"}.items()
    )


def test_edits_start_from_the_unit_without_our_own_drop_in(host: Host) -> None:
    first, second = host.control(set={"first": "1"}), host.control(set={"second": "2"})
    first.apply_launch(host.lab.context(first.service))
    second.apply_launch(host.lab.context(second.service))
    assert "--first" not in host.drop_in.read_text() and "--second 2" in host.drop_in.read_text()


def test_no_edits_means_no_drop_in(host: Host) -> None:
    edited, plain = host.control(**EDITS), host.control()
    edited.apply_launch(host.lab.context(edited.service))
    plain.apply_launch(host.lab.context(plain.service))
    assert not host.drop_in.exists()


def killed_while_writing(path: Path) -> None:
    """As a runner that is killed before it renames the new content into its place."""
    pid = os.fork()
    if pid == 0:
        os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        durable.replace(path, b"half", 0o644)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert durable.temp_of(path).exists(), "nothing was left: the test proves nothing"


def test_what_a_killed_runner_left_beside_the_drop_in_goes_with_the_undo(host: Host) -> None:
    control = host.control(**EDITS)
    ctx = host.lab.context(control.service)
    control.apply_launch(ctx)
    control.record(ctx.backup_dir)
    whole = host.drop_in.read_text()
    killed_while_writing(host.drop_in)
    control.restore_launch(ctx, ctx.backup_dir)  # the drop-in is as it was: only the rest has to go
    assert [p.name for p in host.drop_in.parent.iterdir()] == [host.drop_in.name]
    assert host.drop_in.read_text() == whole
    killed_while_writing(host.drop_in)
    control.apply_launch(ctx)
    assert [p.name for p in host.drop_in.parent.iterdir()] == [host.drop_in.name]
    killed_while_writing(host.drop_in)
    durable.remove(host.drop_in)
    assert list(host.drop_in.parent.iterdir()) == []


def test_what_was_not_there_is_gone_again_with_its_folder(host: Host) -> None:
    control = host.control(**EDITS)
    ctx = host.lab.context(control.service)
    control.record(ctx.backup_dir)
    control.apply_launch(ctx)
    assert control.launch_restored(ctx.backup_dir) != ""
    for _ in range(2):  # idempotent
        control.restore_launch(ctx, ctx.backup_dir)
        assert not host.drop_in.parent.exists()
    assert host.calls()[-1] == "daemon-reload"
    assert control.launch_restored(ctx.backup_dir) == ""


def test_what_was_there_comes_back_byte_for_byte(host: Host) -> None:
    host.drop_in.parent.mkdir()
    host.drop_in.write_bytes(b"[Service]\nExecStart=\nExecStart=/bin/old \xe2\x98\x83\n")
    before = host.drop_in.read_bytes()
    control = host.control(**EDITS)
    ctx = host.lab.context(control.service)
    control.record(ctx.backup_dir)
    control.apply_launch(ctx)
    assert host.drop_in.read_bytes() != before
    control.restore_launch(ctx, ctx.backup_dir)
    assert host.drop_in.read_bytes() == before
    assert [p.name for p in host.drop_in.parent.iterdir()] == [DROP_IN], "no temporary file is left"


def test_the_facts_are_masked_and_complete(host: Host) -> None:
    facts = host.control(**EDITS).describe()
    assert (facts.kind, facts.state, facts.problem) == ("systemd", "inactive", "")
    assert "s3cret" not in json.dumps(facts.__dict__)
    assert facts.command[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert facts.new_command[-2:] == ["--note", "50% of $HOME"]
    assert facts.definition == str(host.root / "units" / "sglang.service")
    other = host.control(**EDITS).describe().digest
    assert facts.digest == other
    (host.root / "units" / "sglang.service").write_text("[Service]\nExecStart=/bin/x\n")
    assert host.control().describe().digest != other


def test_the_record_holds_what_a_restore_needs(host: Host) -> None:
    control = host.control(**EDITS)
    ctx = host.lab.context(control.service)
    record = control.record(ctx.backup_dir)
    assert (record.active, record.generated) == (False, False)
    assert record.definition == {"path": str(host.drop_in), "content": None, "mode": None}
    assert (ctx.backup_dir / "service.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("exec_start", "words"),
    [
        ('/bin/bash -c "exec python -m sglang.launch_server"', "it runs through a shell (bash)"),
        ("/usr/bin/docker run sglang", "it runs a container (docker)"),
        ('/bin/x "y', "systemd refuses sglang.service: a quote is not closed"),
    ],
)
def test_an_exec_start_that_cannot_be_edited_is_shown_and_refused(
    host: Host, exec_start: str, words: str
) -> None:
    (host.root / "units" / "sglang.service").write_text(f"[Service]\nExecStart={exec_start}\n")
    problem = host.control(**EDITS).describe().problem
    assert words in problem
    control = host.control(**EDITS)
    with pytest.raises(StepFailed, match="launch: "):
        control.apply_launch(host.lab.context(control.service))
    assert not host.drop_in.exists()


def test_a_whole_command_replaces_even_a_wrapper(host: Host) -> None:
    (host.root / "units" / "sglang.service").write_text("[Service]\nExecStart=/bin/bash -c x\n")
    control = host.control(command=["/v/bin/python3", "-m", "sglang.launch_server"])
    assert control.describe().problem == ""
    control.apply_launch(host.lab.context(control.service))
    assert "ExecStart=/v/bin/python3 -m sglang.launch_server\n" in host.drop_in.read_text()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"LoadState": "not-found"}, "there is no unit sglang.service"),
        ({"NeedDaemonReload": "yes"}, "systemctl daemon-reload"),
        ({"held": {"DropInPaths": ["/dev/zzzzz.conf"]}}, "would win"),
        ({"held": {"FragmentPath": "/run/systemd/transient/x.service"}}, "made by systemd-run"),
    ],
)
def test_what_stands_in_the_way_is_said(host: Host, state: dict[str, Any], words: str) -> None:
    host.state(**state)
    assert words in host.control().describe().problem


def test_an_environment_file_that_would_win_is_said(host: Host) -> None:
    assert "EnvironmentFile=" in host.control(env={"FROM_FILE": "2"}).describe().problem


def test_without_root_it_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in host.control().describe().problem


@pytest.mark.parametrize(
    ("state", "alive", "words"),
    [
        ({"ActiveState": "active", "SubState": "running"}, True, "active (running)"),
        ({"ActiveState": "activating", "SubState": "start"}, True, "activating"),
        (
            {"ActiveState": "activating", "SubState": "auto-restart", "ExecMainStatus": "3"},
            False,
            "about to restart",
        ),
        ({"ActiveState": "active", "SubState": "running", "NRestarts": "2"}, False, "restarted it 2 times"),
        (
            {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "3"},
            False,
            "exit-code, exit status 3",
        ),
        ({"ActiveState": "inactive"}, False, "it is inactive"),
    ],
)
def test_case_17_a_crash_loop_is_an_end(host: Host, state: dict[str, str], alive: bool, words: str) -> None:
    control = host.control()
    control.start(host.lab.context(control.service))
    assert host.calls() == ["reset-failed sglang.service", "start --no-block sglang.service"]
    host.state(**state)
    runs, how = control.alive()
    assert runs is alive and words in how


def test_a_start_that_systemd_refuses_is_a_failure(host: Host) -> None:
    host.state(fails=["start"])
    control = host.control()
    with pytest.raises(StepFailed, match=r"start --no-block sglang\.service: Job failed"):
        control.start(host.lab.context(control.service))


def test_case_25_what_would_start_it_is_stopped_before_it_and_started_around_it(host: Host) -> None:
    beside = {
        "sglang.socket": {"UpheldBy": "keeper.service"},
        "edge.service": {"ConsistsOf": "second.service"},
    }
    host.state(
        ActiveState="active", TriggeredBy="sglang.socket", RequiredBy="edge.service", beside=beside, Id="x"
    )
    control = host.control()
    ctx = host.lab.context(control.service)
    facts = control.describe()
    names = ["edge.service", "keeper.service", "second.service", "sglang.socket"]
    assert facts.dependents == names, "in one order, whatever systemd's: a plan's digest is over them"
    record = control.record(ctx.backup_dir)
    assert set(record.dependents) == set(facts.dependents)
    control.terminate()
    assert host.calls() == ["stop --no-block keeper.service sglang.socket sglang.service"]
    control.start(ctx)
    started = [call for call in host.calls() if call.startswith("start")]
    assert started[0] == "start --no-block -- sglang.socket" and started[1].endswith("block sglang.service")
    assert set(started[2].split()[3:]) == {"edge.service", "keeper.service", "second.service"}


def test_case_25_a_dependent_that_cannot_be_started_does_not_keep_the_service_down(host: Host) -> None:
    host.state(ActiveState="active", RequiredBy="edge.service")
    control = host.control()
    ctx = host.lab.context(control.service)
    control.record(ctx.backup_dir)
    host.state(fails=["reset-failed"])
    control.start(ctx)
    assert host.calls()[-1] == "start --no-block -- edge.service"
    assert "start --no-block sglang.service" in host.calls()


@pytest.mark.parametrize(
    ("state", "under_way"),
    [
        ({"ActiveState": "deactivating"}, True),
        ({"ActiveState": "active", "Job": "17"}, True),
        ({"ActiveState": "active", "Job": ""}, False),
        ({"ActiveState": "active", "Job": "0"}, False),
        ({"ActiveState": "activating", "Job": "17"}, False),
        ({"ActiveState": "failed"}, False),
    ],
)
def test_case_33_a_stop_under_way_is_seen_also_before_it_begins(
    host: Host, state: dict[str, str], under_way: bool
) -> None:
    host.state(TimeoutStopUSec="25s", **state)
    told = host.control().stop_under_way()
    assert bool(told) is under_way and ("(25s)" in told) is under_way


def test_the_log_of_a_unit_may_be_a_file(host: Host) -> None:
    log = host.root / "server.log"
    log.write_bytes(b"one\nLoading: 1%\rLoading: 99%\nkey is s3cret-key\n")
    text = (host.root / "units" / "sglang.service").read_text() + f"StandardOutput=append:{log}\n"
    (host.root / "units" / "sglang.service").write_text(text)
    host.state(StandardOutput="append")
    control = host.control()
    assert control.log_mark() == str(log.stat().st_size)
    assert control.log_tail(2) == ["Loading: 99%", "key is ***"]


def test_our_drop_in_is_what_systemd_takes(host: Host) -> None:
    control = host.control(**EDITS)
    control.apply_launch(host.lab.context(control.service))
    unit = (host.root / "units" / "sglang.service").read_text()
    _, words = unitfile.exec_start([unit, host.drop_in.read_text()])
    env = expansion.environment_file((host.root / "env").read_bytes(), 252)
    plain = [unitfile.specified(word, {}) for word in words]
    assert expansion.expand(plain, env, 252) == control.future_argv()


def test_an_argv0_of_its_own_is_kept(host: Host) -> None:
    (host.root / "units" / "sglang.service").write_text("[Service]\nExecStart=@/bin/x y --z 1\n")
    control = host.control(set={"z": "2"})
    assert control.describe().problem == ""
    control.apply_launch(host.lab.context(control.service))
    assert "ExecStart=@/bin/x y --z 2\n" in host.drop_in.read_text()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ExecStart=/bin/x --speculative-algorithm DFLASH $EXTRA", " DFLASH"),
        ("ExecStart=/bin/x $EXTRA", " DFLASH"),
        ("ExecStart=/bin/x $EXTRA -v", "=DFLASH"),
    ],
)
def test_case_30_a_variable_that_has_our_flag_again_is_said(host: Host, line: str, words: str) -> None:
    again = "--speculative-algorithm" + words
    (host.root / "units" / "sglang.service").write_text(f"[Service]\nEnvironment='EXTRA={again}'\n{line}\n")
    edited: list[dict[str, Any]] = [{"unset": ["speculative-algorithm"]}]
    if "DFLASH $EXTRA" in line:  # else ours comes last, and is what the server takes
        edited.append({"set": {"speculative-algorithm": "DDTREE"}})
    for edits in edited:
        control = host.control(**edits)
        problem = control.describe().problem
        assert "($EXTRA) has --speculative-algorithm, too, and wins" in problem
        with pytest.raises(StepFailed, match="too, and wins"):
            control.apply_launch(host.lab.context(control.service))


def test_case_30_a_variable_that_is_taken_away_again_is_said(host: Host) -> None:
    (host.root / "units" / "sglang.service").write_text("[Service]\nExecStart=/bin/x\nUnsetEnvironment=A\n")
    assert host.control(env={"B": "1"}).describe().problem == ""
    assert (
        "UnsetEnvironment= of sglang.service takes it away" in host.control(env={"A": "1"}).describe().problem
    )


def test_a_unit_that_was_changed_after_our_drop_in_is_read_again(host: Host) -> None:
    first = host.control(set={"first": "1"})
    first.apply_launch(host.lab.context(first.service))
    unit = host.root / "units" / "sglang.service"
    unit.write_text(unit.read_text().replace("--fmt 5%%", "--api-key new"))
    second = host.control(set={"second": "2"})
    second.apply_launch(host.lab.context(second.service))
    assert "--api-key new --second 2" in host.drop_in.read_text()
