"""The command line's own errors: one line on stderr, an exit code, never a traceback."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ddtree_deploy import cli, errors
from ddtree_deploy.commands import inputs, run
from ddtree_deploy.console import PlainView
from ddtree_deploy.running import outcome
from ddtree_deploy.running.fleet import FleetOutcome
from ddtree_deploy.running.record import Last, Record

HOSTS = "hosts:\n  ct1: {address: 127.0.0.1, python: /v/bin/python}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rollout"], "Missing argument"),
        (["rolout", "x"], "No such command 'rolout'"),
        (["rollout", "x", "--hoss", "y"], "No such option"),
        (["rollout", "x", "y"], "unexpected extra argument"),
        (["rollout", "x", "--yes"], "there is no hosts.yaml in"),
        (["status"], "--hosts FILE"),
        (["plan", "x", "--hosts", "nowhere.yaml"], "nowhere.yaml: --hosts: no such file"),
        (["rollback"], "there is no hosts.yaml in"),
        (["sandbox", "upp"], "No such command 'upp'"),
    ],
)
def test_a_wrong_command_line_exits_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert cli.run(arguments) == 2
    line = one_line(capsys)
    assert says.lower() in line.lower() and "nothing was touched" in line


def test_a_long_value_does_not_push_the_next_command_off_the_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["rollout", "x" * 5000, "y" * 5000]) == 2
    line = one_line(capsys)
    assert len(line) < 2100 and line.endswith("next: ddtree-deploy rollout --help")


def test_payload_digest_prints_the_lines_that_payload_yaml_needs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.py").write_text("A = 1\n")
    (folder / "a.patch").write_text("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-A = 1\n+A = 2\n")
    assert cli.run(["payload-digest", "a.patch", "a.py"]) == 0
    digests = [hashlib.sha256(text).hexdigest() for text in (b"A = 1\n", b"A = 2\n")]
    assert capsys.readouterr().out == f"base: {digests[0]}\nresult: {digests[1]}\n"
    (folder / "a.py").write_text("A = 3\n")
    assert cli.run(["payload-digest", "a.patch", "a.py"]) == 2
    assert "a.patch: does not fit a.py" in one_line(capsys)
    assert cli.run(["payload-digest", "nowhere.patch", "a.py"]) == 2
    assert "nowhere.patch" in one_line(capsys)


def test_a_missing_playbook_and_payload_name_their_flags(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "hosts.yaml").write_text(HOSTS)
    assert cli.run(["rollout", "ct1", "--yes"]) == 2
    assert "--playbook FILE" in one_line(capsys)
    book = Path(__file__).parents[2] / "playbooks" / "rollout.yaml"
    assert cli.run(["rollout", "ct1", "--yes", "--playbook", str(book)]) == 2
    assert "--payload DIR" in one_line(capsys)


def test_no_rollout_yet_means_no_default_target_for_rollback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "hosts.yaml").write_text(HOSTS)
    assert cli.run(["rollback", "--yes"]) == 2
    assert "ddtree-deploy rollback TARGET" in one_line(capsys)


def test_a_host_of_the_last_rollout_that_is_gone_from_hosts_yaml_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "hosts.yaml").write_text(HOSTS)
    Record(folder / "hosts.yaml").set_last(Last("2026-01-01", "old", {"old": "r1"}))
    assert cli.run(["rollback", "--yes"]) == 2
    assert "'old'" in one_line(capsys)


def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0 and cli.run(["rollout", "--help"]) == 0 and cli.run(["--version"]) == 0
    assert "ddtree-deploy 0." in capsys.readouterr().out


def test_no_arguments_show_the_help_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    captured = capsys.readouterr()
    assert "rollback" in captured.out and captured.err == ""


def test_an_unexpected_error_is_one_line_and_a_log_with_the_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise RuntimeError("odd\nmore")

    monkeypatch.setattr(inputs, "load_hosts", broken)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert cli.run(["status"]) == 1
    line = one_line(capsys)
    assert "unexpected RuntimeError: odd" in line and "this is a bug" in line
    (log,) = folder.glob("ddtree-deploy-bug-*.log")
    assert str(log) in line and "Traceback" in log.read_text()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TransportError("x", host="h"), 4),
        (errors.LockedError("x"), 5),
        (errors.DriftError("x"), 6),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 1),  # of a socket: of stdout there is none (streams.py)
    ],
)
def test_errors_of_commands_become_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(inputs, "load_hosts", broken)
    monkeypatch.setattr("sys.stdout", open("/dev/null", "w"))  # noqa: PTH123, SIM115
    assert cli.run(["status"]) == code


def test_a_rollout_without_terminal_and_consent_names_yes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(errors.InputError) as caught:
        inputs.require_consent(False, "rollout 'a b'")
    assert caught.value.next_command == "ddtree-deploy rollout 'a b' --yes"
    inputs.require_consent(True, "rollout x")


@pytest.mark.parametrize(("codes", "exit_code"), [([0, 0], 0), ([0, 1], 1), ([0, 4], 4), ([3], 3), ([], 0)])
def test_a_fleet_exits_with_its_gravest_code(codes: list[int], exit_code: int) -> None:
    outcomes = [outcome.Outcome(f"h{i}", "rollout", code) for i, code in enumerate(codes)]
    assert FleetOutcome(outcomes, []).exit_code == exit_code


@pytest.mark.parametrize("code", sorted(errors.GRAVITY))
def test_every_exit_code_has_a_meaning(code: int) -> None:
    assert outcome.meaning(code) != outcome.meaning(99)


def test_consent_shows_the_plan_and_takes_only_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.test_record import changes

    asked: list[str] = []
    for answer in (True, False):
        monkeypatch.setattr(inputs, "ask", lambda question, a=answer: asked.append(question) or a)
        view = PlainView(open("/dev/null", "w"))  # noqa: PTH123, SIM115
        assert run._consent(view, run.QUESTION)(changes()) is answer
    assert asked == ["rollout on ct1?"] * 2
    assert run._consent(PlainView(open("/dev/null", "w")), None)(changes())  # noqa: PTH123, SIM115
    assert len(asked) == 2


def test_the_outcome_of_an_error_keeps_its_stage_state_and_next_command() -> None:
    error = errors.ContactLost("gone", stage="follow", host="ct1", state="it goes on", next_command="attach")
    made = outcome.Outcome.of_error(error, "ct1", "rollout")
    assert (made.exit_code, made.step, made.state, made.next_command) == (8, "follow", "it goes on", "attach")
    assert made.error == error.render()
    json.dumps(made.to_dict())
