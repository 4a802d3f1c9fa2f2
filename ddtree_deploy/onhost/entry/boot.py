"""After its facts the process waits: a run may begin. Then it takes the runner from fd 0, and becomes it.

A runner that the host kept from an earlier run is not sent again (`kept`, see `codecache`); its digest is
checked. fd 0 is read with exact `os.read` calls, so what follows the runner (plan, payload, control lines) is
left for it. On failure it prints one `end` event and removes every folder that it made.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import sys
from typing import Any

from ..state.layout import PAYLOAD, RUNNER


def wait(ahead: bytes, count: int, drop: Any = None) -> int:
    """Returns 0 when fd 0 ends: nothing more was wanted. Else the process ends as the runner's `launch` does.

    ahead: what was read of the `count` bytes of a payload that are sent before anything else.
    drop: a finder of modules that were sent for the facts alone; the runner brings its own.
    """
    if drop is None:  # there is time, as long as the controller plans; else the runner brings it
        importlib.import_module(f"{__package__}.launch")
    try:
        ahead += _take(count - len(ahead))
        first = _take(1)
    except EOFError:
        return 0
    os.umask(0o077)
    made: list[str] = []
    try:
        head = _header(first)
        path = _place(head, made, ahead)
    except Exception as error:
        _remove(made)
        print(json.dumps(_refusal(error), separators=(",", ":")), flush=True)
        return 1
    _become(path, [str(head["plan"]), str(head["payload"])], drop)
    return 0


def _header(line: bytes) -> dict[str, Any]:
    while not line.endswith(b"\n"):
        line += _take(1)
    head: dict[str, Any] = json.loads(line)
    return head


def _take(count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(0, min(count - len(data), 1 << 20))
        if not part:
            raise EOFError("the connection ended before the runner had arrived")
        data += part
    return data


def _place(head: dict[str, Any], made: list[str], ahead: bytes) -> str:
    """The runner, and a payload that came ahead, in a new run folder, durably. Every folder made is added to
    `made` at once.
    """
    folder: str = head["run_dir"]
    runner = _take(head["runner"])
    missing = []
    at = folder
    while not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    if not missing:
        raise FileExistsError(17, "the run folder exists already", folder)
    for at in reversed(missing):
        try:
            os.mkdir(at, 0o700)
            made.append(at)
        except FileExistsError:
            if at == folder:
                raise
    # As long as this process lives the run has a launch; never closed.
    fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    path = os.path.join(folder, RUNNER)
    if head.get("kept"):
        _link(head["kept"], path)
    else:
        _write(path, runner)
    if head.get("ahead"):
        _write(os.path.join(folder, PAYLOAD), ahead)
    for at in made:
        fd = os.open(os.path.dirname(at), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return path


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(fd)


def _link(kept: str, path: str) -> None:
    import hashlib

    os.link(kept, path)
    with open(path, "rb") as f:
        if hashlib.sha256(f.read()).hexdigest() + ".pyz" != os.path.basename(kept):
            os.unlink(kept)
            raise ValueError("the runner kept on the host has changed; it is removed: try again")


def _remove(made: list[str]) -> None:
    for at in reversed(made):
        for name in (RUNNER, PAYLOAD):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(at, name))
        try:
            os.rmdir(at)
        except OSError:
            return


def _refusal(error: Exception) -> dict[str, Any]:
    named = isinstance(error, OSError) and error.strerror
    why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and named else str(error)
    return {
        "e": "end",
        "verdict": "fail",
        "exit": 1,
        "state": "nothing was changed",
        "step": "launch",
        "reason": f"cannot start on the host: {' '.join(why.split())}",
        "next": "",
    }


def _become(path: str, lengths: list[str], drop: Any) -> None:
    import zipimport

    sys.argv = [path, "launch", os.path.dirname(path), *lengths]
    sys.path.insert(0, path)
    if drop is not None:
        sys.meta_path.remove(drop)
        for name in [n for n in sys.modules if n.partition(".")[0] == "onhost"]:
            del sys.modules[name]
    exec(zipimport.zipimporter(path).get_code("__main__"), {"__name__": "__main__"})
