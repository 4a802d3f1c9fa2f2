"""What is sent to the host to run there: the runner as a zipapp, the facts script on stdin.

Both are made of `ddtree_deploy/onhost/`, which is standard library only and is called `onhost` on the host.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from ddtree_deploy.onhost.wire.protocol import SOURCES_MARK, FactsRequest, to_dict

SOURCE = Path(__file__).parents[1] / "onhost"
# Zip files cannot say "no time"; the same sources must give the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """\
import sys

if sys.argv[1:2] == ["guard"] and len(sys.argv) == 4:  # the service waits, so nothing else is imported
    from onhost.state import held
    if held.starts_the_service(sys.argv[2]):
        sys.exit(0)

from onhost.state import codecache

codecache.use({digest!r})
from onhost.main import main

sys.exit(main(sys.argv[1:]))
"""

# Modules come from memory, so that asking for facts leaves no file on the host, in /tmp neither. The program
# comes in the command itself, to be at work a round trip earlier, in letters that no shell takes for its own.
# What it is asked comes over stdin: everybody on the host can read command lines, and it may name secrets.
_COMMAND = "import base64, zlib; exec(zlib.decompress(base64.b64decode('{}')))"
_FACTS = """\
import importlib.abc, importlib.util, json, os, sys
def take(count):
    data = b""
    while len(data) < count:  # not a byte more: who comes after us reads on
        part = os.read(0, count - len(data))
        if not part:
            sys.exit("facts: the connection ended")
        data += part
    return data
_SOURCES = json.loads({sources!r})
class _Memory(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name in _SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=_SOURCES[name][0])
    def get_source(self, name):
        return _SOURCES[name][1]
    def is_package(self, name):
        return _SOURCES[name][0]
_MEMORY = _Memory()
sys.meta_path.insert(0, _MEMORY)
sys.dont_write_bytecode = True
from onhost.state import codecache, layout
_COMPILED = codecache.use_in(layout.state_dir({state_dir!r}), {digest!r})
_REQUEST, _AHEAD = None, b""
if not _COMPILED:
    _REQUEST, _AHEAD = take({request}), take({ahead})
    print("\\n" + {mark!r}, flush=True)
    _SOURCES.update(json.loads(zlib.decompress(take({length}))))
from onhost.facts import site_probe
with site_probe.begin(sys.executable, {package!r}) as begun:  # it works while the rest is imported
    from onhost.facts.gather import main
    status = main((_REQUEST or take({request})).decode(), begun)
if not status:
    from onhost.entry.boot import wait
    status = wait(_AHEAD, {ahead}, None if _COMPILED else _MEMORY)
sys.exit(status)
"""


@functools.cache
def sources() -> dict[str, bytes]:
    """The files of the package by their name in the zipapp, `onhost/...`, sorted."""
    files = sorted(p for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {f"onhost/{path.relative_to(SOURCE).as_posix()}": path.read_bytes() for path in files}


def digest(files: dict[str, bytes]) -> str:
    """Of sources: the name of their compiled form on hosts."""
    value = hashlib.sha256()
    for name, data in sorted(files.items()):
        value.update(b"%d %s %d " % (len(name), name.encode(), len(data)) + data)
    return value.hexdigest()[:32]


@functools.cache
def _digest() -> str:
    return digest(sources())


@functools.cache
def runner() -> bytes:
    """The runner: a zip that Python executes. Equal sources give equal bytes."""
    out = io.BytesIO()
    files = sources()
    main = _MAIN.format(digest=_digest()).encode()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in {**files, "__main__.py": main}.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, compresslevel=9)
    return out.getvalue()


@functools.cache
def runner_digest() -> str:
    """SHA-256 of the runner."""
    return hashlib.sha256(runner()).hexdigest()


def pack() -> None:
    """Make all that is the same for every host; what asks for it later has it at once."""
    runner_digest()
    _facts_sources()


@dataclass(frozen=True)
class Program:
    """The facts script: `PYTHON -I -S -c CODE` takes the request, and what is sent ahead, from stdin. It says
    whether it needs `sources` there, too: not where an earlier run left the modules compiled."""

    code: str
    request: bytes
    sources: bytes


@functools.cache
def _facts_sources() -> tuple[str, bytes]:
    """The modules that facts need: those that come at once, and the rest, compressed. Equal for all hosts."""
    modules = _modules()
    first = _closure("onhost.state.codecache", modules) | _closure("onhost.state.layout", modules)
    whole = _closure("onhost.facts.gather", modules) | _closure("onhost.entry.boot", modules)
    rest = {name: value for name, value in whole.items() if name not in first}
    return json.dumps(first), zlib.compress(json.dumps(rest).encode(), 9)


def facts_program(request: FactsRequest, *, ahead: int = 0) -> Program:
    """The modules that facts need, and the request. `ahead`: bytes that are sent without being asked for."""
    at_once, later = _facts_sources()
    asked = json.dumps(to_dict(request)).encode()
    script = _FACTS.format(
        sources=at_once,
        mark=SOURCES_MARK,
        length=len(later),
        request=len(asked),
        package=request.package,
        state_dir=request.state_dir,
        digest=_digest(),
        ahead=ahead,
    )
    packed = base64.b64encode(zlib.compress(script.encode(), 9)).decode()
    return Program(_COMMAND.format(packed), asked, later)


def _modules() -> dict[str, tuple[bool, str]]:
    """Module name -> (is a package, source)."""
    found = {}
    for file, data in sources().items():
        if not file.endswith(".py"):
            continue
        parts = file.removesuffix(".py").split("/")
        package = parts[-1] == "__init__"
        found[".".join(parts[:-1] if package else parts)] = (package, data.decode())
    return found


def _closure(start: str, modules: dict[str, tuple[bool, str]]) -> dict[str, tuple[bool, str]]:
    """`start` and every module it imports, at any depth and at any place in the code, with their packages."""
    needed: dict[str, tuple[bool, str]] = {}
    queue = [start]
    while queue:
        name = queue.pop()
        if name in needed or name not in modules:
            continue
        needed[name] = modules[name]
        queue.append(name.rpartition(".")[0])
        queue += _imports(name, *modules[name])
    return dict(sorted(needed.items()))


# By pattern, not by parsing: it is done at each start, and a module too many costs some bytes, no more.
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([^\n#]+)", re.MULTILINE)
_FROM = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#(]+)", re.MULTILINE)
_NAME = re.compile(r"\w+")


def _imports(name: str, package: bool, source: str) -> list[str]:
    """Modules that a source may import, wherever in it: absolute names, and names in modules."""
    found = [word.split()[0] for line in _IMPORT.findall(source) for word in line.split(",") if word.split()]
    for dots, module, names in _FROM.findall(source):
        base = module
        if dots:
            parts = name.split(".")
            parent = parts[: len(parts) - len(dots) + (1 if package else 0)]
            base = ".".join([*parent, *([module] if module else [])])
        found += [base, *(f"{base}.{word}" for word in _NAME.findall(names))]
    return found
