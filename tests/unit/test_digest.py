"""One digest over all that a plan is made from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Gpu, ServiceFacts
from ddtree_deploy.planning import digest
from tests.unit.planning import HOST, PLAYBOOK, write
from tests.unit.test_plan import LATER, Kit


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def of(kit: Kit, options: Any = LATER, **facts: Any) -> str:
    return kit.rollout(options, **facts).changes.digest


SERVICE = ServiceFacts("systemd", "active", command=["a"], new_command=["a", "b"], digest="d1")


def payload(kit: Kit) -> None:
    write(kit.folder / "payload", {"sglang_ddtree/plugin.py": b"P = 9\n"})


def mode(kit: Kit) -> None:
    (kit.folder / "payload/sglang_ddtree/plugin.py").chmod(0o755)


def check(kit: Kit) -> None:
    write(kit.folder / "payload", {"checks/smoke.py": b"print('ok 6')\n"})


def step(kit: Kit) -> None:
    write(kit.folder, {"r.yaml": PLAYBOOK.replace("tokens: 4", "tokens: 5")})


def local(kit: Kit) -> None:
    """A step that runs on the controller is in no plan that is sent."""
    write(kit.folder, {"r.yaml": PLAYBOOK.replace("  - local\n", "")})


def prompts(kit: Kit) -> None:
    text = (kit.folder / "prompts.jsonl").read_text()
    (kit.folder / "prompts.jsonl").write_text(text.replace("prompt 3", "prompt 33"))


def launch(kit: Kit) -> None:
    assert HOST.service is not None
    edited = replace(HOST.service.launch, env={"A": "1"})
    kit.host = replace(HOST, service=replace(HOST.service, launch=edited))


def address(kit: Kit) -> None:
    kit.host = replace(HOST, address="10.1.230.173")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (payload, "payload"),
        (mode, "payload"),
        (check, "payload"),
        (step, "playbook"),
        (local, "playbook"),
        (prompts, "playbook"),
        (launch, "host entry"),
        (address, "host entry"),
    ],
)
def test_case_41_a_change_of_what_is_given_is_another_digest_that_says_where(
    kit: Kit, change: Callable[[Kit], None], part: str
) -> None:
    before = of(kit)
    change(kit)
    assert digest.differences([before], of(kit)) == [part]


@pytest.mark.parametrize(
    "facts",
    [
        {"service": replace(SERVICE, digest="d2")},
        {"service": replace(SERVICE, new_command=["a", "c"])},
        {"hostname": "another"},
        {"python_version": [3, 12, 1]},
    ],
)
def test_case_41_a_host_that_has_moved_is_another_digest(kit: Kit, facts: dict[str, Any]) -> None:
    before = of(kit, service=SERVICE)
    assert digest.differences([before], of(kit, **{"service": SERVICE, **facts})) == ["facts"]


def test_case_41_a_live_file_that_has_moved_is_another_digest(kit: Kit) -> None:
    before = of(kit)
    kit.world.files["site:sglang_ddtree/plugin.py"] = b"foreign"
    found = of(kit, replace(LATER, accept_drift=True))
    assert digest.differences([before], found) == ["facts"]


def test_case_41_the_same_plan_has_the_same_digest_whoever_makes_it_and_when(kit: Kit) -> None:
    first = of(kit, service=SERVICE)
    assert re.fullmatch("[0-9a-f]{64}", first) and not digest.problem(first)
    others = replace(LATER, run="r9", who="eve@ci", created="later", secrets={"api_key": "sk"})
    busy = replace(SERVICE, state="failed", pid=99, listening=True, warnings=["process 99 listens, too"])
    here = {"identity_file": Path("/k"), "known_hosts": Path("/h"), "line": 9, "connect_timeout_s": 9.0}
    kit.host = replace(HOST, **here)  # type: ignore[arg-type]
    found = of(kit, others, service=busy, boot_id="b2", site_free_bytes=5, gpus=[Gpu("H200", 9, 1)])
    assert digest.differences([first], found) == []


def test_every_field_of_a_host_counts_or_is_of_this_machine() -> None:
    """A new field is in the digest unless somebody says here that it is not."""
    left_out = {"identity_file", "known_hosts", "sign_with", "playbook", "file", "line", "connect_timeout_s"}
    assert set(digest._NOT_OF_THE_HOST) == left_out <= {f.name for f in fields(Host)}


def test_of_several_expected_ones_the_nearest_says_what_differs(kit: Kit) -> None:
    first = of(kit)
    payload(kit)
    second = of(kit)
    address(kit)
    assert digest.differences([first, second], of(kit)) == ["host entry"]
    assert digest.differences([first, second], second) == []
    assert digest.differences(["0" * 32 + second[32:]], second) == ["the plan itself"]


@pytest.mark.parametrize("text", ["", "abc", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_what_is_no_digest_is_bad_input(text: str) -> None:
    assert digest.problem(text)
