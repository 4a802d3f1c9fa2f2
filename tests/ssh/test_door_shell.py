"""Login shells as people have them: that wait, read, print, end, or are no shell at all."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_deploy import ssh
from ddtree_deploy.errors import DeployError, InputError, TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.protocol import PROTOCOL, FactsRequest
from ddtree_deploy.running.remote import ask_facts
from ddtree_deploy.sandbox import openssh, processes
from ddtree_deploy.sandbox.sshd import SshServer
from ddtree_deploy.ssh import link as link_module
from tests.need import lacking
from tests.ports import free_port

pytestmark = pytest.mark.ssh

BOUND = 2.0
Shell = Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A server whose login shell is a file that the tests write."""
    if openssh.find_sshd() is None:
        lacking("OpenSSH's server is not installed here", "SSHD")
    folder = tmp_path_factory.mktemp("shells")
    with SshServer(
        folder / "ssh",
        free_port(),
        folder / "home",
        flavour="openssh",
        environment={"SHELL": str(folder / "shell")},
    ) as running:
        yield running


@pytest.fixture
def shell(server: SshServer) -> Iterator[Shell]:
    """The login shell's file. What still runs of it after the test is ended: known by its environment."""
    shell = server.home.with_name("shell")
    yield shell
    processes.end(processes.with_environment("SHELL", str(shell)), grace=0)


def is_(shell: Shell, first: str, then: str = 'exec /bin/sh "$@"') -> None:
    """Make a login shell that does something first."""
    shell.write_bytes(f"#!/bin/bash\n{first}\n{then}\n".encode("latin-1"))
    shell.chmod(0o755)


def facts(host: Host, told: list[str] | None = None) -> str:
    request = FactsRequest(protocol=PROTOCOL, state_dir="", refs=[])
    with ssh.connect(host, None if told is None else told.append) as link:
        return ask_facts(link, host, request).python


@pytest.fixture
def hasty(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The host, whose login shell may take two seconds."""
    monkeypatch.setattr(link_module, "NOTICE_S", 0.3)
    monkeypatch.setattr(link_module, "LOGIN_S", BOUND - 1.0)
    with ssh.connect(host):  # it is up
        return dataclasses.replace(host, connect_timeout_s=1.0, user=os.environ.get("USER", "root"))


@pytest.mark.parametrize(
    "first",
    [
        "read answer",
        "sleep 600",
        "exec cat > /dev/null",
        "read -N 1000000",
        "exec tail -f /dev/null",
    ],
)
def test_case_44_a_login_shell_that_blocks_is_named_and_given_up(
    hasty: Host, shell: Shell, first: str
) -> None:
    is_(shell, first)
    told: list[str] = []
    begun = time.monotonic()
    with pytest.raises(TransportError) as failed:
        facts(hasty, told)
    assert failed.value.exit_code == 4 and failed.value.stage == "facts"
    assert f"waited {BOUND:.0f} s in vain for the login shell of {hasty.user}" in failed.value.message
    assert "ssh -p" in failed.value.next_command
    (note,) = [note for note in told if "login shell" in note]
    assert note.startswith(f"waiting for the login shell of {hasty.user} to start Python")
    assert note.endswith(f"{BOUND:.0f} s at most")
    assert time.monotonic() - begun < 60


def test_case_44_a_login_shell_that_reads_part_of_what_is_sent_is_named(host: Host, shell: Shell) -> None:
    is_(shell, "read -N 5 x")
    with pytest.raises(TransportError, match="a login file has read part of what was sent") as failed:
        facts(host)
    assert failed.value.exit_code == 4


def test_case_44_a_login_shell_that_prints_without_end_is_given_up(
    hasty: Host, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "FLOOD_LIMIT", 1 << 20)
    monkeypatch.setattr(link_module, "LOGIN_S", 60.0)
    is_(shell, "exec yes")
    with pytest.raises(TransportError, match="the host printed 1 MiB, and no answer among it"):
        facts(hasty)


def test_case_44_a_slow_login_shell_is_waited_for_and_said(hasty: Host, shell: Shell) -> None:
    flag = shell.with_name("go-on")
    flag.unlink(missing_ok=True)
    is_(shell, f"until test -e {flag}; do sleep 0.05; done")
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        flag.touch()

    request = FactsRequest(protocol=PROTOCOL, state_dir="", refs=[])
    patient = dataclasses.replace(hasty, connect_timeout_s=60.0)
    with ssh.connect(patient, tell) as link:
        assert ask_facts(link, patient, request).python
    assert [note for note in told if "login shell" in note]


@pytest.mark.parametrize(
    "first",
    [
        "echo welcome",
        "printf 'no newline'",
        r"printf '\377\376 K\366ln \0 \033[31m'",
        r"printf '\377\376 K\366ln\n' >&2",
        'printf \'DDTREE-FACTS {"not": "ours"}\\n\'',
        'printf \'{"e": "end", "exit": 0}\\n\'',
        "seq 20000",
        "stty -echo; tput cols",
        "set -x",
        "trap 'echo bye' EXIT",
        "umask 077; cd /; export LC_ALL=xx_YY.ISO-8859-1 PYTHONHOME=/nowhere PYTHONPATH=/nowhere",
    ],
)
def test_case_44_what_a_login_shell_prints_before_us_is_passed_over(
    host: Host, shell: Shell, first: str
) -> None:
    is_(shell, first)
    assert facts(host)


ENDS = {
    "echo 'This account is currently not available.'; exit 1": "This account is currently not available.",
    "echo 'not for you' >&2; exit 1": "not for you",
    "echo 'no commands here' >&2; exit 128": "no commands here",
    "exit 0": "it said nothing",
    "exec true": "it said nothing",
    r"printf 'K\366ln ist zu\n'; exit 1": "K\ufffdln ist zu",
    "exec nosuchshell": "nosuchshell",
    "kill -9 $$": "",
}


@pytest.mark.parametrize("become", [False, True])
@pytest.mark.parametrize("first", ENDS)
def test_case_44_a_login_shell_that_ends_is_named_with_its_own_words(
    host: Host, shell: Shell, monkeypatch: pytest.MonkeyPatch, first: str, *, become: bool
) -> None:
    """With `become: true`, too, it is not sudo that is blamed, and nobody is asked for a password."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    is_(shell, first)
    with pytest.raises(TransportError) as failed:
        facts(dataclasses.replace(host, become=become))
    assert failed.value.exit_code == 4 and ENDS[first] in failed.value.message
    if ENDS[first]:
        assert "did not begin: the login shell of " in failed.value.message


@pytest.mark.parametrize("name", ["sh", "bash", "dash", "zsh", "fish", "tcsh", "csh", "ksh", "nologin"])
def test_case_44_shells_of_every_kind(host: Host, shell: Shell, name: str) -> None:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        lacking(f"{name} is not installed here", "SHELLS")
    is_(shell, "", f'exec {found} "$@"')
    if name == "nologin":
        with pytest.raises(TransportError, match="did not begin: the login shell of") as failed:
            facts(host)
        assert failed.value.exit_code == 4 and "not available" in failed.value.message
        return
    assert facts(host)
    missing = dataclasses.replace(host, python="/nowhere/bin/python")
    with pytest.raises(InputError, match="no such interpreter: /nowhere/bin/python") as wrong:
        facts(missing)
    assert wrong.value.exit_code == 2
    odd = dataclasses.replace(host, python="/no where/it's/$HOME/python")
    with pytest.raises(DeployError):
        facts(odd)


def test_case_44_read_in_bashrc_as_people_have_it(hasty: Host, shell: Shell, server: SshServer) -> None:
    is_(shell, "", 'exec /bin/bash "$@"')
    (server.home / ".bashrc").write_text('read -p "Which environment? " env\n')
    try:
        with pytest.raises(TransportError, match="waited 2 s in vain for the login shell of"):
            facts(hasty)
    finally:
        (server.home / ".bashrc").unlink()


def test_a_host_whose_facts_take_long_is_named_for_that(
    hasty: Host, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python begins, and hangs then: it is not the login shell's fault."""
    is_(shell, "")
    monkeypatch.setattr("ddtree_deploy.running.remote.FACTS_S", 1.0)
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nhead -c 1 > /dev/null; echo DDTREE-BEGUN; exec sleep 600\n")
    script.chmod(0o755)
    told: list[str] = []
    patient = dataclasses.replace(hasty, connect_timeout_s=60.0, python=str(script))
    with pytest.raises(TransportError, match="waited 1 s in vain for Python there to say what the host is"):
        facts(patient, told)
    assert told[-1] == "waiting for Python there to say what the host is, 1 s at most"
