"""probe.py, run in the host by its venv's Python: what only the host can say, as one line of JSON.

Standard library only. The modules are imported as the service would, with bytecode written and read: a stale
.pyc shows as the width of the other state. Few imports: it runs twice a cell.
"""

import contextlib
import fcntl
import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

STATE = "/var/lib/ddtree-deploy"
OURS = "ddtree-deploy"


def imported():
    try:
        width = importlib.import_module("sglang.srt.speculative.dflash_info").width()
        try:
            tiny = importlib.import_module("tiny_ddtree").__version__
        except ImportError:
            tiny = ""
    except Exception as error:
        return repr(error)[-300:]
    return [width, tiny]


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


def beside():
    """Unit -> ActiveState, of the units beside the service."""
    said = subprocess.run(
        ["systemctl", "list-units", "--all", "--plain", "--no-legend", "lab-*"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return {line.split()[0]: line.split()[2] for line in said}


def generates():
    body = json.dumps({"text": "one two", "sampling_params": {"max_new_tokens": 4, "temperature": 0}})
    head = f"POST /generate HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", 30000), 20) as there:
            there.sendall((head + body).encode())
            with there.makefile("rb") as answer:
                said = answer.read()
        return bool(json.loads(said.partition(b"\r\n\r\n")[2])["text"])
    except (OSError, ValueError, KeyError):
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


sys.path.insert(0, str(Path(__file__).parent))
import stale  # noqa: E402

del sys.path[0]
print(
    json.dumps(
        {
            "imported": imported(),
            "service": service(),
            "beside": beside(),
            "files": files(),
            "processes": processes(),
            "locks": locks(),
            "stale": stale.everywhere(sys.argv[1]),
        }
    )
)
