"""The first host is called while the program loads: its line is used once, or hung up."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddtree_deploy import ssh
from ddtree_deploy.commands import ahead, inputs
from ddtree_deploy.errors import InputError, TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.ssh import tcp
from tests.onhost.host import until

ROOT = Path(__file__).parents[2]


class Line:
    """Stands for a Link."""

    def __init__(self, name: str, dialed: Any) -> None:
        self.name, self.dialed = name, dialed
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class Socket:
    """Stands for the TCP connection."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def dialed(monkeypatch: pytest.MonkeyPatch) -> list[Socket]:
    opened: list[Socket] = []

    def connect(address: str, port: int, seconds: float) -> Socket:
        opened.append(Socket(f"{address}:{port}"))
        return opened[-1]

    monkeypatch.setattr(tcp, "connect", connect)
    return opened


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, dialed: list[Socket]) -> list[Line]:
    """Every line on which somebody logged in. A host named `dead` does not answer."""
    opened: list[Line] = []

    def connect(host: Any, dialed: Any = None, allowed: Any = None) -> Line:
        if host.name == "dead":
            raise TransportError("connection refused", host=host.name)
        line = Line(host.name, dialed() if dialed else None)
        try:
            if allowed:
                allowed()
        except BaseException:
            line.dialed.close()
            raise
        opened.append(line)
        return line

    monkeypatch.setattr(ssh, "connect", connect)
    return opened


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    file = tmp_path / "hosts.yaml"
    named = {
        name: {"address": f"10.0.0.{i}", "python": "/v/bin/python"}
        for i, name in enumerate(("a", "b", "dead"))
    }
    file.write_text(yaml.safe_dump({"hosts": named, "groups": {"both": ["a", "b"]}}))
    return file


def test_the_first_host_is_called_and_its_line_handed_out_once(lines: list[Line], hosts: Path) -> None:
    with ahead.call("both", hosts) as called:
        assert lines == [], "nobody knows yet whether the rest of the input is good"
        called.log_in()
        first, second = called.chosen
        used: list[Any] = [called.connect(first), called.connect(second), called.connect(first)]
    assert [line.name for line in used] == ["a", "b", "a"]
    assert used[0].dialed.place == "10.0.0.0:22" and [line.dialed for line in used[1:]] == [None, None]
    assert not any(line.closed.is_set() for line in used)


def test_a_line_that_nobody_wanted_is_hung_up(lines: list[Line], hosts: Path) -> None:
    with ahead.call("a", hosts) as called:
        called.log_in()
    until(lambda: bool(lines) and lines[0].closed.is_set())


def test_bad_input_is_found_before_anybody_logs_in(
    lines: list[Line], hosts: Path, dialed: list[Socket]
) -> None:
    with pytest.raises(InputError, match="bad playbook"), ahead.call("a", hosts):
        raise InputError("bad playbook")
    until(lambda: bool(dialed) and dialed[0].closed.is_set())
    assert lines == []


def test_a_host_whose_secrets_are_missing_is_not_logged_in_to(
    lines: list[Line], hosts: Path, dialed: list[Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(host: Host) -> dict[str, str]:
        raise InputError("the environment variable API_KEY is not set")

    monkeypatch.setattr(Host, "secrets", missing)
    with ahead.call("a", hosts) as called:
        called.log_in()
        until(lambda: bool(dialed) and dialed[0].closed.is_set())
    assert lines == []


def test_why_a_host_does_not_answer_is_told_when_its_line_is_asked_for(
    lines: list[Line], hosts: Path
) -> None:
    with ahead.call("dead", hosts) as called:
        called.log_in()
        with pytest.raises(TransportError, match="connection refused"):
            called.connect(called.chosen[0])


def test_without_a_target_nobody_is_called(lines: list[Line], hosts: Path) -> None:
    with ahead.call(None, hosts) as called:
        assert called.chosen == []
    with pytest.raises(InputError, match="nobody"), ahead.call("nobody", hosts):
        pass
    assert lines == []


PLACES = {
    "address: 10.0.0.1": "10.0.0.1:22",
    "address: 10.0.0.1, port: 2222": "10.0.0.1:2222",
    "address: 10.0.0.1, connect_timeout: 5s": "10.0.0.1:22",
    "address: 10.0.0.1, connect_timeout: five": None,
    "address: 10.0.0.1, port: twenty": None,
    "address: 10.0.0.1, port: true": None,
    "address: 10.0.0.1, port: 70000": None,
    "address: 17": None,
    "address: ''": None,
    "port: 22": None,
}


@pytest.mark.parametrize("entry", PLACES)
def test_a_hosts_file_that_turns_out_bad_meets_no_login_and_the_line_is_closed(
    entry: str, lines: list[Line], tmp_path: Path, dialed: list[Socket]
) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(f"hosts:\n  a: {{{entry}, colour: red}}\n")
    with pytest.raises(InputError), ahead.call("a", file):
        pass
    until(lambda: all(sock.closed.is_set() for sock in dialed))
    place = PLACES[entry]
    assert [sock.place for sock in dialed] == ([place] if place else [])
    assert lines == []


def test_every_host_that_is_shipped_is_dialed_early() -> None:
    doc = inputs.read_hosts(ROOT / "hosts.yaml")
    for host in inputs.check_hosts(doc).hosts.values():
        assert ahead._place(doc, host.name) == (host.address, host.port, host.connect_timeout_s)


@pytest.mark.parametrize("text", ["hosts: [a]", "hosts: {a: 3}", "defaults: 3\nhosts: {a: {address: b}}"])
def test_a_hosts_file_of_another_shape_calls_nobody(text: str, tmp_path: Path, dialed: list[Socket]) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    with pytest.raises(InputError), ahead.call("a", file):
        pass
    assert dialed == []


def test_the_call_goes_where_hosts_yaml_leads_once_it_is_checked(
    lines: list[Line], tmp_path: Path, dialed: list[Socket]
) -> None:
    file = tmp_path / "hosts.yaml"
    host = "{address: 10.0.0.9, python: /v/bin/python}"
    file.write_text(f"defaults: {{port: 2200, connect_timeout: 3s}}\nhosts:\n  a: {host}\n")
    with ahead.call("a", file) as called:
        called.log_in()
        line: Any = called.connect(called.chosen[0])
    assert line.dialed.place == "10.0.0.9:2200"
    assert len(dialed) == 1 and not dialed[0].closed.is_set()


# What reads the command line must not load what checks the input: that takes as long as a round trip.
FIRST_DIAL = """
import os, sys
from ddtree_deploy.commands import ahead

def dial(place):
    print(place, "pydantic" in sys.modules, flush=True)
    os._exit(0)

ahead._dial = dial
from ddtree_deploy.entry import main
main()
"""


def test_the_host_is_dialed_before_the_input_is_checked(hosts: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_DIAL, "rollout", "b", "--hosts", str(hosts), "--yes"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "('10.0.0.1', 22, 10.0) False\n", done.stderr
