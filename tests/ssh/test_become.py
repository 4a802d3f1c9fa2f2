"""`become: true`, with a stand-in for sudo that behaves as sudo does with -n, -k and -S."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_deploy import ssh
from ddtree_deploy.errors import TransportError
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
if [ "$1" = -n ]; then
  echo "sudo: a password is required" >&2; exit 1
fi
[ "$1 $2 $3" = "-k -S -p" ] && [ "$4" = "" ] && [ "$5" = "--" ] || { echo "sudo: usage" >&2; exit 2; }
shift 5
read -r given
if [ "$given" != "$(cat "$folder/password")" ]; then
  echo "sudo: 1 incorrect password attempt" >&2; exit 1
fi
BECAME=root exec "$@"
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
