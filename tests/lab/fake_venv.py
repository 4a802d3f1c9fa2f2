"""A small venv with a package called sglang: enough files for rollouts, and a server that is no SGLang.

Its `launch_server` runs the fake server of the lab; everything else is a few lines, in the places where
SGLang 0.5.23 has them.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

VENV = "/opt/sglang/venv"
VERSION = "0.5.23"

FILES = {
    "sglang/__init__.py": f'__version__ = "{VERSION}"\n',
    "sglang/version.py": f'__version__ = "{VERSION}"\n',
    "sglang/launch_server.py": (
        "import contextlib\nimport sys\n\n"
        "from sglang.srt.speculative import dflash_info  # noqa: F401\n\n"
        "with contextlib.suppress(ModuleNotFoundError):\n"
        "    import tiny_ddtree  # noqa: F401\n\n"
        'if __name__ == "__main__":\n'
        '    sys.argv[0] = "launch_server.py"\n'
        '    sys.path.append("/opt/sglang")\n'
        "    import fake_sglang\n\n"
        "    fake_sglang.main()\n"
    ),
    "sglang/benchmark/__init__.py": "",
    "sglang/benchmark/serving.py": Path(__file__).with_name("fake_bench.py").read_text(),
    "sglang/srt/__init__.py": "",
    "sglang/srt/speculative/__init__.py": "",
    "sglang/srt/speculative/spec_info.py": (
        "ALGORITHMS = {}\n\n\n"
        "def register(name, worker):\n"
        '    """Make a speculative algorithm known."""\n'
        "    ALGORITHMS[name] = worker\n"
    ),
    "sglang/srt/speculative/dflash_info.py": "BLOCK = 16\n\n\ndef width():\n    return BLOCK\n",
    "sglang/srt/server_args.py": 'DEFAULTS = {"speculative_algorithm": None}\n',
}


def site_packages(root: Path) -> Path:
    """site-packages of the venv of a host whose root folder is `root`."""
    (found,) = (root / VENV.lstrip("/")).glob("lib/python3.*/site-packages")
    return found


def make_venv(root: Path) -> None:
    """Make the venv under a host's root, by the Python that the host will have."""
    venv = root / VENV.lstrip("/")
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
    for script in [*venv.glob("bin/[aA]ctivate*"), venv / "pyvenv.cfg"]:
        script.write_text(script.read_text().replace(str(venv), VENV))
    site = site_packages(root)
    info = f"sglang-{VERSION}.dist-info"
    files = FILES | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/INSTALLER": "pip\n",
        f"{info}/top_level.txt": "sglang\n",
    }
    record = []
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(text.encode())}\n")
    (site / info / "RECORD").write_text("".join([*record, f"{info}/RECORD,,\n"]))
