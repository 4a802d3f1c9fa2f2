"""An overlay of the sandbox's own SGLang: rolled out over SSH, refused on drift, rolled back. No restart."""

from __future__ import annotations

import difflib
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ddtree_deploy.onhost.venv import bytecode, tree
from ddtree_deploy.sandbox import look
from tests.need import lacking

pytestmark = pytest.mark.sglang
PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / ".sandbox"
UPSTREAM = "srt/speculative/spec_info.py"
MARK = "PATCHED_BY_DDTREE_DEPLOY = True\n"


@pytest.fixture
def package() -> Iterator[Path]:
    """The sglang package of the checkout's sandbox; whatever a test does, it is left as it was."""
    if look(FOLDER).venv != "ready" or look(FOLDER).ssh == "down":
        lacking("the checkout's sandbox is not up: ddtree-deploy sandbox up", "SGLANG")
    (found,) = (FOLDER / "home" / "venv" / "lib").glob("python3*/site-packages/sglang")
    live = found / UPSTREAM
    before = live.read_bytes()
    yield found
    assert live.read_bytes() == before


@pytest.fixture
def project(tmp_path: Path, package: Path) -> Path:
    """A folder with a hosts.yaml (the sandbox, files only), playbooks, and a payload of one patched file."""
    entry = yaml.safe_load((FOLDER / "hosts.yaml").read_text())["hosts"]["sandbox"]
    del entry["service"], entry["playbook"]
    for key in ("identity_file", "known_hosts"):
        entry[key] = str(FOLDER / entry[key])
    # The sandbox's server goes on: it has read its modules.
    entry["also_stop"] = ["sglang", "multiprocessing"]
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"hosts": {"sandbox": entry}}))
    write_payload(tmp_path / "payload", package, MARK)
    return tmp_path


def write_payload(folder: Path, package: Path, addition: str) -> None:
    """A payload whose only file is a strict patch of `UPSTREAM`, made from the SGLang that is there."""
    base = (package / UPSTREAM).read_text()
    patch = "".join(
        difflib.unified_diff(
            base.splitlines(keepends=True), (base + addition).splitlines(keepends=True), UPSTREAM, UPSTREAM
        )
    )
    folder.mkdir(exist_ok=True)
    (folder / "spec_info.patch").write_text(patch)
    overlay = {
        "to": f"sglang:{UPSTREAM}",
        "patch": "spec_info.patch",
        "base": hashlib.sha256(base.encode()).hexdigest(),
        "result": hashlib.sha256((base + addition).encode()).hexdigest(),
    }
    described = {
        "schema": 1,
        "name": "one-patch",
        "version": "1.0",
        "variants": [{"name": "sglang-0.5.23", "sglang": ["0.5.23"], "overlays": [overlay]}],
    }
    (folder / "payload.yaml").write_text(yaml.safe_dump(described))


def deploy(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddtree_deploy", *arguments, "--hosts", str(project / "hosts.yaml")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_an_overlay_is_rolled_out_refused_on_drift_and_rolled_back(project: Path, package: Path) -> None:
    live, before = package / UPSTREAM, tree.snapshot(str(package))
    payload = ["--payload", str(project / "payload")]

    shown = deploy(project, "plan", "sandbox", *payload)
    assert shown.returncode == 0, shown.stderr
    assert f"patched   sglang:{UPSTREAM}  (base)" in shown.stdout

    done = deploy(project, "rollout", "sandbox", "--yes", *payload)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree.changes(before, tree.snapshot(str(package))) == [f"~{UPSTREAM}"]
    ours = live.read_bytes()
    assert ours.decode().endswith(MARK)

    live.write_bytes(ours + b"# edited by hand\n")
    write_v2 = project / "payload" / "payload.yaml"
    write_v2.write_text(write_v2.read_text().replace("version: '1.0'", "version: '2.0'"))
    refused = deploy(project, "rollout", "sandbox", "--yes", *payload)
    assert refused.returncode == 6, refused.stdout + refused.stderr
    assert UPSTREAM in refused.stderr and "nothing was touched" in refused.stderr
    also = deploy(project, "rollback", "sandbox", "--yes")
    assert also.returncode == 6, also.stdout + also.stderr
    live.write_bytes(ours)

    back = deploy(project, "rollback", "sandbox", "--yes")
    assert back.returncode == 0, back.stdout + back.stderr
    assert tree.changes(before, tree.snapshot(str(package))) == []
    assert bytecode.stale([str(live)]) == []
