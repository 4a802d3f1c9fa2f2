"""Keys of the sandbox's SSH server and of its one user."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


@dataclass(frozen=True)
class Keys:
    """Where the keys of one SSH server lie; every path is below one folder."""

    folder: Path

    @property
    def identity(self) -> Path:
        """The user's private key, for ``identity_file``."""
        return self.folder / "id"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_ed25519"

    @property
    def authorized_keys(self) -> Path:
        return self.folder / "authorized_keys"

    def host_public_key(self) -> str:
        """``ssh-ed25519 AAAA...``, without the comment."""
        kind, blob, *_ = _public(self.host_key).read_text().split()
        return f"{kind} {blob}"


def ensure(folder: Path) -> Keys:
    """Make the keys that are missing; existing ones are kept."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    keys = Keys(folder)
    for private, comment in ((keys.identity, f"{getpass.getuser()}@sandbox"), (keys.host_key, "sandbox")):
        if not (private.exists() and _public(private).exists()):
            _generate(private, comment)
    write_private(keys.authorized_keys, _public(keys.identity).read_text())
    return keys


def known_hosts_line(address: str, port: int, public_key: str) -> str:
    """One line of a known_hosts file; ports other than 22 are part of the name."""
    name = address if port == 22 else f"[{address}]:{port}"
    return f"{name} {public_key}\n"


def write_private(path: Path, content: str | bytes) -> None:
    """Replace ``path`` by a file of mode 0600, which never is readable by others, not even for a moment."""
    data = content.encode() if isinstance(content, str) else content
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _generate(private: Path, comment: str) -> None:
    key = Ed25519PrivateKey.generate()
    write_private(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    _public(private).write_text(f"{public} {comment}\n")


def _public(private: Path) -> Path:
    return private.with_name(private.name + ".pub")
