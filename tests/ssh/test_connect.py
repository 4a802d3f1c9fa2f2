"""Getting in, and being kept out, of a real SSH server."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_deploy import ssh
from ddtree_deploy.errors import HostKeyError, InputError, TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.sandbox.sshd import SshServer
from ddtree_deploy.ssh import auth, known_hosts

pytestmark = pytest.mark.ssh


def new_key(path: Path, kind: str = "ed25519", phrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", phrase, "-f", str(path)], check=True)
    return path


def public(path: Path) -> bytes:
    return known_hosts.blob(path.with_name(path.name + ".pub").read_text())


def with_known_hosts(host: Host, folder: Path, *lines: str) -> Host:
    file = folder / "known_hosts"
    file.write_text("".join(f"{line}\n" for line in lines))
    return dataclasses.replace(host, known_hosts=file)


def own_line(host: Host) -> str:
    """`TYPE BASE64` of the host's true key."""
    return host.known_hosts.read_text().split(maxsplit=1)[1].strip()


def name_of(host: Host) -> str:
    return f"[{host.address}]:{host.port}"


def test_the_right_key_gets_in(host: Host) -> None:
    with ssh.connect(host) as link:
        assert link.run("exit 3", timeout=60).rc == 3


def test_an_unknown_host_is_refused_with_fingerprint_and_the_command_to_accept(
    host: Host, tmp_path: Path
) -> None:
    key = known_hosts.blob(own_line(host))
    with pytest.raises(HostKeyError) as caught:
        ssh.connect(with_known_hosts(host, tmp_path))
    text = caught.value.render()
    assert known_hosts.fingerprint(key) in text and "is not known" in text
    assert f"ddtree-deploy trust {host.name} --fingerprint {known_hosts.fingerprint(key)}" in text
    assert caught.value.exit_code == 4 and "nothing was touched" in text


def test_case_04_a_changed_host_key_is_refused_and_both_fingerprints_are_shown(
    host: Host, tmp_path: Path
) -> None:
    other = new_key(tmp_path / "other")
    line = other.with_name("other.pub").read_text()
    with pytest.raises(HostKeyError) as caught:
        ssh.connect(with_known_hosts(host, tmp_path, f"{name_of(host)} {line}"))
    text = caught.value.render()
    assert "HAS CHANGED" in text
    assert known_hosts.fingerprint(public(other)) in text
    assert known_hosts.fingerprint(known_hosts.blob(own_line(host))) in text


def test_a_host_with_a_key_of_another_type_on_file_counts_as_changed(host: Host, tmp_path: Path) -> None:
    other = new_key(tmp_path / "other", "rsa")
    line = other.with_name("other.pub").read_text()
    with pytest.raises(HostKeyError, match="HAS CHANGED"):
        ssh.connect(with_known_hosts(host, tmp_path, f"{name_of(host)} {line}"))


def test_a_second_key_type_on_file_does_not_hide_the_right_one(host: Host, tmp_path: Path) -> None:
    other = new_key(tmp_path / "other", "rsa").with_name("other.pub").read_text()
    lines = [f"{name_of(host)} {other}", f"{name_of(host)} {own_line(host)}"]
    ssh.connect(with_known_hosts(host, tmp_path, *lines)).close()


def test_hashed_names_are_found(host: Host, tmp_path: Path) -> None:
    salt = os.urandom(20)
    digest = hmac.new(salt, name_of(host).encode(), hashlib.sha1).digest()
    hashed = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    ssh.connect(with_known_hosts(host, tmp_path, f"{hashed} {own_line(host)}")).close()


def test_a_revoked_key_is_refused_even_where_it_is_trusted(host: Host, tmp_path: Path) -> None:
    lines = [f"{name_of(host)} {own_line(host)}", f"@revoked * {own_line(host)}"]
    with pytest.raises(HostKeyError, match="REVOKED"):
        ssh.connect(with_known_hosts(host, tmp_path, *lines))


def test_the_key_of_the_same_address_on_another_port_does_not_count(host: Host, tmp_path: Path) -> None:
    lines = [f"[{host.address}]:{host.port + 1} {own_line(host)}", f"{host.address} {own_line(host)}"]
    with pytest.raises(HostKeyError, match="is not known"):
        ssh.connect(with_known_hosts(host, tmp_path, *lines))


def test_the_offered_key_is_seen_without_logging_in(host: Host, tmp_path: Path) -> None:
    stranger = dataclasses.replace(host, identity_file=new_key(tmp_path / "stranger"))
    kind, key = ssh.offered_key(stranger)
    assert own_line(host).startswith(f"{kind} {base64.b64encode(key).decode()}")


def test_a_key_that_the_host_does_not_know_is_refused(host: Host, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="refused every key") as caught:
        ssh.connect(dataclasses.replace(host, identity_file=new_key(tmp_path / "stranger")))
    assert caught.value.stage == "authentication" and caught.value.exit_code == 4


def test_a_known_hosts_file_that_cannot_be_read_is_bad_input(host: Host, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"known_hosts .*: Is a directory"):
        ssh.connect(dataclasses.replace(host, known_hosts=tmp_path))


def test_an_identity_file_that_is_absent_is_bad_input(host: Host, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        ssh.connect(dataclasses.replace(host, identity_file=tmp_path / "nowhere"))


def test_an_identity_file_that_is_no_key_is_bad_input(host: Host, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(InputError, match="identity_file"):
        ssh.connect(dataclasses.replace(host, identity_file=tmp_path / "text"))


def test_an_encrypted_identity_file_without_agent_says_ssh_add(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    locked = new_key(tmp_path / "locked", phrase="secret words")
    with pytest.raises(InputError, match="encrypted") as caught:
        ssh.connect(dataclasses.replace(host, identity_file=locked))
    assert caught.value.next_command == f"ssh-add {locked}"


def test_the_agent_gets_in_even_when_it_holds_more_keys_than_the_server_allows_tries(
    server: SshServer,
    host: Host,
    tmp_path: Path,
    agent: Callable[[list[Path]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    agent([*(new_key(tmp_path / f"key{i}") for i in range(12)), server.identity])
    with ssh.connect(dataclasses.replace(host, identity_file=None)) as link:
        assert link.run("true", timeout=60).rc == 0


def test_an_agent_that_lists_a_key_and_never_signs_is_given_up(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that waits for a touch, or for a word in a window that nobody sees."""
    key = public(new_key(tmp_path / "touch"))
    lists = b"\x0c" + struct.pack(">II", 1, len(key)) + key + struct.pack(">I", 0)  # one key, no comment

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            assert peer.recv(5)[4] == 11  # what do you hold?
            peer.sendall(struct.pack(">I", len(lists)) + lists)
            while peer.recv(4096):
                asked.set()

    asked = threading.Event()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(auth, "SIGN_S", 0.5)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()
        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(TransportError, match="the SSH agent did not sign") as caught:
            ssh.connect(dataclasses.replace(host, identity_file=None))
    assert asked.is_set() and caught.value.stage == "authentication"


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_keys_of_other_kinds_get_in(server: SshServer, host: Host, tmp_path: Path, kind: str) -> None:
    made = new_key(tmp_path / kind, kind)
    with server.keys.authorized_keys.open("a") as f:
        f.write(made.with_name(f"{kind}.pub").read_text())
    with ssh.connect(dataclasses.replace(host, identity_file=made)) as link:
        assert link.run("true", timeout=60).rc == 0


def test_a_host_with_the_wrong_key_is_offered_none_of_ours(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[object] = []
    monkeypatch.setattr(auth.Keys, "authenticate", lambda *args: offered.append(args))
    with pytest.raises(HostKeyError):
        ssh.connect(with_known_hosts(host, tmp_path))
    assert offered == []


def test_only_the_identity_file_is_offered_when_the_host_names_one(
    host: Host, tmp_path: Path, agent: Callable[[list[Path]], None]
) -> None:
    agent([new_key(tmp_path / f"key{i}") for i in range(12)])
    with ssh.connect(host) as link:
        assert link.run("true", timeout=60).rc == 0


def test_without_any_key_the_message_says_so(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(TransportError, match="no SSH key to offer"):
        ssh.connect(dataclasses.replace(host, identity_file=None))


def test_a_closed_port_is_refused_at_once(host: Host) -> None:
    with socket.socket() as probe:
        probe.bind((host.address, 0))
        with pytest.raises(TransportError, match="connection refused") as caught:
            ssh.connect(dataclasses.replace(host, port=probe.getsockname()[1]))
    assert caught.value.exit_code == 4 and "ssh -p" in caught.value.render()


def test_a_host_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = Host("mute", "127.0.0.1", "/python", port=listener.getsockname()[1], connect_timeout_s=1.0)
        with pytest.raises(TransportError, match="did not say it was SSH"):
            ssh.connect(silent)


def test_a_host_that_speaks_http_is_named_for_what_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200)

        thread = threading.Thread(target=answer)
        thread.start()
        web = Host("web", "127.0.0.1", "/python", port=listener.getsockname()[1], connect_timeout_s=5.0)
        with pytest.raises(TransportError) as caught:
            ssh.connect(web)
        thread.join()
    assert caught.value.stage == "connect"


def test_a_frozen_server_is_given_up_while_connecting(host: Host, frozen: Callable[[], None]) -> None:
    frozen()
    with pytest.raises(TransportError) as caught:
        ssh.connect(dataclasses.replace(host, connect_timeout_s=1.0))
    assert caught.value.exit_code == 4
