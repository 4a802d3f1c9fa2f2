"""Checks against staged files: the farm, and venv code that never runs as root in somebody else's venv."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_deploy.onhost.staging import overlay
from ddtree_deploy.onhost.staging.stage import Wanted
from tests.root import need_root

from .host import PATCHED, Host


def wanted(tmp_path: Path, path: Path, content: str | None) -> Wanted:
    if content is None:
        return Wanted(str(path), path.name, "absent", "", 0, "x")
    staged = tmp_path / f"staged-{path.name}"
    staged.write_text(content)
    return Wanted(str(path), path.name, "file", "", 0o644, "", str(staged))


def ask(root: Path, site: Path, code: str) -> str:
    """A Python whose site-packages is `site`, with the farm in front."""
    env = {"PYTHONPATH": f"{root}{os.pathsep}{site}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    package = tmp_path / "site" / "pkg"
    (package / "a" / "b").mkdir(parents=True)
    (package / "other").mkdir()
    for folder in (package, package / "a", package / "a" / "b", package / "other"):
        (folder / "__init__.py").write_text("")
    (package / "a" / "b" / "deep.py").write_text("V = 'live'\n")
    (package / "a" / "beside.py").write_text("V = 'live'\n")
    (package / "other" / "far.py").write_text("from pkg.a.b.deep import V\n")
    return tmp_path / "site"


def test_the_farm_is_the_package_with_the_staged_files(tmp_path: Path, site: Path) -> None:
    package = site / "pkg"
    files = [
        wanted(tmp_path, package / "a" / "b" / "deep.py", "V = 'staged'\n"),
        wanted(tmp_path, package / "a" / "beside.py", None),
        wanted(tmp_path, site / "new" / "__init__.py", "V = 'new'\n"),
        wanted(tmp_path, site / "single.py", "V = 'single'\n"),
    ]
    root = tmp_path / "farm"
    links = overlay.build(root, files, str(package), str(site))
    assert links == 4  # pkg/__init__.py, pkg/other, pkg/a/__init__.py, pkg/a/b/__init__.py
    assert ask(root, site, "import pkg.other.far as m; print(m.V)") == "staged"
    assert ask(root, site, "import new, single; print(new.V, single.V)") == "new single"
    assert "No module named 'pkg.a.beside'" in ask(root, site, "import pkg.a.beside")
    assert ask(tmp_path / "nothing", site, "import pkg.other.far as m; print(m.V)") == "live"


def test_a_package_outside_site_packages_keeps_its_name(tmp_path: Path, site: Path) -> None:
    package = tmp_path / "checkout" / "python" / "pkg"
    package.parent.mkdir(parents=True)
    (site / "pkg").rename(package)
    root = tmp_path / "farm"
    overlay.build(
        root, [wanted(tmp_path, package / "a" / "b" / "deep.py", "V = 'staged'\n")], str(package), str(site)
    )
    assert ask(root, package.parent, "import pkg.other.far as m; print(m.V)") == "staged"


# ---- somebody else's venv -------------------------------------------------------------------------------


def _nobody_can_run(python: str) -> bool:
    uid = pwd.getpwnam("nobody").pw_uid
    try:
        return subprocess.run([python, "-c", ""], user=uid, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture
def theirs(runner: bytes) -> Iterator[Host]:
    """A venv that belongs to `nobody`, in a folder that everybody can reach."""
    base = "/usr/bin/python3"
    need_root("needs root, and a Python that other users can run", lambda: _nobody_can_run(base))
    root = Path(tempfile.mkdtemp(prefix="ddtree-test-"))
    root.chmod(0o755)
    made = Host(root, runner=runner, base=base)
    user = pwd.getpwnam("nobody")
    for path in [root / "venv", *(root / "venv").rglob("*")]:
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    yield made
    made.close()
    shutil.rmtree(root)


def test_checks_run_as_the_owner_of_the_venv_and_installed_files_are_theirs(theirs: Host) -> None:
    smoke = "import os, sglang.srt.spec\nprint('ok', os.getuid(), sglang.srt.spec.algorithm())\n"
    uid = pwd.getpwnam("nobody").pw_uid
    session = theirs.rollout(theirs.payload(smoke=smoke), steps=theirs.steps(smoke=f"ok {uid} tree"))
    assert session.end["exit"] == 0, session.end
    for path in (theirs.site / "sglang_ddtree", theirs.site / "sglang_ddtree" / "worker.py"):
        assert path.stat().st_uid == uid
    assert (theirs.package / "srt" / "spec.py").read_text() == PATCHED
    assert theirs.run_dir(session.run).stat().st_uid == 0
    assert not Path(f"/var/tmp/ddtree-deploy-{session.run}").exists()


def test_a_failure_leaves_nothing_in_the_shared_temp_folder(theirs: Host) -> None:
    before = theirs.digest()
    session = theirs.rollout(theirs.payload(name="other"))
    assert session.end["step"] == "smoke"
    assert theirs.digest() == before
    assert not Path(f"/var/tmp/ddtree-deploy-{session.run}").exists()


def test_a_pth_file_of_theirs_is_not_executed_as_root(theirs: Host) -> None:
    mark = Path(tempfile.mkdtemp(prefix="ddtree-mark-"))
    mark.chmod(0o777)
    try:
        line = f"import os; open({str(mark)!r} + '/' + str(os.geteuid()), 'w').close()\n"
        (theirs.site / "their.pth").write_text(line)
        session = theirs.rollout()
        assert session.end["exit"] == 0, session.end
        assert [p.name for p in mark.iterdir()] == [str(pwd.getpwnam("nobody").pw_uid)]
    finally:
        shutil.rmtree(mark)
