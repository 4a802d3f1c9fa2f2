"""Install the stand-ins into the sandbox's venv, as a wheel of them would be."""

from __future__ import annotations

import base64
import hashlib
import shutil
from pathlib import Path

STANDINS = Path(__file__).parent / "standins"
NAME = "sglang-cpu-sandbox"
VERSION = "1.0"
DIST_INFO = f"{NAME.replace('-', '_')}-{VERSION}.dist-info"
PTH = "sglang_cpu_sandbox.pth"
ENTRY_POINTS = "[sglang.srt.plugins]\ncpu_sandbox = sglang_cpu_sandbox.plugin:register\n"
METADATA = f"""\
Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: Stand-ins that let SGLang run on a CPU without AMX; for the sandbox of ddtree-deploy only.
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: ddtree-deploy\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def files() -> dict[str, bytes]:
    """All files below site-packages, by relative path, RECORD apart."""
    found = {
        str(path.relative_to(STANDINS)): path.read_bytes()
        for path in sorted(STANDINS.rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    # A .pth line runs at the start of every interpreter of this venv, before anything imports torchvision.
    found[PTH] = b"import sglang_cpu_sandbox.torchvision_ops\n"
    for name, text in (
        ("METADATA", METADATA),
        ("WHEEL", WHEEL),
        ("entry_points.txt", ENTRY_POINTS),
        ("INSTALLER", "ddtree-deploy\n"),
    ):
        found[f"{DIST_INFO}/{name}"] = text.encode()
    return found


def digest() -> str:
    """A digest of all that `install` would write."""
    total = hashlib.sha256()
    for name, content in sorted(files().items()):
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def install(site_packages: Path) -> None:
    """Replace what an earlier install left by today's files."""
    contents = files()
    for name in {Path(path).parts[0] for path in contents}:
        target = site_packages / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    for path, content in contents.items():
        target = site_packages / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    record = [f"{path},sha256={_hash(content)},{len(content)}" for path, content in sorted(contents.items())]
    record.append(f"{DIST_INFO}/RECORD,,")
    (site_packages / DIST_INFO / "RECORD").write_text("\n".join(record) + "\n")


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
