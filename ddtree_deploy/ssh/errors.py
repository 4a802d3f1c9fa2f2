"""Every error of the socket and of the SSH library as one of ours: stage, host, state, next command."""

from __future__ import annotations

import socket

from paramiko import ssh_exception
from paramiko.auth_strategy import AuthFailure
from paramiko.pkey import UnknownKeyType

from ddtree_deploy.errors import NOTHING_DONE, HostKeyError, TransportError
from ddtree_deploy.ssh import known_hosts
from ddtree_deploy.ssh.host import SshHost, known_hosts_files, login_name


def host_key_error(
    host: SshHost, verdict: known_hosts.Verdict, key_type: str, key: bytes, lines: list[known_hosts.Entry]
) -> HostKeyError:
    """The refusal, with the fingerprint seen, those on file and the command that would accept the new one."""
    seen = f"{key_type} {known_hosts.fingerprint(key)}"
    file = known_hosts_files(host)[0]
    where = known_hosts.host_name(host.address, host.port)
    accept = f"ddtree-deploy trust {host.name} --fingerprint {known_hosts.fingerprint(key)}"
    if verdict == "revoked":
        message = f"the host answers with a REVOKED key, {seen} ({lines[0].file}:{lines[0].line})"
        accept = ""
    elif verdict == "changed":
        on_file = ", ".join(
            f"{e.key_type} {known_hosts.fingerprint(e.key)} ({e.file}:{e.line})" for e in lines[:3]
        )
        message = (
            f"the host key of {where} HAS CHANGED: it answers with {seen}, on file is {on_file}; "
            "somebody may be intercepting the connection"
        )
    else:
        message = f"the host key of {where} is not known: it answers with {seen}, {file} has no key of it"
    if accept:
        accept += "  (only after comparing it with `ssh-keygen -lf` of the host's own key file)"
    return HostKeyError(message, stage="host key", host=host.name, state=NOTHING_DONE, next_command=accept)


def transport_error(host: SshHost, stage: str, message: str) -> TransportError:
    """A TransportError of this host, from before anything was started on it."""
    try_it = f"ssh -p {host.port} {login_name(host)}@{host.address} true"
    return TransportError(message, stage=stage, host=host.name, state=NOTHING_DONE, next_command=try_it)


# First match wins, so subclasses come before their bases. {e} is the error's own text.
_MESSAGES: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "the name {address} cannot be resolved ({e})"),
    (ConnectionRefusedError, "connection refused: nothing listens on {address} port {port}"),
    (ssh_exception.NoValidConnectionsError, "no address of {address} answers on port {port}"),
    (TimeoutError, "no answer from {address} port {port} in time ({e})"),
    (ConnectionError, "{address} port {port} closed the connection ({e})"),
    (AuthFailure, "the host refused every key offered for user {user}"),
    (ssh_exception.PasswordRequiredException, "the private key is encrypted: unlock it with ssh-add"),
    (ssh_exception.BadAuthenticationType, "the host does not take public keys for user {user} ({e})"),
    (ssh_exception.PartialAuthentication, "the host wants a second factor after the key ({e})"),
    (ssh_exception.UnableToAuthenticate, "the host refused every key offered for user {user}"),
    (ssh_exception.AuthenticationException, "the host refused user {user} ({e})"),
    (ssh_exception.BadHostKeyException, "the host key is not the one on file ({e})"),
    (ssh_exception.ChannelException, "the host refused to open another session ({e}); see MaxSessions"),
    (ssh_exception.IncompatiblePeer, "no SSH algorithm in common with the host ({e})"),
    (ssh_exception.ProxyCommandFailure, "the proxy command failed ({e})"),
    (ssh_exception.CouldNotCanonicalize, "the host name cannot be made canonical ({e})"),
    (ssh_exception.ConfigParseError, "the SSH configuration cannot be read ({e})"),
    (ssh_exception.MessageOrderError, "the host broke the order of SSH messages ({e})"),
    (UnknownKeyType, "a key of a type that is not supported ({e})"),
    (ssh_exception.SSHException, "{e}"),
    (UnicodeDecodeError, "the host ended the connection with words that are not UTF-8"),
    (EOFError, "the host closed the connection during the SSH handshake"),
    (OSError, "cannot reach {address} port {port} ({e})"),
)


def translate(error: BaseException, host: SshHost, stage: str) -> TransportError:
    """Any error of the socket or the SSH library as a TransportError; ours pass through unchanged."""
    if isinstance(error, TransportError):
        return error
    reason = reason_of(error)
    if "banner" in reason.lower():
        reason = "something listens there, but it did not say it was SSH"
        if isinstance(error.__cause__ or error.__context__, TimeoutError) or "timeout" in str(error).lower():
            reason += f" within {host.connect_timeout_s:.0f} s"
        return transport_error(host, stage, reason)
    text = next((t for kind, t in _MESSAGES if isinstance(error, kind)), "SSH failed: {e}")
    message = text.format(e=reason, address=host.address, port=host.port, user=login_name(host))
    return transport_error(host, stage, message)


def reason_of(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:300]
