"""OpenSSH's server as a host for one user, whether or not that user is root."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ddtree_deploy.sandbox.errors import SandboxError
from ddtree_deploy.sandbox.keys import Keys

_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/local/bin", "/usr/bin")
_SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/libexec/sftp-server",
    "/usr/lib/sftp-server",
)

# A login on a real host starts in $HOME; sshd itself starts in the folder that the user database names.
SESSION_SCRIPT = """\
#!/bin/sh
cd "$HOME" || exit 1
if [ -z "$SSH_ORIGINAL_COMMAND" ]; then exec "$SHELL" -l; fi
command=$SSH_ORIGINAL_COMMAND
unset SSH_ORIGINAL_COMMAND
exec "$SHELL" -c "$command"
"""


def find_sshd() -> str | None:
    """Absolute path of sshd (which it needs to re-execute itself), or None where it is not installed."""
    path = os.pathsep.join((*_SYSTEM_FOLDERS, os.environ.get("PATH", "")))
    return shutil.which("sshd", path=path)


def config(
    *,
    address: str,
    port: int,
    keys: Keys,
    session: Path,
    environment: Mapping[str, str],
    use_pam: bool = False,
    sftp_server: str | None = None,
) -> str:
    """The text of sshd_config: public keys only, this user only, one address, every session in its home."""
    variables = " ".join(_quoted(f"{name}={value}") for name, value in environment.items())
    lines = [
        f"ListenAddress {address}",
        f"Port {port}",
        f"HostKey {_quoted(str(keys.host_key))}",
        f"AuthorizedKeysFile {_quoted(str(keys.authorized_keys).replace('%', '%%'))}",
        "PidFile none",
        "AuthenticationMethods publickey",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "PermitEmptyPasswords no",
        f"UsePAM {'yes' if use_pam else 'no'}",
        # The checkout may lie in a folder that a group can write; the key file is 0600 all the same.
        "StrictModes no",
        "X11Forwarding no",
        "AllowAgentForwarding no",
        "PermitTunnel no",
        "PermitUserRC no",
        "PrintMotd no",
        "PrintLastLog no",
        "UseDNS no",
        "LogLevel INFO",
        "AcceptEnv LANG LC_*",
        # sshd keeps the first SetEnv line only.  It comes after the user database's HOME, and so wins.
        f"SetEnv {variables}",
        f"ForceCommand exec {shlex.quote(str(session))}",
    ]
    if sftp_server:
        lines.append(f"Subsystem sftp {sftp_server}")
    return "\n".join(lines) + "\n"


def sftp_server() -> str | None:
    """Path of OpenSSH's sftp-server, or None."""
    return next((path for path in _SFTP_SERVERS if Path(path).exists()), None)


def needs_pam() -> bool:
    """True where sshd without PAM would refuse this user because the password is locked (``!`` in shadow)."""
    if os.geteuid() != 0:
        return False
    try:
        lines = Path("/etc/shadow").read_text().splitlines()
    except OSError:
        return False
    return any(re.match(r"root:!", line) for line in lines)


def prepare(sshd: str, config_file: Path) -> None:
    """Check the configuration with ``sshd -t``; as root, make the folder that privilege separation needs.

    Raises:
        SandboxError: sshd refuses the configuration; its own words are in the message.
    """
    problem = _check(sshd, config_file)
    missing = re.search(r"Missing privilege separation directory: (\S+)", problem)
    if missing and os.geteuid() == 0:
        Path(missing.group(1)).mkdir(mode=stat.S_IRWXU | 0o055, parents=True, exist_ok=True)
        problem = _check(sshd, config_file)
    if problem:
        raise SandboxError(f"{sshd} refuses {config_file}: {problem}", stage="ssh")


def _check(sshd: str, config_file: Path) -> str:
    done = subprocess.run(
        [sshd, "-t", "-f", str(config_file)], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode == 0:
        return ""
    return " ".join(done.stderr.split()) or f"exit status {done.returncode}"


def _quoted(text: str) -> str:
    if '"' in text or "\n" in text:
        raise SandboxError(f"a path or value for sshd_config may not hold a quote: {text!r}", stage="ssh")
    return f'"{text}"' if re.search(r"\s|#", text) else text
