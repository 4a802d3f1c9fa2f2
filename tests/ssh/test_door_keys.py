"""Keys and certificates as people have them: what is broken beside what is good."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddtree_deploy import cli, console, ssh
from ddtree_deploy.errors import InputError, TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.running.rollout import Emitter, Session
from ddtree_deploy.sandbox.sshd import SshServer
from tests.ssh.test_connect import new_key

pytestmark = pytest.mark.ssh
EXPIRED = ["-V", "20200101:20200102"]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an empty `.ssh`, and no agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    return tmp_path


@pytest.fixture
def authority(server: SshServer, tmp_path: Path) -> Iterator[Path]:
    """The key of an authority for users that the server believes."""
    made = new_key(tmp_path / "authority")
    file = server.keys.authorized_keys
    before = file.read_text()
    file.write_text(f"{before}cert-authority {made.with_name('authority.pub').read_text()}")
    yield made
    file.write_text(before)


def allow(server: SshServer, key: Path) -> None:
    with server.keys.authorized_keys.open("a") as file:
        file.write(key.with_name(f"{key.name}.pub").read_text())


def certify(server: SshServer, authority: Path, key: Path, *options: str, principal: str = "") -> Path:
    """Give the key a certificate, which lies beside it; its file."""
    names = ["-I", "test", "-n", principal or server.user]
    subprocess.run(
        ["ssh-keygen", "-q", "-s", authority, *names, *options, key.with_name(f"{key.name}.pub")], check=True
    )
    return key.with_name(f"{key.name}-cert.pub")


def gets_in(host: Host, told: list[str]) -> bool:
    """Whether it does. told: gets what was passed over (a busy machine is also waited for)."""

    def tell(text: str) -> None:
        if not text.startswith("waiting for "):
            told.append(text)

    with ssh.connect(host, tell) as link:
        return link.run("true", timeout=60).rc == 0


# ---- 45: certificates ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_case_45_an_expired_certificate_does_not_hide_the_good_key(
    *, server: SshServer, host: Host, authority: Path, tmp_path: Path, told: list[str], kind: str
) -> None:
    key = new_key(tmp_path / "k1", kind)
    allow(server, key)
    certify(server, authority, key, *EXPIRED)
    assert gets_in(dataclasses.replace(host, identity_file=key), told)


def test_case_45_a_certificate_for_somebody_else_does_not_hide_the_good_key(
    server: SshServer, host: Host, authority: Path, tmp_path: Path, told: list[str]
) -> None:
    key = new_key(tmp_path / "k1")
    allow(server, key)
    certify(server, authority, key, principal="somebody-else")
    assert gets_in(dataclasses.replace(host, identity_file=key), told)


def broken(path: Path, how: str) -> None:
    path.unlink(missing_ok=True)
    other = path.with_name("other")
    if how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "a link to nothing":
        path.symlink_to("nowhere")
    elif how == "a public key":
        path.write_text(new_key(other).with_name("other.pub").read_text())
    else:
        path.write_bytes({"empty": b"", "bytes": bytes(range(256)), "words": b"ssh-ed25519-cert !!!\n"}[how])


@pytest.mark.parametrize(
    "how", ["empty", "bytes", "words", "a public key", "a folder", "a pipe", "a link to nothing"]
)
def test_case_45_a_broken_certificate_is_passed_over_and_named(
    server: SshServer, host: Host, tmp_path: Path, told: list[str], how: str
) -> None:
    key = new_key(tmp_path / "k1")
    allow(server, key)
    beside = tmp_path / "k1-cert.pub"
    broken(beside, how)
    assert gets_in(dataclasses.replace(host, identity_file=key), told)
    (note,) = told
    assert note.startswith(f"passed over {beside}: ") and len(note) > len(f"passed over {beside}: ")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_good_certificate_gets_in_where_the_key_alone_does_not(
    *, server: SshServer, host: Host, authority: Path, tmp_path: Path, told: list[str], kind: str
) -> None:
    key = new_key(tmp_path / "k1", kind)
    certify(server, authority, key)
    assert gets_in(dataclasses.replace(host, identity_file=key), told) and told == []


def test_where_neither_is_taken_both_are_named(
    server: SshServer, host: Host, authority: Path, tmp_path: Path, told: list[str]
) -> None:
    key = new_key(tmp_path / "k1")
    beside = certify(server, authority, key, *EXPIRED)
    with pytest.raises(TransportError, match="refused every key offered") as failed:
        gets_in(dataclasses.replace(host, identity_file=key), told)
    assert f"({beside}, {key})" in failed.value.message


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
@pytest.mark.parametrize("allowed", ["certificate", "key"])
def test_case_45_an_agent_with_a_key_and_its_certificate_gets_in_by_either(
    *,
    server: SshServer,
    host: Host,
    authority: Path,
    home: Path,
    told: list[str],
    agent: Callable[[list[Path]], None],
    kind: str,
    allowed: str,
) -> None:
    key = new_key(home / "k1", kind)
    if allowed == "certificate":
        certify(server, authority, key)
    else:
        certify(server, authority, key, *EXPIRED)
        allow(server, key)
    agent([key])  # ssh-add takes the certificate along
    assert gets_in(dataclasses.replace(host, identity_file=None), told)


@pytest.mark.parametrize("validity", [[], EXPIRED], ids=["good", "expired"])
def test_case_45_a_key_that_the_agent_has_unlocked_goes_with_the_certificate_beside_its_file(
    *,
    server: SshServer,
    host: Host,
    authority: Path,
    home: Path,
    told: list[str],
    agent: Callable[[list[Path]], None],
    validity: list[str],
) -> None:
    key = new_key(home / "k1")
    agent([key])  # while it is open, and has no certificate
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", key], check=True)
    certify(server, authority, key, *validity)
    if validity:
        allow(server, key)
    assert gets_in(dataclasses.replace(host, identity_file=key), told)


def test_case_45_a_certificate_counts_whose_key_the_agent_alone_has(
    *,
    server: SshServer,
    host: Host,
    authority: Path,
    home: Path,
    told: list[str],
    agent: Callable[[list[Path]], None],
) -> None:
    key = new_key(home / ".ssh/id_ed25519")
    agent([key])
    certify(server, authority, key)
    key.unlink()
    assert gets_in(dataclasses.replace(host, identity_file=None), told)


def test_a_certificate_may_be_named_as_the_identity_file(
    server: SshServer, host: Host, authority: Path, tmp_path: Path, told: list[str]
) -> None:
    beside = certify(server, authority, new_key(tmp_path / "k1"))
    assert gets_in(dataclasses.replace(host, identity_file=beside), told)


# ---- 46: broken default keys -----------------------------------------------------------------------


def odd_type() -> str:
    """A well-formed key of a type that nobody knows."""

    def text(data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + data

    public = text(b"ssh-odd@example.com") + text(b"x" * 32)
    private = b"\0\0\0\1\0\0\0\1" + public + text(b"y" * 32) + text(b"comment")
    private += bytes(range(1, 1 + -len(private) % 8))
    blob = b"openssh-key-v1\0" + text(b"none") * 2 + text(b"") + struct.pack(">I", 1) + text(public)
    body = base64.encodebytes(blob + text(private)).decode()
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}-----END OPENSSH PRIVATE KEY-----\n"


def break_key(path: Path, how: str) -> None:
    if how == "garbage":
        path.write_bytes(b"\x00\xff garbage\n")
    elif how == "empty":
        path.write_text("")
    elif how == "cut off":
        path.write_text(new_key(path).read_text()[:200])
    elif how == "others can read it":
        new_key(path).chmod(0o644)
        return
    elif how == "unknown type":
        path.write_text(odd_type())
    elif how == "encrypted":
        new_key(path, phrase="secret words")
    elif how == "a public key":
        path.write_text(new_key(path).with_name(f"{path.name}.pub").read_text())
    elif how == "a folder":
        path.mkdir()
        return
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "a link to nothing":
        path.symlink_to("nowhere")
        return
    path.chmod(0o600)


BROKEN = {
    "garbage": "there is no private key in it",
    "empty": "there is no private key in it",
    "a public key": "there is no private key in it",
    "cut off": "cut off, damaged",
    "others can read it": "chmod 600",
    "unknown type": "not supported",
    "encrypted": "ssh-add",
    "a folder": "it is not a file",
    "a pipe": "it is not a file",
    "a link to nothing": "No such file",
}


@pytest.mark.parametrize("how", BROKEN)
def test_case_46_a_broken_default_key_is_passed_over_and_named(
    server: SshServer, host: Host, home: Path, told: list[str], how: str
) -> None:
    break_key(home / ".ssh/id_ed25519", how)
    allow(server, new_key(home / ".ssh/id_rsa", "rsa"))
    assert gets_in(dataclasses.replace(host, identity_file=None), told)
    (note,) = told
    assert note.startswith(f"passed over {home}/.ssh/id_ed25519: ") and BROKEN[how] in note


def test_case_46_where_nothing_works_each_file_is_named_with_its_reason(
    host: Host, home: Path, told: list[str]
) -> None:
    keys = home / ".ssh"
    break_key(keys / "id_ed25519", "garbage")
    break_key(keys / "id_ecdsa", "encrypted")
    new_key(keys / "id_rsa", "rsa")
    with pytest.raises(TransportError) as failed:
        gets_in(dataclasses.replace(host, identity_file=None), told)
    said = failed.value.message
    assert failed.value.exit_code == 4 and failed.value.stage == "authentication"
    assert f"refused every key offered for user {os.environ.get('USER', 'root')} ({keys}/id_rsa)" in said
    assert f"passed over {keys}/id_ed25519: there is no private key in it" in said
    assert f"passed over {keys}/id_ecdsa: it is encrypted" in said


def test_case_46_where_no_file_can_be_used_at_all_that_is_said(
    host: Host, home: Path, told: list[str]
) -> None:
    break_key(home / ".ssh/id_rsa", "garbage")
    with pytest.raises(TransportError, match="no SSH key to offer") as failed:
        gets_in(dataclasses.replace(host, identity_file=None), told)
    assert f"passed over {home}/.ssh/id_rsa" in failed.value.message


def test_case_46_an_encrypted_default_key_is_not_named_where_the_agent_has_it(
    server: SshServer, host: Host, home: Path, told: list[str], agent: Callable[[list[Path]], None]
) -> None:
    locked = new_key(home / ".ssh/id_ed25519")
    agent([locked])
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", locked], check=True)
    allow(server, new_key(home / ".ssh/id_rsa", "rsa"))
    assert gets_in(dataclasses.replace(host, identity_file=None), told) and told == []


def test_case_46_status_names_it_on_stderr_and_a_run_as_an_event(
    server: SshServer, host: Host, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_key(home / ".ssh/id_ed25519", "garbage")
    allow(server, new_key(home / ".ssh/id_rsa", "rsa"))
    entry = {"address": host.address, "port": host.port, "known_hosts": str(host.known_hosts)}
    file = home / "hosts.yaml"
    file.write_text(json.dumps({"hosts": {"box": {**entry, "python": host.python}}}))
    assert cli.run(["status", "box", "--hosts", str(file), "--json"]) == 0
    seen = capsys.readouterr()
    said = f"passed over {home}/.ssh/id_ed25519: there is no private key in it"
    assert f"box: {said}\n" in seen.err and [json.loads(line)["e"] for line in seen.out.splitlines()]

    session = Session(
        dataclasses.replace(host, identity_file=None), Emitter(console.JsonView(sys.stdout), "box")
    )
    session.dial()
    session.close()
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (event["e"], event["host"], event["text"]) == ("note", "box", said)


def test_an_agent_that_is_no_agent_keeps_nobody_out(
    server: SshServer, host: Host, home: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "agent").write_text("")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
    allow(server, new_key(home / ".ssh/id_rsa", "rsa"))
    assert gets_in(dataclasses.replace(host, identity_file=None), told)


def test_a_key_in_the_form_of_pkcs8_gets_in(
    server: SshServer, host: Host, tmp_path: Path, told: list[str]
) -> None:
    made = tmp_path / "k8"
    words = ["ssh-keygen", "-q", "-t", "ecdsa", "-m", "PKCS8", "-N", "", "-f", str(made)]
    subprocess.run(words, check=True)
    allow(server, made)
    assert gets_in(dataclasses.replace(host, identity_file=made), told)


@pytest.mark.parametrize("how", [how for how in BROKEN if how not in ("others can read it", "encrypted")])
def test_a_broken_identity_file_is_bad_input_that_names_it(
    host: Host, tmp_path: Path, told: list[str], how: str
) -> None:
    break_key(tmp_path / "k1", how)
    with pytest.raises(InputError) as failed:
        gets_in(dataclasses.replace(host, identity_file=tmp_path / "k1"), told)
    assert f"identity_file {tmp_path}/k1: " in failed.value.message and BROKEN[how] in failed.value.message
