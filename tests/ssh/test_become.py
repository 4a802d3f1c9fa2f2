"""`become: true`, with a stand-in for sudo that behaves as sudo does with -n, -k and -S."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_deploy import ssh
from ddtree_deploy.errors import InputError, TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.protocol import PROTOCOL, FactsRequest
from ddtree_deploy.running.remote import ask_facts
from ddtree_deploy.ssh import become

pytestmark = pytest.mark.ssh
PASSWORD = "Tr0ub4dor&3 'quoted'"
# A login that sudo remembers makes it leave stdin alone: `-k` has to be there.
FAKE = """#!/bin/sh
folder=$(dirname "$0")
echo "$*" >> "$folder/calls"
said() { [ -e "$folder/$1" ] || return 1; cat "$folder/$1" >&2; exit 1; }
run() {  # as sudo does: it looks for the program once it is content with the person
  command -v "$1" > /dev/null || { echo "sudo: $1: command not found" >&2; exit 1; }
  if [ -e "$folder/only" ] && [ "$1" != "$(cat "$folder/only")" ]; then
    echo "Sorry, user ada is not allowed to execute '$1' as root on here." >&2; exit 1
  fi
  BECAME=root exec "$@"
}
if [ "$1" = -n ]; then
  shift
  if [ -e "$folder/nopasswd" ]; then run "$@"; fi
  if [ "$LC_ALL" = C ]; then said english; fi
  said n
  echo "sudo: a password is required" >&2; exit 1
fi
[ "$1 $2 $3" = "-k -S -p" ] && [ "$4" = "" ] && [ "$5" = "--" ] || { echo "sudo: usage" >&2; exit 2; }
shift 5
read -r given
if [ "$given" != "$(cat "$folder/password")" ]; then
  echo "sudo: 1 incorrect password attempt" >&2; exit 1
fi
said after
run "$@"
"""


@pytest.fixture
def sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the stand-in."""
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "sudo").write_text(FAKE)
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setattr(become, "SUDO", str(tmp_path / "sudo"))
    monkeypatch.setattr(become, "_passwords", {})
    yield tmp_path
    calls = (tmp_path / "calls").read_text()
    assert PASSWORD not in calls and "Tr0ub4dor" not in calls


def on_terminal(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """A terminal, and somebody who gives these answers; the questions."""
    asked: list[str] = []
    rest = list(answers)

    def prompt(question: str) -> str:
        asked.append(question)
        return rest.pop(0)

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(become.ask, "__defaults__", (prompt,))
    return asked


def facts(host: Host) -> str:
    request = FactsRequest(protocol=PROTOCOL, state_dir="", refs=[])
    with ssh.connect(host) as link:
        return ask_facts(link, host, request).python


def test_the_password_is_asked_for_once_and_the_commands_own_input_arrives_whole(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = on_terminal(monkeypatch, PASSWORD)
    host = replace(host, become=True)
    assert facts(host) and facts(host)  # the second time without a question
    assert len(asked) == 1 and host.name in asked[0] and "for sudo" in asked[0]
    data = bytes(range(256)) * 400
    with ssh.connect(host) as link:
        code = (
            "import os, sys; sys.stdout.buffer.write(sys.stdin.buffer.read() + os.environ['BECAME'].encode())"
        )
        done = link.run(link.command(sys.executable, "-c", code), data, timeout=60)
    assert done.out == data + b"root"


def test_another_host_with_the_same_password_asks_nobody(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = on_terminal(monkeypatch, PASSWORD)
    assert facts(replace(host, become=True)) and facts(replace(host, become=True, name="other"))
    assert len(asked) == 1


def test_a_wrong_password_is_said_and_not_kept(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch, "wrong")
    with pytest.raises(TransportError, match="did not take the password") as failed:
        facts(replace(host, become=True))
    assert "wrong" not in failed.value.render().replace("did not take the password", "")
    assert become._passwords == {}


def test_without_a_terminal_it_fails_fast(host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(TransportError, match="or a terminal to ask for it") as failed:
        facts(replace(host, become=True))
    assert failed.value.exit_code == 4
    assert (sudo / "calls").read_text().count("\n") == 1


# ---- what sudo says when it does not let us through ------------------------------------------------


def says(sudo: Path, **words: str) -> None:
    """Have the stand-in refuse: `n` to -n, `english` to that with LC_ALL=C, `after` the right password."""
    for name, text in words.items():
        (sudo / name).write_bytes(f"{text}\n".encode("latin-1"))


def refused(host: Host) -> TransportError:
    with pytest.raises(TransportError) as failed:
        facts(replace(host, become=True))
    assert failed.value.exit_code == 4 and failed.value.stage == "sudo"
    assert "sudo -l" in failed.value.next_command and become._passwords == {}
    return failed.value


@pytest.mark.parametrize(
    "said",
    [
        "sudo: Ein Passwort ist notwendig",
        "sudo: il est nécessaire de saisir un mot de passe",
        "sudo-rs: interactive authentication is required",
        "sudo: unable to resolve host gpu1: Name or service not known\nsudo: a password is required",
        "sudo: /etc/sudoers.d/x is world writable\nsudo: a password is required",
        "K\xf6ln",
        "",
    ],
)
def test_case_47_a_password_is_asked_for_in_whatever_language_sudo_wants_it(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    asked = on_terminal(monkeypatch, PASSWORD)
    says(sudo, n=said)
    assert facts(replace(host, become=True)) and len(asked) == 1


REFUSALS = {
    "sudo: sorry, you must have a tty to run sudo": "requiretty",
    "ada is not in the sudoers file.  This incident will be reported.": "nothing in its sudoers",
    "Sorry, user ada is not allowed to execute '/usr/bin/true' as root on gpu1.": "does not let this user",
    'sudo: Account expired or PAM config lacks an "account" section for sudo, contact your administrator\n'
    "sudo: a password is required": "has expired",
    "sudo: account validation failure, is your account locked?": "locked or has expired",
    "sudo: /usr/bin/sudo must be owned by uid 0 and have the setuid bit set": "may become root",
    "sudo: effective uid is not 0, is /usr/bin/sudo on a file system with the 'nosuid' option set": "nosuid",
    "sudo: no valid sudoers sources found, quitting": "its sudoers cannot be used",
    'sudo: The "no new privileges" flag is set, which prevents sudo from running as root.\n'
    "sudo: If sudo is running in a container, you may need to adjust the container": "may not become another",
}


@pytest.mark.parametrize("said", REFUSALS)
@pytest.mark.parametrize("terminal", [True, False])
def test_case_47_another_refusal_is_told_in_sudos_words_and_nobody_is_asked(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch, said: str, *, terminal: bool
) -> None:
    asked = on_terminal(monkeypatch) if terminal else []
    if not terminal:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    says(sudo, n=said)
    message = refused(host).message
    assert said.splitlines()[-1] in message and REFUSALS[said] in message
    assert asked == [] and "take the password" not in message


def test_case_47_sudo_is_asked_for_its_words_in_english_before_anybody_is_asked_for_a_password(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = on_terminal(monkeypatch)
    says(sudo, n="sudo: Sie ben\xf6tigen ein TTY", english="sudo: sorry, you must have a tty to run sudo")
    assert "requiretty" in refused(host).message and asked == []


@pytest.mark.parametrize("said", [*REFUSALS, "sudo: Sie ben\xf6tigen ein Terminal, um sudo auszuf\xfchren"])
def test_case_47_a_refusal_after_the_right_password_does_not_blame_the_password(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    asked = on_terminal(monkeypatch, PASSWORD)
    says(sudo, after=said)
    message = refused(host).message
    assert said.encode("latin-1").decode(errors="replace").splitlines()[-1] in message
    assert len(asked) == 1 and "take the password" not in message


def test_case_47_words_that_nobody_knows_are_shown_as_they_are(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    says(sudo, n="sudo: \x1b[31mnje mo\x9ee\nsudo: so nicht")
    assert "it says: sudo: so nicht" in refused(host).message


def test_case_47_the_password_of_another_host_is_not_tried_on_and_on(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch, PASSWORD)
    assert facts(replace(host, become=True, name="other"))
    says(sudo, after="ada is not in the sudoers file.")
    with pytest.raises(TransportError, match="nothing in its sudoers"):
        facts(replace(host, become=True))
    assert list(become._passwords) == ["other"]


def test_a_password_for_python_alone_is_enough(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch, PASSWORD)
    (sudo / "only").write_text(host.python)
    assert facts(replace(host, become=True))


def test_a_host_without_sudo_is_told_so(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(become, "SUDO", "/nowhere/sudo")
    monkeypatch.setattr(become, "_passwords", {})
    asked = on_terminal(monkeypatch)
    with pytest.raises(TransportError, match=r"the host has no sudo: .*/nowhere/sudo"):
        facts(replace(host, become=True))
    assert asked == []


@pytest.mark.parametrize("asks", [True, False])
def test_an_interpreter_that_is_missing_behind_sudo_is_bad_input(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch, *, asks: bool
) -> None:
    asked = on_terminal(monkeypatch, PASSWORD)
    if not asks:
        (sudo / "nopasswd").touch()
    with pytest.raises(InputError, match="no such interpreter: /nowhere/python"):
        facts(replace(host, become=True, python="/nowhere/python"))
    assert len(asked) == asks


def test_a_broken_python_behind_sudo_is_told_and_nobody_is_asked(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = on_terminal(monkeypatch)
    (sudo / "nopasswd").touch()
    broken = sudo / "python"
    broken.write_text(
        "#!/bin/sh\nprintf 'Fatal Python error: no codec\\n\\n<no Python frame>\\n' >&2; exit 1\n"
    )
    broken.chmod(0o755)
    with pytest.raises(TransportError, match=r"did not begin: .*: Fatal Python error: no codec") as failed:
        facts(replace(host, become=True, python=str(broken)))
    assert asked == [] and "sudo" not in failed.value.message


def test_a_python_that_fails_behind_sudo_is_not_sudos_fault(
    host: Host, sudo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = on_terminal(monkeypatch)
    (sudo / "nopasswd").touch()
    (sudo / "state").write_text("a file")
    request = FactsRequest(protocol=PROTOCOL, state_dir=str(sudo / "state"), refs=[])
    with ssh.connect(replace(host, become=True)) as link, pytest.raises(InputError, match="not a folder"):
        ask_facts(link, replace(host, become=True), request)
    assert asked == []
