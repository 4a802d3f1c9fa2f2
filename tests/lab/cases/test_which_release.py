"""Which release serves, on real hosts: what a start does not say, and what is done by hand later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.fake_venv import VENV
from tests.lab.gated import Gated
from tests.lab.hosts import wait_for
from tests.lab.payloads import make_payload
from tests.lab.test_systemd_rollout import DROP_IN

pytestmark = pytest.mark.lab
RELOAD = "systemctl daemon-reload"
# Bytecode that Python runs without a look at the source beside it.
STALE = """
import importlib.util, py_compile, sys
source, other = sys.argv[1:]
cached = importlib.util.cache_from_source(source)
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
py_compile.compile(other, cached, doraise=True, invalidation_mode=mode)
"""


def fails_health(deployment: Gated, by_hand: str) -> str:
    """A rollout, in which somebody does this between install and start; it is undone."""
    deployment.gate("start")
    running = deployment.begin()
    deployment.host.run(by_hand)
    deployment.open()
    done = running.finish().expect(1, "health")
    assert done.outcome["state"] == "as before", done
    assert deployment.algorithm() == "DFLASH" and deployment.host.generates()
    return str(done.outcome["reason"])


def test_case_30_a_value_that_is_not_served_as_asked_fails_health_and_is_undone(deployment: Gated) -> None:
    reason = fails_health(deployment, f"sed -i 's/budget 16/budget 8/' {DROP_IN} && {RELOAD}")
    assert "the server says speculative-ddtree-budget 8, it is to be 16" in reason


def test_case_30_an_earlier_release_fails_health_and_is_undone(deployment: Gated) -> None:
    edit = 's/DDTREE_DEPLOY_RELEASE=[^" ]*/DDTREE_DEPLOY_RELEASE=20260101T000000-abcdef/'
    reason = fails_health(deployment, f"sed -i '{edit}' {DROP_IN} && {RELOAD}")
    assert "carries release 20260101T000000-abcdef, it should carry 2" in reason


def test_case_31_old_bytecode_of_a_new_file_fails_health_and_is_undone(deployment: Gated) -> None:
    deployment.payload = make_payload(deployment.folder / "tells", serves=True)
    module = f"{VENV}/lib/python3.*/site-packages/tiny_ddtree/module0.py"
    for name, text in (("stale.py", STALE), ("other.py", "WIDTH = 16\n")):
        deployment.host.path(f"/srv/{name}").write_text(text)
    reason = fails_health(deployment, f"{VENV}/bin/python /srv/stale.py {module} /srv/other.py")
    assert "other code is loaded than was installed: tiny_ddtree.module0" in reason


@pytest.fixture
def live(deployment: Gated) -> Iterator[Gated]:
    """A release that tells of itself, rolled out; afterwards its launch is put back, and then all."""
    deployment.payload = make_payload(deployment.folder / "tells", serves=True)
    deployment.rollout().expect(0)
    launch = deployment.host.path(DROP_IN).read_text()
    yield deployment
    deployment.host.path(DROP_IN).parent.mkdir(exist_ok=True)
    deployment.host.path(DROP_IN).write_text(launch)
    deployment.host.run(f"{RELOAD} && systemctl restart sglang")
    wait_for(deployment.host.generates, "tokens")
    assert not_live(deployment) == []
    deployment.rollback().expect(0)
    assert not_live(deployment) == []


def service_of(deployment: Gated) -> dict[str, Any]:
    done = deployment.controller.run("status", deployment.host.name).expect(0)
    (event,) = [e for e in done.events if e["e"] == "status"]
    return dict(event["service"])


def not_live(deployment: Gated) -> list[str]:
    found = service_of(deployment)["not_live"]
    assert isinstance(found, list)
    return found


def test_case_43_status_drift_and_verify_notice_a_launch_that_was_edited_by_hand(live: Gated) -> None:
    host, name = live.host, live.host.name
    assert [service_of(live)[key] for key in ("differs", "not_live", "untold")] == [[], [], []]
    live.controller.run("drift", name).expect(0)
    host.run(f"sed -i 's/budget 16/budget 8/' {DROP_IN}")
    edited = f"the launch was edited: {DROP_IN} is not what it was"
    assert not_live(live) == [edited]
    host.run(f"{RELOAD} && systemctl restart sglang")
    wait_for(host.generates, "tokens")
    seen = not_live(live)
    assert seen[0] == edited and seen[1].endswith("runs another command line: 16 is 8"), seen
    assert seen[2:] == ["the server says speculative-ddtree-budget 8, it is to be 16"]
    drifted = live.controller.run("drift", name).expect(6)
    (error,) = [e for e in drifted.events if e["e"] == "error"]
    assert edited in json.dumps(error) and "--accept-drift" in error["next"]
    book = live.folder / "verify.yaml"
    health = {"health": {"requests": 1, "need": 1, "max_new_tokens": 4}}
    steps = ["lock", "stage", health, "unlock"]
    book.write_text(json.dumps({"schema": 1, "name": "verify", "action": "verify", "steps": steps}))
    verified = live.controller.run("verify", name, "--playbook", str(book)).expect(1, "health")
    assert edited in verified.outcome["reason"]


def test_case_43_status_notices_a_launch_that_is_gone_and_who_serves_without_it(live: Gated) -> None:
    live.host.run(f"rm {DROP_IN} && {RELOAD} && systemctl restart sglang")
    wait_for(live.host.generates, "tokens")
    seen = not_live(live)
    assert "carries no release, it should carry 2" in seen[0], seen
    assert seen[1] == f"the launch was edited: {DROP_IN} is not what it was"
    assert "runs another command line" in seen[2] and "DDTREE" in seen[2], seen
    assert any("the server says speculative-algorithm DFLASH" in text for text in seen), seen
