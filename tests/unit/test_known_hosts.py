"""known_hosts, as OpenSSH reads it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from ddtree_deploy.ssh import known_hosts as kh

ONE, TWO, RSA = b"key one", b"key two", b"rsa key"


def b64(key: bytes) -> str:
    return base64.b64encode(key).decode()


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{b64(salt)}|{b64(digest)}"


def entries(tmp_path: Path, *lines: str) -> list[kh.Entry]:
    file = tmp_path / "known_hosts"
    file.write_text("\n".join(lines) + "\n")
    return kh.read([file])


@pytest.mark.parametrize(
    ("names", "address", "port", "found"),
    [
        ("host", "host", 22, True),
        ("host", "HOST", 22, True),
        ("host", "host", 2222, False),
        ("[host]:2222", "host", 2222, True),
        ("[host]:2222", "host", 22, False),
        ("[host]:2222", "h", 2222, False),
        ("other,host", "host", 22, True),
        ("*.lab", "a.lab", 22, True),
        ("*.lab,!b.lab", "b.lab", 22, False),
        ("10.0.0.?", "10.0.0.7", 22, True),
        ("10.0.0.?", "10.0.0.17", 22, False),
        ("a.b", "axb", 22, False),
        (hashed("host"), "host", 22, True),
        (hashed("[host]:2222"), "host", 2222, True),
        (hashed("host"), "other", 22, False),
        ("|1|broken", "host", 22, False),
        ("|2|x|y", "host", 22, False),
        (hashed("host").replace("|1|", "|2|"), "host", 22, False),
        (hashed("host") + "|", "host", 22, False),
        ("|1|x", "host", 22, False),
    ],
)
def test_names(tmp_path: Path, names: str, address: str, port: int, found: bool) -> None:
    lines = entries(tmp_path, f"{names} ssh-ed25519 {b64(ONE)}")
    assert bool(kh.trusted(lines, address, port)) is found


@pytest.mark.parametrize(
    ("address", "filed"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::0001", "::1"),
        ("[::1]", "::1"),
        ("FE80::A", "fe80::a"),
        ("2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
        ("::FFFF:127.0.0.1", "::ffff:127.0.0.1"),
        ("0:0:0:0:0:ffff:7f00:1", "::ffff:127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("Host.Example.COM", "host.example.com"),
        ("Host.Example.COM.", "host.example.com."),
        ("a..b", "a..b"),
    ],
)
@pytest.mark.parametrize("port", [22, 2222])
def test_case_48_an_address_has_one_form(tmp_path: Path, address: str, filed: str, port: int) -> None:
    name = filed if port == 22 else f"[{filed}]:{port}"
    assert kh.host_name(address, port) == name
    for names in (name, f"10.9.9.9,{name}", hashed(name)):
        lines = entries(tmp_path, f"{names} ssh-ed25519 {b64(ONE)}")
        assert kh.judge(lines, address, port, ONE)[0] == "known"
        assert kh.judge(lines, address, port, TWO)[0] == "changed"
        assert kh.algorithms(lines, address, port) == ["ssh-ed25519"]
        assert kh.judge(lines, address, port + 1, ONE)[0] == "unknown"
    assert kh.judge(entries(tmp_path, f"@revoked {name} t {b64(ONE)}"), address, port, ONE)[0] == "revoked"


@pytest.mark.parametrize("port", [22, 2222])
def test_case_48_a_name_with_a_dot_at_its_end_is_found_without_it_too(tmp_path: Path, port: int) -> None:
    name = "a.lab" if port == 22 else "[a.lab]:2222"
    lines = entries(tmp_path, f"{name} ssh-ed25519 {b64(ONE)}", f"@revoked {name} ssh-ed25519 {b64(TWO)}")
    assert kh.judge(lines, "A.lab.", port, ONE)[0] == "known"
    assert kh.judge(lines, "A.lab.", port, TWO)[0] == "revoked"
    assert kh.judge(lines, "A.lab.", port, RSA)[0] == "changed"


def test_case_48_trust_replaces_what_is_on_file_under_any_form(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"::1 ssh-rsa {b64(RSA)}\n{hashed('a.lab')} ssh-rsa {b64(RSA)}\n")
    assert len(kh.accept(file, "0:0:0:0:0:0:0:1", 22, "ssh-ed25519", ONE)) == 1
    assert len(kh.accept(file, "A.lab.", 22, "ssh-ed25519", ONE)) == 1
    assert file.read_text() == f"::1 ssh-ed25519 {b64(ONE)}\na.lab. ssh-ed25519 {b64(ONE)}\n"


def test_accepting_keeps_bytes_that_are_not_utf_8_and_odd_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    old = b"# K\xf6ln\r\nother ssh-ed25519 " + b64(TWO).encode() + b" m\xfcller\x0c \xc2\x85 x\n"
    file.write_bytes(old + f"host ssh-rsa {b64(RSA)}".encode())
    (dropped,) = kh.accept(file, "host", 22, "ssh-ed25519", ONE)
    assert dropped.line == 3
    assert file.read_bytes() == old + f"host ssh-ed25519 {b64(ONE)}\n".encode()
    assert kh.judge(kh.read([file]), "other", 22, TWO)[0] == "known"


def test_comments_blank_and_malformed_lines_are_passed_over(tmp_path: Path) -> None:
    lines = entries(
        tmp_path,
        "# host ssh-ed25519 AAAA",
        "",
        "host",
        "host ssh-ed25519 !!!",
        "@odd h t AAAA",
        f"host x {b64(ONE)} me@desk",
    )
    assert [(e.line, e.key) for e in lines] == [(6, ONE)]


def test_a_missing_file_knows_nobody(tmp_path: Path) -> None:
    assert kh.read([tmp_path / "nowhere"]) == []
    assert kh.judge([], "host", 22, ONE) == ("unknown", [])


def test_a_host_with_another_key_on_file_has_changed(tmp_path: Path) -> None:
    lines = entries(tmp_path, f"host ssh-ed25519 {b64(ONE)}")
    assert kh.judge(lines, "host", 22, ONE)[0] == "known"
    assert kh.judge(lines, "host", 22, TWO) == ("changed", lines)


def test_revoked_beats_trusted_and_certificate_authorities_vouch_for_nobody(tmp_path: Path) -> None:
    lines = entries(
        tmp_path,
        f"host ssh-ed25519 {b64(ONE)}",
        f"@revoked * ssh-ed25519 {b64(ONE)}",
        f"@cert-authority * ssh-ed25519 {b64(TWO)}",
    )
    assert kh.judge(lines, "host", 22, ONE)[0] == "revoked"
    assert kh.judge(lines, "other", 22, TWO)[0] == "unknown"


def test_the_algorithms_of_the_keys_on_file_are_asked_for_first(tmp_path: Path) -> None:
    lines = entries(
        tmp_path, f"host ssh-rsa {b64(RSA)}", f"host ssh-ed25519 {b64(ONE)}", f"x ecdsa {b64(TWO)}"
    )
    assert kh.algorithms(lines, "host", 22) == ["rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519"]


def test_the_fingerprint_is_openssh_s() -> None:
    line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl github"
    assert kh.fingerprint(kh.blob(line)) == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


@pytest.mark.parametrize("line", ["", "ssh-ed25519", "ssh-ed25519 !!!"])
def test_a_line_without_a_key_is_no_public_key(line: str) -> None:
    with pytest.raises(ValueError):
        kh.blob(line)
    assert kh.blob("ssh-ed25519 " + b64(ONE)) == ONE


def test_accepting_replaces_the_host_s_own_lines_and_keeps_all_others(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    keep = ["# mine", f"other ssh-ed25519 {b64(TWO)}", f"host,other ssh-ed25519 {b64(TWO)}"]
    file.write_text("\n".join([*keep, f"host ssh-rsa {b64(RSA)}", f"{hashed('host')} ssh-rsa {b64(RSA)}"]))
    file.chmod(0o640)
    dropped = kh.accept(file, "host", 22, "ssh-ed25519", ONE)
    assert [e.line for e in dropped] == [4, 5]
    assert file.read_text().splitlines() == [*keep, f"host ssh-ed25519 {b64(ONE)}"]
    assert file.stat().st_mode & 0o777 == 0o640
    assert kh.judge(kh.read([file]), "host", 22, ONE)[0] == "known"
    assert list(tmp_path.iterdir()) == [file]


def test_accepting_makes_a_private_file_where_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known_hosts"
    assert kh.accept(file, "h", 2222, "ssh-ed25519", ONE) == []
    assert file.read_text() == f"[h]:2222 ssh-ed25519 {b64(ONE)}\n"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o077 == 0


def test_accepting_writes_through_a_symlink(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles"
    real.write_text("")
    link = tmp_path / "known_hosts"
    link.symlink_to(real)
    kh.accept(link, "h", 22, "ssh-ed25519", ONE)
    assert link.is_symlink() and real.read_text().startswith("h ssh-ed25519")
