"""A controller that is not ours hands the runner a plan: nothing outside of the venv is made or changed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.entry import launch
from ddtree_deploy.onhost.state import durable, layout
from ddtree_deploy.onhost.wire.protocol import Plan, ProtocolError, StepSpec, Target, from_dict, to_dict

from .test_crash import Site

pytestmark = pytest.mark.unit


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A venv with traps: a folder that links out of it, a pipe, and something to protect outside."""
    made = Site(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    (made.package / "link").symlink_to(outside)
    os.mkfifo(made.package / "pipe")
    return made


def outside(site: Site) -> dict[str, str]:
    return {
        str(p.relative_to(site.root)): p.read_text() if p.is_file() else ""
        for p in site.root.rglob("*")
        if "state" not in p.parts[len(site.root.parts) :][:1] and not p.is_fifo()
    }


# Place -> what is said of it. The steps refuse them, too: a later change of the tree may bring them about.
PATHS = {
    "absolute, elsewhere": ("{root}/outside/precious", "leads out of"),
    "dots": ("{site}/pkg/../../outside/precious", "not a plain absolute path"),
    "relative": ("outside/precious", "not a plain absolute path"),
    "through a link": ("{site}/pkg/link/precious", "leads out of"),
    "into a link": ("{site}/pkg/link/new/deep.py", "leads out of"),
    "a pipe": ("{site}/pkg/pipe", "a device, a pipe or a socket"),
    "a NUL": ("{site}/pkg/a\0b", "null byte"),
    "the root itself": ("{site}", "leads out of"),
}


@pytest.mark.parametrize("name", PATHS)
def test_paths_that_leave_the_venv_are_refused_before_anything_starts(site: Site, name: str) -> None:
    path, why = PATHS[name]
    plan = hostile(site, path.format(root=site.root, site=site.site))
    before = outside(site)
    with pytest.raises(ProtocolError, match=why):
        launch.accept(site.site_dir / "runs" / plan.run)
    assert outside(site) == before


@pytest.mark.parametrize("name", [n for n in PATHS if n not in ("a NUL", "the root itself")])
@pytest.mark.parametrize("kinds", [("lock", "backup", "stage", "install"), ("lock", "stage", "install")])
def test_and_each_step_refuses_them_by_itself(site: Site, name: str, kinds: tuple[str, ...]) -> None:
    path, _ = PATHS[name]
    plan = hostile(site, path.format(root=site.root, site=site.site), kinds)
    before = outside(site)
    assert site.run(plan) not in (0, 3)
    assert outside(site) == before


@pytest.mark.parametrize(
    "change",
    [
        {"source": "blob:../../../../../../outside/precious"},
        {"source": "blob:/etc/passwd"},
        {"source": "patch:../x"},
        {"source": "backup:../../x"},
        {"mode": 0o4755},
    ],
)
def test_sources_and_modes_that_no_payload_has_are_refused(site: Site, change: dict[str, Any]) -> None:
    plan = hostile(site, f"{site.package}/new.py")
    plan = rewritten(site, replace(plan, targets=[replace(plan.targets[0], **change)]))
    with pytest.raises(ProtocolError, match=r"leaves the payload's root|would get the mode"):
        launch.accept(site.site_dir / "runs" / plan.run)
    if "source" in change:
        assert site.run(plan) not in (0, 3)
        assert not (site.package / "new.py").exists()


def test_a_script_of_a_check_stays_in_the_payload(site: Site) -> None:
    plan = hostile(site, f"{site.package}/new.py")
    check = {"name": "c", "script": "../../../../../../outside/precious", "expect": "", "timeout_s": 5.0}
    steps = [*plan.steps[:3], StepSpec("smoke", "smoke", 60.0, {"checks": [check]})]
    assert site.run(rewritten(site, replace(plan, steps=steps))) == 1


def test_a_good_plan_is_not_called_hostile(site: Site) -> None:
    plan = site.plan({"a.py": "a = 2\n", "new/b.py": "b = 1\n"})
    data = json.loads((site.site_dir / "runs" / plan.run / layout.PLAN).read_text())
    assert launch.hostile(from_dict(Plan, data)) == ""


def hostile(site: Site, path: str, kinds: tuple[str, ...] = ("lock", "backup", "stage", "install")) -> Plan:
    """A plan that wants one path to hold `a = 2`."""
    plan = site.plan({"a.py": "a = 2\n"})
    good = plan.targets[0]
    target = Target(path, "sglang:x", good.source, good.sha256, "")
    return rewritten(site, replace(plan, targets=[target], steps=[StepSpec(k, k, 60.0) for k in kinds]))


def rewritten(site: Site, plan: Plan) -> Plan:
    durable.write_json(site.site_dir / "runs" / plan.run / layout.PLAN, to_dict(plan))
    return plan
