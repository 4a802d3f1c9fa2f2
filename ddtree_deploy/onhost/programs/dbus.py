"""Units, looked at and started by systemd itself over D-Bus: a systemctl costs 15 ms, and a rollout would
need some thirty of them.

The socket is the one that systemctl uses as root. Messages as in the D-Bus specification, "Message Protocol";
the properties as in org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import os
import socket
import struct
import time

from . import bounded

SOCKET = "/run/systemd/private"
ROOT = "/org/freedesktop/systemd1"
MANAGER, PROPERTIES = "org.freedesktop.systemd1.Manager", "org.freedesktop.DBus.Properties"
UNIT, SERVICE = "org.freedesktop.systemd1.Unit", "org.freedesktop.systemd1.Service"
OF_UNIT = {"LoadState", "ActiveState", "SubState", "FragmentPath", "DropInPaths", "NeedDaemonReload"}
_CALL, _RETURN, _ERROR = 1, 2, 3
_PATH, _INTERFACE, _MEMBER, _REPLY, _SIGNATURE = 1, 2, 3, 5, 8
LOOKS = 10
MOVING = {"ActiveState", "SubState", "MainPID", "NRestarts", "Result"}
_LIMIT = 1 << 20  # bytes of one answer


class BusError(Exception):
    """systemd could not be asked; systemctl may know more."""


class Refused(Exception):
    """systemd would not; the message is its own."""


def show(unit: str, names: list[str], *, seconds: float) -> dict[str, str]:
    """The properties as `systemctl show` writes them; one that the unit does not have is left out.

    Raises BusError, and what the watcher of the step raises.
    """
    path = f"{ROOT}/unit/{_label(unit)}"
    calls: list[tuple[str, ...]] = [
        (path, PROPERTIES, "Get", UNIT if name in OF_UNIT else SERVICE, name) for name in names
    ]
    moving = [at for at, name in enumerate(names) if name in MOVING]
    for _ in range(LOOKS):  # each is answered by itself: two looks that agree are of one moment
        answers = _ask([*calls, *(calls[at] for at in moving)], seconds)
        if [answers[at] for at in moving] == answers[len(calls) :]:
            break
    del answers[len(calls) :]
    try:
        found = {n: _text(body) for n, (kind, body) in zip(names, answers, strict=True) if kind == _RETURN}
    except (struct.error, IndexError, ValueError) as error:
        raise BusError(f"{SOCKET}: {error}") from error
    if not found:
        raise BusError(f"systemd says nothing of {unit}")
    return found


def manage(method: str, *words: str, seconds: float) -> None:
    """A method of the manager (StartUnit, ...) with strings for arguments; its job is not waited for.

    Raises BusError, Refused, and what the watcher of the step raises.
    """
    ((kind, body),) = _ask([(ROOT, MANAGER, method, *words)], seconds)
    if kind == _ERROR:
        try:
            raise Refused(_string_at(body, 0)[0])
        except (struct.error, ValueError) as error:
            raise BusError(f"{SOCKET}: {error}") from error


def _ask(calls: list[tuple[str, ...]], seconds: float) -> list[tuple[int, bytes]]:
    """(path, interface, member, *strings) -> (kind of message, its body), for each call."""
    until = time.monotonic() + seconds
    try:
        with socket.socket(socket.AF_UNIX) as bus:
            bus.settimeout(bounded.LOOK_S)
            bus.connect(SOCKET)
            hello = f"\0AUTH EXTERNAL {str(os.geteuid()).encode().hex()}\r\nBEGIN\r\n".encode()
            bus.sendall(hello)
            if not _line(bus, until).startswith(b"OK "):
                raise BusError("systemd does not know us")
            # Not before: what it has read along with the greeting it answers when something else comes.
            bus.sendall(b"".join(_call(serial, *one) for serial, one in enumerate(calls, 1)))
            answers = _answers(bus, len(calls), until)
            return [answers[serial] for serial in range(1, len(calls) + 1)]
    except (OSError, struct.error, LookupError, ValueError) as error:
        raise BusError(f"{SOCKET}: {error}") from error


def _label(unit: str) -> str:
    """A unit's name as a part of an object path."""
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in unit)


def _call(serial: int, path: str, interface: str, member: str, *words: str) -> bytes:
    """A method call with strings for arguments."""
    body = b""
    for word in words:
        body = _padded(body, 4) + _string(word)
    kinds = bytes([len(words)]) + b"s" * len(words) + b"\0"
    fields = b""
    for code, kind, value in (
        (_PATH, b"o", _string(path)),
        (_INTERFACE, b"s", _string(interface)),
        (_MEMBER, b"s", _string(member)),
        (_SIGNATURE, b"g", kinds),
    ):
        fields = _padded(fields, 8) + bytes([code, 1]) + kind + b"\0" + value
    head = struct.pack("<cBBBIII", b"l", _CALL, 0, 1, len(body), serial, len(fields))
    return _padded(head + fields, 8) + body


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw + b"\0"


def _padded(data: bytes, to: int) -> bytes:
    return data + bytes(-len(data) % to)


def _answers(bus: socket.socket, count: int, until: float) -> dict[int, tuple[int, bytes]]:
    """Serial of the call -> (kind, body) of its answer. Other messages are passed over."""
    found: dict[int, tuple[int, bytes]] = {}
    while len(found) < count:
        endian, kind, _, _, size, _, fields_size = struct.unpack("<cBBBIII", _exactly(bus, 16, until))
        if endian != b"l":
            raise BusError("systemd speaks big-endian")
        fields = _fields(_exactly(bus, -(-fields_size // 8) * 8, until)[:fields_size])
        body = _exactly(bus, size, until)
        if kind in (_RETURN, _ERROR):
            found[fields[_REPLY]] = (kind, body)
    return found


def _fields(data: bytes) -> dict[int, int]:
    """The numbers among the header's fields, by code."""
    found, at = {}, 0
    while at < len(data):
        at = -(-at // 8) * 8
        code, kind = data[at], data[at + 2 : at + 3]
        at += 4
        size = data[at] if kind == b"g" else struct.unpack_from("<I", data, at)[0]
        if kind == b"u":
            found[code] = size
        at += {b"g": 2 + size, b"u": 4}.get(kind, 5 + size)
    return found


def _text(body: bytes) -> str:
    """A variant as `systemctl show` writes it: of the types that our properties have."""
    kind = body[1 : 1 + body[0]].decode()
    at = 2 + body[0]
    if kind == "as":
        at = -(-at // 4) * 4
        end = at + 4 + struct.unpack_from("<I", body, at)[0]
        at += 4
        words = []
        while at < end:
            word, at = _string_at(body, at)
            words.append(word)
        return " ".join(words)
    if kind in ("s", "o"):
        return _string_at(body, at)[0]
    value: int = struct.unpack_from("<i" if kind == "i" else "<I", body, -(-at // 4) * 4)[0]
    if kind == "b":
        return "yes" if value else "no"
    if kind in ("u", "i"):
        return str(value)
    raise ValueError(f"a property of type {kind}")


def _string_at(data: bytes, at: int) -> tuple[str, int]:
    """The string at the next multiple of four, and where it ends."""
    at = -(-at // 4) * 4
    size: int = struct.unpack_from("<I", data, at)[0]
    if at + 4 + size >= len(data):
        raise ValueError("a string that goes on after its message")
    return data[at + 4 : at + 4 + size].decode(errors="replace"), at + 5 + size


def _line(bus: socket.socket, until: float) -> bytes:
    line = b""
    while not line.endswith(b"\r\n"):
        line += _exactly(bus, 1, until)
    return line


def _exactly(bus: socket.socket, count: int, until: float) -> bytes:
    """So many bytes. Raises OSError, and what the watcher of the step raises."""
    if count > _LIMIT:
        raise ValueError(f"an answer of {count} bytes")
    data = b""
    while len(data) < count:
        try:
            part = bus.recv(count - len(data))
        except TimeoutError:
            bounded.look()
            if time.monotonic() >= until:
                raise
            continue
        if not part:
            raise ConnectionError("systemd hung up")
        data += part
    return data
