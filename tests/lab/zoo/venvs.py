"""Traits of the venv: made by uv, by conda, editable, linked, shared, not ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.lab.fake_venv import VENV, VERSION
from tests.lab.payloads import OVERLAID
from tests.lab.zoo.draft import SGL, SITE, Draft, File, checkout, copy_venv, move_venv, own

INFO = f"sglang-{VERSION}.dist-info"
FINDER = """import importlib.machinery
import sys


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "sglang":
            return importlib.machinery.PathFinder.find_spec(name, ["/srv/sglang/python"])
        return None


def install():
    sys.meta_path.append(Finder)
"""


def uv_like(draft: Draft) -> None:
    """Files are hard links into a cache, the interpreter a link to a link."""

    def act(root: Path) -> None:
        site = root / draft.site.lstrip("/")
        cache = root / "root/.cache/uv/archive-v0/zoo"
        for file in [f for f in site.rglob("*") if f.is_file()]:
            kept = cache / file.relative_to(site)
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, kept)
        (site / INFO / "INSTALLER").unlink()
        (site / INFO / "INSTALLER").write_text("uv\n")
        python = root / VENV.lstrip("/") / "bin/python"
        python.unlink()
        python.symlink_to("/opt/uv/python/current/bin/python3")

    draft.acts.append(act)
    draft.link("/opt/uv/python/current", "cpython-3.11-linux")
    draft.link("/opt/uv/python/cpython-3.11-linux/bin/python3", "/usr/bin/python3")


def conda_like(draft: Draft) -> None:
    move_venv(draft, "/opt/conda/envs/sgl")
    draft.file("/opt/conda/envs/sgl/conda-meta/history", "==> now <==\n")
    draft.lines += [
        "Environment=CONDA_PREFIX=/opt/conda/envs/sgl",
        "Environment=PATH=/opt/conda/envs/sgl/bin:/usr/bin:/bin",
    ]


def conda_run(draft: Draft) -> None:
    conda_like(draft)
    text = '#!/bin/sh\nshift 3\nexec "$@"\n'
    draft.file("/opt/conda/bin/conda", text, 0o755)
    draft.wrap = "/opt/conda/bin/conda run -n sgl {}"
    draft.refused.append("shell script|conda")


def _editable(draft: Draft) -> None:
    draft.files += checkout("/srv/sglang/python", block=16)

    def act(root: Path) -> None:
        site = root / draft.site.lstrip("/")
        for file in sorted((site / "sglang").rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (site / "sglang").rmdir()
        url = {"dir_info": {"editable": True}, "url": "file:///srv/sglang/python"}
        (site / INFO / "direct_url.json").write_text(json.dumps(url))

    draft.acts.append(act)


def editable_pth(draft: Draft) -> None:
    _editable(draft)
    draft.file(f"{draft.site}/__editable__.sglang-{VERSION}.pth", "/srv/sglang/python\n")


def editable_finder(draft: Draft) -> None:
    _editable(draft)
    name = "__editable___sglang_finder"
    draft.file(f"{draft.site}/{name}.py", FINDER)
    draft.file(f"{draft.site}/__editable__.sglang-{VERSION}.pth", f"import {name}; {name}.install()\n")


def linked_venv(draft: Draft) -> None:
    """`current` is a link, and everybody uses that."""
    move_venv(draft, "/opt/sglang/venv-2026-11")
    draft.link("/opt/sglang/current", "venv-2026-11")
    draft.python = "/opt/sglang/current/bin/python"
    draft.entry["python"] = "/opt/sglang/current/bin/python"


def linked_in_unit(draft: Draft) -> None:
    """The unit uses the link, hosts.yaml the real path."""
    draft.link("/srv/live", VENV)
    draft.python = "/srv/live/bin/python"


def linked_in_hosts(draft: Draft) -> None:
    draft.link("/srv/live", VENV)
    draft.entry["python"] = "/srv/live/bin/python3"


def linked_site(draft: Draft) -> None:
    """site-packages itself is a link to a bigger disk."""

    def act(root: Path) -> None:
        site, there = root / draft.site.lstrip("/"), root / "srv/packages"
        site.rename(there)
        site.symlink_to("/srv/packages")

    draft.files.append(File("/srv"))
    draft.acts.append(act)


def other_venv(draft: Draft) -> None:
    """The unit runs another venv than hosts.yaml names: case 31."""
    copy_venv(draft, "/opt/sglang/venv-old")
    draft.python = "/opt/sglang/venv-old/bin/python"
    draft.refused.append("venv-old")


def other_venv_by_path(draft: Draft) -> None:
    """... by PYTHONPATH."""
    draft.files += checkout("/srv/patched")
    draft.lines += ["Environment=PYTHONPATH=/srv/patched"]
    draft.refused.append("/srv/patched|PYTHONPATH")


def harmless_path(draft: Draft) -> None:
    draft.files.append(File("/srv/plugins"))
    draft.lines += ["Environment=PYTHONPATH=/srv/plugins PYTHONUNBUFFERED=1"]


def pth_before(draft: Draft) -> None:
    """A .pth file that puts a checkout first, in every process of the venv."""
    draft.files += checkout("/srv/first", block=16)
    draft.file(f"{draft.site}/aa-first.pth", "import sys; sys.path.insert(0, '/srv/first')\n")


def bytecode_elsewhere(draft: Draft) -> None:
    draft.lines += ["Environment=PYTHONPYCACHEPREFIX=/var/cache/pyc"]
    draft.files.append(File("/var/cache/pyc"))
    draft.refused.append("PYTHONPYCACHEPREFIX|bytecode")


def no_bytecode(draft: Draft) -> None:
    draft.lines += ["Environment=PYTHONDONTWRITEBYTECODE=1"]


def home_venv(draft: Draft) -> None:
    move_venv(draft, "/root/venvs/sgl")
    draft.entry["python"] = "~/venvs/sgl/bin/python"


def somebody_elses(draft: Draft) -> None:
    """The venv belongs to the user that serves; we come as root."""
    draft.acts.append(own(VENV, SGL))
    draft.lines += ["User=sgl"]


def read_only(draft: Draft) -> None:
    draft.live.append(
        f"mount --bind {VENV} {VENV} && mount -o remount,bind,ro {VENV} && systemctl restart sglang"
    )
    draft.refused.append("read-only")


def read_only_for_service(draft: Draft) -> None:
    draft.lines += [f"ReadOnlyPaths={VENV}"]


def two_infos(draft: Draft) -> None:
    """A dist-info that an upgrade left behind."""
    old = f"{draft.site}/sglang-0.5.21.dist-info"
    draft.file(f"{old}/METADATA", "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.21\n")
    draft.file(f"{old}/RECORD", "")
    draft.refused.append(r"0\.5\.21|dist-info")


def empty_info(draft: Draft) -> None:
    """Of another package: pip leaves such folders behind, with a tilde."""
    draft.file(f"{draft.site}/~orch-2.0.dist-info/METADATA", "Name: torch\nVersion: 2.0\n")
    draft.file(f"{draft.site}/~glang/__init__.py", "")


def upgraded(draft: Draft) -> None:
    def act(root: Path) -> None:
        site = root / draft.site.lstrip("/")
        new = (site / INFO).rename(site / "sglang-0.5.99.dist-info")
        meta = new / "METADATA"
        meta.write_text(meta.read_text().replace(VERSION, "0.5.99"))

    draft.acts.append(act)
    draft.refused.append(r"0\.5\.99")


def edited_by_hand(draft: Draft) -> None:
    def act(root: Path) -> None:
        file = root / draft.site.lstrip("/") / OVERLAID
        file.write_text(file.read_text() + "# by hand\n")

    draft.acts.append(act)
    draft.refused.append("dflash_info.py")


def noisy_start(draft: Draft) -> None:
    """A .pth that prints, one that is broken, a sitecustomize."""
    draft.file(f"{draft.site}/zz-noise.pth", "import sys; print('matplotlib cache is built')\n")
    draft.file(f"{draft.site}/zz-broken.pth", "import not_there_zoo\n")
    draft.file(f"{draft.site}/sitecustomize.py", "import sys; sys.stderr.write('site customized\\n')\n")


def system_site(draft: Draft) -> None:
    def act(root: Path) -> None:
        config = root / VENV.lstrip("/") / "pyvenv.cfg"
        config.write_text(config.read_text().replace("packages = false", "packages = true"))

    draft.acts.append(act)


def open_to_all(draft: Draft) -> None:
    """chmod -R 777, as a last resort of somebody."""

    def act(root: Path) -> None:
        for path in [p for p in (root / VENV.lstrip("/")).rglob("*") if not p.is_symlink()]:
            path.chmod(0o777 if path.is_dir() else 0o666 | (path.stat().st_mode & 0o111))

    draft.acts.append(act)


def closed(draft: Draft) -> None:
    """Made under umask 027, for a group."""

    def act(root: Path) -> None:
        for path in [p for p in (root / VENV.lstrip("/")).rglob("*") if not p.is_symlink()]:
            path.chmod(0o2750 if path.is_dir() else 0o640 | (path.stat().st_mode & 0o110))
            os.chown(path, 0, SGL)

    draft.acts.append(act)
    draft.lines += ["User=sgl"]


def versioned_python(draft: Draft) -> None:
    """The unit says python3.11, hosts.yaml python: one interpreter."""
    draft.python = f"{VENV}/bin/{SITE}"


def immutable(draft: Draft) -> None:
    draft.disk_mb = 96
    draft.live.append(f"chattr +i {draft.site}/{OVERLAID}")
    draft.refused.append("immutable|append-only")


def append_only_folder(draft: Draft) -> None:
    draft.disk_mb = 96
    draft.live.append(f"chattr +a {draft.site}/sglang/srt/speculative")
    draft.refused.append("immutable|append-only")
