"""Logins of people on a whole host: real sudo, real PAM, real login shells."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.controller import Controller, Result
from tests.lab.hosts import Host, Lab
from tests.lab.image import USER, Image
from tests.lab.matrix.looks import STATE
from tests.need import lacking

pytestmark = pytest.mark.lab
WORD = "Tr0ub4dor&3"
PYTHON = "/opt/sglang/venv/bin/python"


@dataclass
class Door:
    """A host that is entered as an ordinary user."""

    host: Host
    controller: Controller

    def sudoers(self, *lines: str) -> None:
        """root, and these lines."""
        file = self.host.path("/etc/sudoers")
        file.unlink(missing_ok=True)
        file.write_text("\n".join(["root ALL=(ALL) ALL", "Defaults lecture=never", *lines, ""]))
        file.chmod(0o440)

    def status(self) -> Result:
        return self.controller.run("status", self.host.name)

    def typed(self, answer: str) -> tuple[int, str]:
        """`status` on a terminal on which the answer is typed to the first question; exit code and screen."""
        argv = [sys.executable, "-m", "ddtree_deploy", "status", self.host.name]
        argv += ["--hosts", str(self.controller.folder / "hosts.yaml")]
        main, side = pty.openpty()
        with self.host.lab.inside():
            process = subprocess.Popen(
                argv,
                stdin=side,
                stdout=side,
                stderr=side,
                start_new_session=True,
                cwd=self.controller.folder,
            )
        os.close(side)
        screen, asked = b"", False
        deadline = time.monotonic() + 120
        try:
            while time.monotonic() < deadline:
                try:
                    data = os.read(main, 4096)
                except OSError:  # how a terminal ends
                    break
                screen += data
                if b"for sudo: " in screen and not asked:
                    asked = True
                    os.write(main, f"{answer}\n".encode())
            return process.wait(30), screen.decode(errors="replace")
        finally:
            process.kill()
            os.close(main)


@pytest.fixture(scope="module")
def entered(lab: Lab) -> Iterator[Host]:
    (host,) = lab.add(1, Image(service=False))
    yield host
    lab.remove(host)


@pytest.fixture
def door(entered: Host, tmp_path: Path) -> Iterator[Door]:
    if shutil.which("sudo") is None:
        lacking("no sudo here: apt-get install sudo", "SUDO")
    entered.run(f"echo '{USER}:{WORD}' | chpasswd && chage -E -1 -d 2026-01-01 -M -1 {USER}")
    yield Door(entered, Controller(tmp_path, [entered], user=USER, become=True, connect_timeout="10s"))
    assert not entered.path(STATE).exists()
    entered.run(f"chage -E -1 {USER}; rm -f /home/{USER}/.bashrc")


def test_case_47_sudo_that_wants_nothing_lets_us_through(door: Door) -> None:
    door.sudoers(f"{USER} ALL=(ALL) NOPASSWD: {PYTHON}")
    assert door.status().code == 0


REFUSALS = {
    "not in sudoers": ([], "sudo: a password is required"),
    "requiretty": (
        [f"{USER} ALL=(ALL) NOPASSWD: ALL", "Defaults requiretty"],
        "sudo: sorry, you must have a tty to run sudo (`requiretty`",
    ),
    "wants a password": ([f"{USER} ALL=(ALL) ALL"], "sudo: a password is required"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_case_47_without_a_terminal_the_error_has_sudos_own_last_line(door: Door, name: str) -> None:
    lines, said = REFUSALS[name]
    door.sudoers(*lines)
    done = door.status().expect(4)
    assert said in done.stderr and "did not take" not in done.stderr, done


def test_case_47_an_expired_account_is_named(door: Door) -> None:
    door.sudoers(f"{USER} ALL=(ALL) NOPASSWD: ALL")
    door.host.run(f"chage -E 0 {USER}")
    done = door.status().expect(4)
    assert "expired" in done.stderr and "did not take" not in done.stderr, done


@pytest.mark.parametrize("name", ["wants a password", "a password for python alone"])
def test_case_47_the_password_typed_on_a_terminal_lets_us_through(door: Door, name: str) -> None:
    door.sudoers(f"{USER} ALL=(ALL) {'ALL' if name == 'wants a password' else PYTHON}")
    code, screen = door.typed(WORD)
    assert code == 0, screen
    assert f"password of {USER} for sudo: " in screen and WORD not in screen


AFTER = {
    "not in sudoers": ([], f"{USER} is not in the sudoers file"),
    "another command": ([f"{USER} ALL=(ALL) /usr/bin/id"], f"user {USER} is not allowed to execute"),
}


@pytest.mark.parametrize("name", AFTER)
def test_case_47_the_right_password_is_not_blamed_for_what_sudoers_lacks(door: Door, name: str) -> None:
    lines, said = AFTER[name]
    door.sudoers(*lines)
    code, screen = door.typed(WORD)
    assert code == 4 and said in screen and "did not take" not in screen, screen


def test_case_47_a_wrong_password_is_named_as_that(door: Door) -> None:
    door.sudoers(f"{USER} ALL=(ALL) ALL")
    code, screen = door.typed("wrong")
    assert code == 4 and f"sudo did not take the password of {USER}: sudo: 1 incorrect" in screen, screen


def test_case_47_where_a_terminal_is_required_no_password_is_asked_for(door: Door) -> None:
    door.sudoers(f"{USER} ALL=(ALL) ALL", "Defaults requiretty")
    code, screen = door.typed("never")
    assert code == 4 and "for sudo: " not in screen and "must have a tty" in screen, screen


def test_case_44_a_login_shell_that_reads_is_named_after_seconds_and_given_up(door: Door) -> None:
    """By the clock, with the bounds that people have."""
    door.sudoers(f"{USER} ALL=(ALL) NOPASSWD: ALL")
    door.host.path(f"/home/{USER}/.bashrc").write_text("read answer\n")
    begun = time.monotonic()
    done = door.status().expect(4)
    seconds = time.monotonic() - begun
    *notices, error = done.stderr.splitlines()
    who = f"the login shell of {USER} and sudo"
    assert f"{door.host.name}: waiting for {who} to start Python" in notices[-1], done
    assert f"waited 30 s in vain for {who}" in error and "next: ssh -p 22" in error, done
    assert 29 < seconds < 75, done


def test_case_44_what_bashrc_prints_in_latin_1_is_passed_over(door: Door) -> None:
    door.sudoers(f"{USER} ALL=(ALL) NOPASSWD: ALL")
    door.host.path(f"/home/{USER}/.bashrc").write_bytes(b"echo 'Gr\xfc\xdfe aus K\xf6ln'; printf '\\376 {'\n")
    done = door.status().expect(0)
    assert "K" not in done.stderr, done


@pytest.mark.parametrize("shell", ["/usr/sbin/nologin", "/bin/false", "/nowhere/shell"])
def test_case_44_an_account_without_a_shell_is_named_for_that(door: Door, shell: str) -> None:
    door.host.run(f"usermod -s {shell} {USER}")
    try:
        done = door.status().expect(4)
    finally:
        door.host.run(f"usermod -s /bin/bash {USER}")
    assert re.search(r"did not begin: the login shell of sgl|refused every key", done.stderr), done
