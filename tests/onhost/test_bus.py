"""systemd over D-Bus: bytes in, values out; whoever does not speak it is left to systemctl.

The real systemd: tests/lab/test_systemd_rollout.py.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ddtree_deploy.onhost.programs import bounded, dbus, systemctl

RETURN, ERROR, SIGNAL = 2, 3, 4


def message(kind: int, reply: int, body: bytes, *, endian: bytes = b"l") -> bytes:
    """With the fields of a real answer: sender, signature, serial of the call."""
    fields = b"\x07\x01s\0" + struct.pack("<I", 4) + b":1.1\0" + b"\0" * 3
    fields += b"\x08\x01g\0\x01v\0" + b"\0" + b"\x05\x01u\0" + struct.pack("<I", reply)
    head = struct.pack("<cBBBIII", endian, kind, 1, 1, len(body), 99, len(fields))
    return head + fields + b"\0" * (-len(fields) % 8) + body


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<I", len(raw)) + raw + b"\0"


def texts(*values: str) -> bytes:
    body = b""
    for value in values:
        body += b"\0" * (-len(body) % 4) + text(value)
    return b"\x02as\0" + struct.pack("<I", len(body)) + body


@contextmanager
def systemd(path: Path, *turns: Callable[[socket.socket], None]) -> Iterator[list[bytes]]:
    """A server that takes one connection for each of `turns`; what it was sent."""
    seen: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            for say in turns:
                peer, _ = listener.accept()
                with peer:
                    greeting = b""
                    while not greeting.endswith(b"BEGIN\r\n"):
                        greeting += peer.recv(65536)
                    seen.append(greeting)
                    say(peer)
                    with suppress(OSError):
                        seen.append(peer.recv(65536))

        thread = threading.Thread(target=serve)
        thread.start()
        yield seen
        thread.join(60)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dbus, "SOCKET", str(tmp_path / "private"))
    return tmp_path / "private"


def test_properties_of_every_type_come_as_systemctl_writes_them(path: Path) -> None:
    bodies = [
        b"\x01s\0\0" + text("active"),
        b"\x01u\0\0" + struct.pack("<I", 4711),
        b"\x01i\0\0" + struct.pack("<i", -1),
        b"\x01b\0\0" + struct.pack("<I", 1),
        texts("/etc/a.conf", "/etc/bcd.conf", "/e"),
    ]
    names = ["ActiveState", "MainPID", "ExecMainStatus", "NeedDaemonReload", "DropInPaths", "User"]
    answers = b"".join(message(RETURN, serial, body) for serial, body in enumerate(bodies, 1))
    answers += b"".join(message(RETURN, serial, body) for serial, body in enumerate(bodies[:2], 7))
    refused = message(ERROR, 6, text("there is no such property"))
    with systemd(
        path, lambda peer: peer.sendall(b"OK 1234\r\n" + message(SIGNAL, 0, b"") + refused + answers)
    ):
        found = dbus.show("my-unit@1.service", names, seconds=30)
    assert found == {
        "ActiveState": "active",
        "MainPID": "4711",
        "ExecMainStatus": "-1",
        "NeedDaemonReload": "yes",
        "DropInPaths": "/etc/a.conf /etc/bcd.conf /e",
    }


def test_two_looks_that_differ_are_looked_at_again(path: Path) -> None:
    """Each property is answered by itself: a service may have started in between."""
    states = iter(["inactive", "active", "active", "active"])

    def look(peer: socket.socket) -> None:
        peer.sendall(b"OK 1\r\n")
        peer.recv(65536)
        peer.sendall(b"".join(message(RETURN, n, b"\x01s\0\0" + text(next(states))) for n in (1, 2)))

    with systemd(path, look, look):
        assert dbus.show("u.service", ["ActiveState"], seconds=30) == {"ActiveState": "active"}


def test_the_unit_is_named_as_the_bus_names_it(path: Path) -> None:
    loaded = b"\x01s\0\0" + text("loaded")
    answer = b"OK 1\r\n" + message(RETURN, 1, loaded) + message(RETURN, 2, loaded)
    with systemd(path, lambda peer: peer.sendall(answer)) as seen:
        dbus.show("a-b@c.service", ["LoadState"], seconds=30)
    assert b"/org/freedesktop/systemd1/unit/a_2db_40c_2eservice\0" in seen[1]
    assert b"org.freedesktop.systemd1.Unit\0" in seen[1] and b"LoadState\0" in seen[1]


def test_what_systemd_refuses_is_said_in_its_words(path: Path) -> None:
    answer = b"OK 1\r\n" + message(ERROR, 1, text("Unit nope.service not found."))
    with systemd(path, lambda peer: peer.sendall(answer)), pytest.raises(dbus.Refused, match="not found"):
        dbus.manage("StartUnit", "nope.service", "replace", seconds=30)
    path.unlink()
    with (
        systemd(path, lambda peer: peer.sendall(answer)),
        pytest.raises(systemctl.SystemctlError, match=r"systemctl start nope.service: Unit nope"),
    ):
        systemctl.do("start", "nope.service")


LONG = b"".join(message(RETURN, n, b"\x01s\0\0" + struct.pack("<I", 1 << 30)) for n in (1, 2))


@pytest.mark.parametrize(
    "answer",
    [
        b"REJECTED EXTERNAL\r\n",
        b"OK 1\r\n",
        b"OK 1\r\nHTTP/1.1 400 Bad Request\r\n\r\n",
        b"OK 1\r\n" + message(RETURN, 1, b"\x01s\0\0" + text("x"), endian=b"B"),
        b"OK 1\r\n" + message(RETURN, 1, b"\x01s\0\0" + text("x"))[:-3],
        b"OK 1\r\n" + LONG,
        b"OK 1\r\n" + message(RETURN, 1, b"\x02(s\0\0") + message(RETURN, 2, b"\x02(s\0\0"),
        b"OK 1\r\n" + message(RETURN, 7, b"\x01s\0\0" + text("of another call")),
        b"OK 1\r\n" + message(ERROR, 1, text("no")) + message(ERROR, 2, text("no")),
    ],
)
def test_an_answer_that_is_none_is_a_bus_error(path: Path, answer: bytes) -> None:
    with systemd(path, lambda peer: peer.sendall(answer)), pytest.raises(dbus.BusError):
        dbus.show("u.service", ["SubState"], seconds=30)


def test_where_nobody_answers_systemctl_is_asked(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "systemctl"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho ActiveState=active\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert systemctl.show("u.service", ["ActiveState"]) == {"ActiveState": "active"}
    for verb in ("reset-failed", "stop", "start"):
        systemctl.do(verb, "u.service")
    assert (tmp_path / "asked").read_text().splitlines()[1:] == [
        "--no-pager reset-failed u.service",
        "--no-pager stop --no-block u.service",
        "--no-pager start --no-block u.service",
    ]


def test_it_is_bounded_by_itself_and_by_the_step(path: Path) -> None:
    over = threading.Event()
    with systemd(path, lambda peer: over.wait(60) and None):  # type: ignore[func-returns-value]
        with pytest.raises(dbus.BusError):
            dbus.show("u.service", ["User"], seconds=0.3)
        over.set()
    path.unlink()
    over.clear()

    class Over(Exception):
        pass

    def check() -> None:
        if time.monotonic() > until:
            raise Over

    until = time.monotonic() + 0.3
    with systemd(path, lambda peer: over.wait(60) and None):  # type: ignore[func-returns-value]
        with pytest.raises(Over), bounded.watched(check):
            dbus.show("u.service", ["User"], seconds=60)
        over.set()
