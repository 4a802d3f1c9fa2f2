"""Our modules, sent and compiled once a host instead of at each start: a runner is started several times a
rollout.

In the state folder, `code/PYTHON-DIGEST` holds the code objects of all modules of one digest of sources, for
one version of Python; `code/SHA256.pyz` is a runner as it was sent. One that is torn, or not there, costs a
compilation, or is sent again, and no more.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
import types
import zlib
from typing import Any

FOLDER = "code"
KEEP = 8  # newest first
Codes = dict[str, tuple[bool, bytes]]  # module name -> (is a package, its code as marshal gives it)
_path = ""
_finder: Finder | None = None


def state_dir_of(runner: str) -> str:
    """STATE of `STATE/sites/KEY/runs/RUN/runner.pyz`; "" for a runner that lies elsewhere."""
    parts = os.path.abspath(runner).split("/")
    return "/".join(parts[:-5]) if len(parts) > 6 and parts[-3] == "runs" and parts[-5] == "sites" else ""


def path_in(state_dir: str, digest: str) -> str:
    return f"{state_dir}/{FOLDER}/{sys.implementation.cache_tag}-{sys.hexversion:08x}-{digest}"


def use(digest: str) -> None:
    """First thing in a zipapp: take modules from the cache, if this host has one for these sources."""
    state_dir = state_dir_of(sys.argv[0])
    if _finder is not None:  # the process has given its facts, with these very modules
        _finder.runner = sys.argv[0]
    elif state_dir:
        use_in(state_dir, digest)


def use_in(state_dir: str, digest: str) -> bool:
    """The same, by the state folder. Returns whether there is a cache."""
    global _path, _finder
    _path = path_in(state_dir, digest)
    codes = load(_path)
    if codes:
        _finder = Finder(codes, sys.argv[0])
        sys.meta_path.insert(0, _finder)
    return bool(codes)


def load(path: str) -> Codes:
    """The cache's content; empty for one that is absent, torn, or not ours alone to write."""
    try:
        with open(path, "rb") as f:
            info = os.fstat(f.fileno())
            data = f.read()
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            return {}
        if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
            return {}
        codes: Codes = marshal.loads(data[4:])
    except (OSError, ValueError, EOFError, TypeError):
        return {}
    return codes


class Finder:
    """Imports modules from code objects. What else the zipapp holds is read from it."""

    def __init__(self, codes: Codes, runner: str) -> None:
        self.codes = codes
        self.runner = runner

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        found = self.codes.get(name)
        if found is None or __spec__ is None:
            return None
        place = f"{self.runner}/{name.replace('.', '/')}"
        spec = type(__spec__)(name, self, origin=place, is_package=found[0])  # type: ignore[arg-type]
        if found[0]:
            spec.submodule_search_locations = [place]
        return spec

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(marshal.loads(self.codes[module.__name__][1]), module.__dict__)

    def get_resource_reader(self, name: str) -> Any:
        import zipimport

        return zipimport.zipimporter(self.runner).get_resource_reader(name)


def store() -> None:
    """Compile all modules and keep them, where that was not done yet. Failures cost the next start's time."""
    if not _path or os.path.exists(_path):
        return
    with contextlib.suppress(OSError, SyntaxError, KeyError):
        data = marshal.dumps(compiled(sys.argv[0]))
        folder = os.path.dirname(_path)
        os.makedirs(folder, 0o700, exist_ok=True)
        # A file without a name: whatever happens now, nothing half-done is left.
        fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as f:
            f.write(zlib.crc32(data).to_bytes(4, "big") + data)
            f.flush()
            os.link(f"/proc/self/fd/{fd}", _path, src_dir_fd=fd)  # else Python links the symlink itself
        _prune(folder)


def compiled(runner: str) -> Codes:
    """Every module of a zipapp."""
    import zipfile

    codes: Codes = {}
    with zipfile.ZipFile(runner) as archive:
        for file in archive.namelist():
            if file.startswith("onhost/") and file.endswith(".py"):
                parts = file.removesuffix(".py").split("/")
                package = parts[-1] == "__init__"
                code = compile(archive.read(file), file, "exec", dont_inherit=True)
                codes[".".join(parts[:-1] if package else parts)] = (package, marshal.dumps(code))
    return codes


def kept_runner(state_dir: str, sha256: str) -> str:
    """Where a runner is kept."""
    return f"{state_dir}/{FOLDER}/{sha256}.pyz"


def has_runner(state_dir: str, sha256: str) -> bool:
    """The host has this very runner."""
    import hashlib

    try:
        with open(kept_runner(state_dir, sha256), "rb") as f:
            return hashlib.sha256(f.read()).hexdigest() == sha256
    except OSError:
        return False


def keep_runner() -> None:
    """Keep the runner that we are, so that the next run need not send it. Failures cost that run's time."""
    import hashlib

    state_dir = state_dir_of(sys.argv[0])
    if not state_dir:
        return
    with contextlib.suppress(OSError), open(sys.argv[0], "rb") as f:
        path = kept_runner(state_dir, hashlib.sha256(f.read()).hexdigest())
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            os.link(sys.argv[0], path)  # both are only ever read or removed


def _prune(folder: str) -> None:
    paths = [os.path.join(folder, name) for name in os.listdir(folder)]
    for old in sorted(paths, key=os.path.getmtime)[:-KEEP]:
        os.unlink(old)
