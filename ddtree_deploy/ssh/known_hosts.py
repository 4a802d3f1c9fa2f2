"""OpenSSH's known_hosts files, read strictly: which keys a host may answer with. No network, no SSH library.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT". Hashed names, wildcards, negations, `[host]:port` and
`@revoked` are honoured; `@cert-authority` lines are not, because host certificates are not supported.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SSH_PORT = 22
# One RSA key signs under several algorithm names; on file it is always "ssh-rsa".
_ALGORITHMS = {"ssh-rsa": ["rsa-sha2-512", "rsa-sha2-256"]}
_MARKERS = ("@revoked", "@cert-authority")

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file. `key` is the raw public key blob; `line` counts from 1."""

    file: Path
    line: int
    marker: str
    names: tuple[str, ...]
    key_type: str
    key: bytes

    def about(self, names: list[str]) -> bool:
        """Whether this line is about one of the names (see `host_names`)."""
        return any(self._matches(name) for name in names)

    def _matches(self, name: str) -> bool:
        found = False
        for pattern in self.names:
            if pattern.startswith("|"):
                found = found or _hash_matches(pattern, name)
            elif pattern.startswith("!"):
                if _pattern_matches(pattern[1:], name):
                    return False
            else:
                found = found or _pattern_matches(pattern, name)
        return found

    def names_only(self, names: list[str]) -> bool:
        """Whether the line is about this host and no other, so that it may be dropped with the host's key."""
        return all(
            p.lower() in names or (p.startswith("|") and any(_hash_matches(p, name) for name in names))
            for p in self.names
        )


def canonical(address: str) -> str:
    """The one form of an address: as the system writes it where it is an IP address, else in lower case.

    OpenSSH does the same before it looks a host up: `0:0:0:0:0:0:0:1` is `::1`, `127.1` is `127.0.0.1`.
    """
    address = address.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return socket.getnameinfo(found[0][4], socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
    except (OSError, UnicodeError):
        return address.lower()


def host_name(address: str, port: int) -> str:
    """The name under which OpenSSH files a host: the plain address on port 22, else `[address]:port`."""
    address = canonical(address)
    return address if port == SSH_PORT else f"[{address}]:{port}"


def host_names(address: str, port: int) -> list[str]:
    """The names under which a host may be on file: OpenSSH keeps a trailing dot, people may not."""
    return list(dict.fromkeys([host_name(address, port), host_name(address.rstrip("."), port)]))


def fingerprint(key: bytes) -> str:
    """`SHA256:...` of a public key blob, as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def blob(line: str) -> bytes:
    """The key of a public key line, `TYPE BASE64 [comment]`. Raises ValueError when it is not one."""
    fields = line.split()
    if len(fields) < 2:
        raise ValueError("not a public key")
    return base64.b64decode(fields[1], validate=True)


def read(files: list[Path]) -> list[Entry]:
    """All usable lines of the files, in order; a missing file has none, a malformed line is passed over."""
    entries = []
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            entry = _parse(file, number, line)
            if entry is not None:
                entries.append(entry)
    return entries


def trusted(entries: list[Entry], address: str, port: int) -> list[Entry]:
    """The entries whose keys this host may present."""
    names = host_names(address, port)
    return [e for e in entries if not e.marker and e.about(names)]


def algorithms(entries: list[Entry], address: str, port: int) -> list[str]:
    """Host key algorithms to ask for first, so that the server answers with a key that is on file."""
    wanted: list[str] = []
    for entry in trusted(entries, address, port):
        for algorithm in _ALGORITHMS.get(entry.key_type, [entry.key_type]):
            if algorithm not in wanted:
                wanted.append(algorithm)
    return wanted


def judge(entries: list[Entry], address: str, port: int, key: bytes) -> tuple[Verdict, list[Entry]]:
    """What the files say about a key that the host presented, and the lines that say so.

    A revoked key is refused even where another line trusts it. A host that has keys on file, but not this
    one, is `changed` (also when the new key is of another type: that is what an impostor would send).
    """
    names = host_names(address, port)
    revoked = [e for e in entries if e.marker == "@revoked" and e.key == key and e.about(names)]
    if revoked:
        return "revoked", revoked
    mine = trusted(entries, address, port)
    same = [e for e in mine if e.key == key]
    if same:
        return "known", same
    return ("changed", mine) if mine else ("unknown", [])


def accept(file: Path, address: str, port: int, key_type: str, key: bytes) -> list[Entry]:
    """Put the host's key into `file` in place of those it had there; returns the lines that were replaced.

    The file is replaced in one rename; a new one is readable by its owner only. Lines that also name other
    hosts stay.
    """
    names = host_names(address, port)
    mine = trusted(read([file]), address, port)
    dropped = [e for e in mine if e.names_only(names) and e.key != key]
    numbers = {e.line for e in dropped}
    kept = [line for number, line in enumerate(_lines(file), 1) if number not in numbers]
    kept.append(f"{names[0]} {key_type} {base64.b64encode(key).decode()}")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = file.resolve()  # a symlinked known_hosts stays a symlink
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".known_hosts.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(("\n".join(kept) + "\n").encode(errors="surrogateescape"))
            out.flush()
            os.fsync(out.fileno())
        if target.exists():
            Path(temporary).chmod(target.stat().st_mode & 0o777)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return dropped


def _lines(file: Path) -> list[str]:
    """The lines of a file, none where it is missing. Bytes that are not UTF-8 (in comments) survive."""
    try:
        text = file.read_bytes().decode(errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return text.removesuffix("\n").split("\n") if text else []


def _parse(file: Path, number: int, line: str) -> Entry | None:
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3 or (marker and marker not in _MARKERS):
        return None
    try:
        key = base64.b64decode(fields[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return Entry(file, number, marker, tuple(fields[0].split(",")), fields[1], key)


def _hash_matches(pattern: str, name: str) -> bool:
    parts = pattern.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), "sha1").digest(), digest)


def _pattern_matches(pattern: str, name: str) -> bool:
    # Only * and ? are special; fnmatch would take the brackets of "[host]:port" for a character class.
    regex = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(regex, name.lower()) is not None
