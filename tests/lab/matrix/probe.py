"""probe.py, run in the host by its own Python: what only the host can say, as one line of JSON.

Standard library only. The module is imported by the venv's Python as the service would, with bytecode written
and read: a stale .pyc shows as the width of the other state.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import urllib.request
from pathlib import Path

VENV_PYTHON = "/opt/sglang/venv/bin/python"
STATE = "/var/lib/ddtree-deploy"
OURS = "ddtree-deploy"
IMPORT = """
import importlib, json
from sglang.srt.speculative import dflash_info
try:
    tiny = importlib.import_module("tiny_ddtree").__version__
except ImportError:
    tiny = ""
print(json.dumps([dflash_info.width(), tiny]))
"""


def imported():
    done = subprocess.run(
        [VENV_PYTHON, "-c", IMPORT], check=False, capture_output=True, text=True, cwd="/", timeout=60
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr[-300:]


def service():
    """Argv of the process that listens to its unit's name, and whether it makes tokens."""
    lines = subprocess.run(
        ["systemctl", "show", "-p", "ActiveState,MainPID", "sglang.service"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    unit = dict(line.split("=", 1) for line in lines)
    argv = []
    with contextlib.suppress(OSError):
        argv = Path(f"/proc/{unit['MainPID']}/cmdline").read_text().split("\0")[:-1]
    return {"active": unit["ActiveState"], "argv": argv, "generates": generates()}


def generates():
    body = json.dumps({"text": "one two", "sampling_params": {"max_new_tokens": 4, "temperature": 0}})
    request = urllib.request.Request(
        "http://127.0.0.1:30000/generate", body.encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            return bool(json.load(answer)["text"])
    except (OSError, ValueError):
        return False


def files():
    """Paths with our name outside the state folder; what an ended run leaves inside it."""
    found = []
    for folder, folders, names in os.walk("/"):
        if folder == "/":
            folders[:] = [n for n in folders if n not in ("proc", "sys", "usr", "dev")]
        if folder == "/var/lib":
            folders[:] = [n for n in folders if n != OURS]
        for name in [*folders, *names]:
            if OURS in name.lower() or name.startswith(".ddtree"):
                found.append(str(Path(folder, name)))
    return [p for p in found if not p.startswith("/var/log/") and "/systemd/units/" not in p]


def held(path):
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def processes():
    """Ours: by the mark in their environment, or by the runner in their command line."""
    found = []
    for name in [path.name for path in Path("/proc").iterdir()]:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            marked = b"DDTREE_DEPLOY_RUN=" in Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if marked or b"runner.pyz" in words:
            found.append(f"{name} {words.replace(bytes(1), b' ').decode(errors='replace')[:120]}")
    return found


def locks():
    found = []
    for folder, _, names in os.walk(STATE):
        found += [str(Path(folder, n)) for n in names if n in ("lock", "alive")]
    return [path for path in found if held(path)]


print(
    json.dumps(
        {
            "imported": imported(),
            "service": service(),
            "files": files(),
            "processes": processes(),
            "locks": locks(),
        }
    )
)
