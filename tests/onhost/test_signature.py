"""Signed payloads: the host's list of signers decides, with real keys."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.entry import launch, signature
from ddtree_deploy.onhost.state import durable, layout
from ddtree_deploy.onhost.wire.protocol import Plan, ProtocolError, to_dict
from ddtree_deploy.running.signing import sign

from .test_crash import Site

HOST = Host("ct1", "10.0.0.1", "/v/bin/python")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    made = {}
    for name in ("ada", "eve"):
        made[name] = tmp_path / name
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(made[name])]
        subprocess.run(words, check=True)
    return made


@pytest.fixture
def site(tmp_path: Path, keys: dict[str, Path]) -> Site:
    """A host that takes payloads of ada only."""
    made = Site(tmp_path / "host")
    public = keys["ada"].with_suffix(".pub").read_text()
    made.state.mkdir()
    (made.state / signature.NAME).write_text(f"ada@desk {public}")
    return made


def accept(site: Site, plan: Plan) -> None:
    folder = site.site_dir / "runs" / plan.run
    durable.write_json(folder / layout.PLAN, to_dict(plan))
    launch.accept(folder)


def test_a_payload_of_an_allowed_signer_is_taken(site: Site, keys: dict[str, Path]) -> None:
    plan = site.plan({"a.py": "a = 2\n"})
    signed = replace(plan, signature=sign(HOST, keys["ada"], plan.payload_digest))
    accept(site, signed)
    assert signature.check(signed, site.site_dir / "runs" / plan.run, site.state) == "ada@desk"


def test_one_without_a_signature_is_refused(site: Site) -> None:
    with pytest.raises(ProtocolError, match=r"not signed, and .*allowed_signers asks for it"):
        accept(site, site.plan({"a.py": "a = 2\n"}))


def test_one_of_somebody_else_is_refused(site: Site, keys: dict[str, Path]) -> None:
    plan = site.plan({"a.py": "a = 2\n"})
    with pytest.raises(ProtocolError, match="signed with a key that is not in"):
        accept(site, replace(plan, signature=sign(HOST, keys["eve"], plan.payload_digest)))


def test_a_signature_of_another_payload_is_refused(site: Site, keys: dict[str, Path]) -> None:
    other = site.plan({"a.py": "a = 3\n"})
    plan = site.plan({"a.py": "a = 2\n"})
    with pytest.raises(ProtocolError, match="the signature of ada@desk is not of this payload"):
        accept(site, replace(plan, signature=sign(HOST, keys["ada"], other.payload_digest)))


@pytest.mark.parametrize("text", ["no signature at all", "-----BEGIN SSH SIGNATURE-----\nAAAA\n"])
def test_what_is_no_signature_is_refused(site: Site, text: str) -> None:
    with pytest.raises(ProtocolError, match="not in"):
        accept(site, replace(site.plan({"a.py": "a = 2\n"}), signature=text))


def test_a_host_without_a_list_asks_for_none_and_a_rollback_needs_none(site: Site) -> None:
    plan = site.plan({"a.py": "a = 2\n"})
    folder = site.site_dir / "runs" / plan.run
    assert signature.check(replace(plan, action="rollback"), folder, site.state) == ""
    (site.state / signature.NAME).unlink()
    accept(site, plan)


def test_a_key_that_cannot_sign_is_bad_input_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be signed") as failed:
        sign(HOST, tmp_path / "absent", "d" * 64)
    assert "hosts.ct1.sign_with" in failed.value.render()
