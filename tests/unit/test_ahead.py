"""The first host is called while the program loads: its line is used once, or hung up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddtree_deploy import ssh, tcp
from ddtree_deploy.commands import ahead
from ddtree_deploy.errors import InputError, TransportError
from ddtree_deploy.inputs.inventory import Host
from tests.onhost.host import until


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
