"""Properties of a unit, asked of systemd itself over D-Bus: a `systemctl show` costs 15 ms, and a rollout
looks some thirty times.

The socket is the one that systemctl uses as root. Messages as in the D-Bus specification, "Message Protocol";
the properties as in org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import os
import socket
import struct
import time

from .. import brief

SOCKET = "/run/systemd/private"
UNIT, SERVICE = "org.freedesktop.systemd1.Unit", "org.freedesktop.systemd1.Service"
OF_UNIT = {"LoadState", "ActiveState", "SubState", "FragmentPath", "DropInPaths", "NeedDaemonReload"}
_CALL, _RETURN, _ERROR = 1, 2, 3
_PATH, _INTERFACE, _MEMBER, _REPLY, _SIGNATURE = 1, 2, 3, 5, 8
_LIMIT = 1 << 20  # bytes of one answer


class BusError(Exception):
    """systemd could not be asked; systemctl may know more."""


def show(unit: str, names: list[str], *, seconds: float) -> dict[str, str]:
    """The properties as `systemctl show` writes them; one that the unit does not have is left out.

    Raises BusError, and what the watcher of the step raises.
    """
    until = time.monotonic() + seconds
    path = f"/org/freedesktop/systemd1/unit/{_label(unit)}"
    asked = [(UNIT if name in OF_UNIT else SERVICE, name) for name in names]
    try:
        with socket.socket(socket.AF_UNIX) as bus:
            bus.settimeout(brief.LOOK_S)
            bus.connect(SOCKET)
            hello = f"\0AUTH EXTERNAL {str(os.geteuid()).encode().hex()}\r\nBEGIN\r\n".encode()
            calls = b"".join(_get(serial, path, *one) for serial, one in enumerate(asked, 1))
            bus.sendall(hello + calls)
            if not _line(bus, until).startswith(b"OK "):
                raise BusError("systemd does not know us")
            values = _answers(bus, len(asked), until)
    except (OSError, struct.error, IndexError, ValueError) as error:
        raise BusError(f"{SOCKET}: {error}") from error
    if not values:
        raise BusError(f"systemd says nothing of {unit}")
    return {names[serial - 1]: value for serial, value in values.items()}


def _label(unit: str) -> str:
    """A unit's name as a part of an object path."""
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in unit)


def _get(serial: int, path: str, interface: str, name: str) -> bytes:
    """The call of org.freedesktop.DBus.Properties.Get."""
    body = _padded(_string(interface), 4) + _string(name)
    fields = b""
    for code, kind, value in (
        (_PATH, b"o", _string(path)),
        (_INTERFACE, b"s", _string("org.freedesktop.DBus.Properties")),
        (_MEMBER, b"s", _string("Get")),
        (_SIGNATURE, b"g", b"\2ss\0"),
    ):
        fields = _padded(fields, 8) + bytes([code, 1]) + kind + b"\0" + value
    head = struct.pack("<cBBBIII", b"l", _CALL, 0, 1, len(body), serial, len(fields))
    return _padded(head + fields, 8) + body


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw + b"\0"


def _padded(data: bytes, to: int) -> bytes:
    return data + bytes(-len(data) % to)


def _answers(bus: socket.socket, count: int, until: float) -> dict[int, str]:
    """Serial of the call -> value, of those that were answered with one. Other messages are passed over."""
    values: dict[int, str] = {}
    while count:
        endian, kind, _, _, size, _, fields_size = struct.unpack("<cBBBIII", _exactly(bus, 16, until))
        if endian != b"l":
            raise BusError("systemd speaks big-endian")
        fields = _fields(_exactly(bus, -(-fields_size // 8) * 8, until)[:fields_size])
        body = _exactly(bus, size, until)
        if kind in (_RETURN, _ERROR):
            count -= 1
        if kind == _RETURN:
            values[fields[_REPLY]] = _text(body)
    return values


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
            brief.look()
            if time.monotonic() >= until:
                raise
            continue
        if not part:
            raise ConnectionError("systemd hung up")
        data += part
    return data
