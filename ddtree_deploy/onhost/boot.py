"""BOOT, which the controller hands to `PYTHON -I -S -c`: it takes the runner from fd 0, and becomes it.

A runner that the host kept from an earlier run is not sent again (`kept`, see `codecache`); its digest is
checked. fd 0 is read with exact `os.read` calls, so what follows the runner (plan, payload, control lines) is
left for it. On failure it prints one `end` event and removes every folder that it made.
"""

BOOT = r"""
import json, os, sys
os.umask(0o077)
made = []
def take(n):
    data = b""
    while len(data) < n:
        part = os.read(0, min(n - len(data), 1 << 20))
        if not part:
            raise EOFError("the connection ended before the runner had arrived")
        data += part
    return data
try:
    line = b""
    while not line.endswith(b"\n"):
        line += take(1)
    head = json.loads(line)
    folder = head["run_dir"]
    runner = take(head["runner"])
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
    path = os.path.join(folder, "runner.pyz")
    if head.get("kept"):
        import hashlib
        os.link(head["kept"], path)
        with open(path, "rb") as f:
            if hashlib.sha256(f.read()).hexdigest() + ".pyz" != os.path.basename(head["kept"]):
                os.unlink(head["kept"])
                raise ValueError("the runner kept on the host has changed; it is removed: try again")
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        while runner:
            runner = runner[os.write(fd, runner):]
        os.fsync(fd)
        os.close(fd)
    for at in made:
        fd = os.open(os.path.dirname(at), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
except Exception as e:
    for at in reversed(made):
        try:
            if os.path.exists(at + "/runner.pyz"):
                os.unlink(at + "/runner.pyz")
            os.rmdir(at)
        except OSError:
            break
    why = "%s: %s" % (e.strerror, e.filename) if isinstance(e, OSError) and e.strerror else str(e)
    end = {"e": "end", "verdict": "fail", "exit": 1, "state": "nothing was changed", "step": "launch"}
    end.update(reason="cannot start on the host: " + " ".join(why.split()), next="")
    print(json.dumps(end, separators=(",", ":")), flush=True)
    sys.exit(1)
sys.argv = [path, "launch", folder, str(head["plan"]), str(head["payload"])]
sys.path.insert(0, path)
import zipimport
exec(zipimport.zipimporter(path).get_code("__main__"), {"__name__": "__main__"})
"""
