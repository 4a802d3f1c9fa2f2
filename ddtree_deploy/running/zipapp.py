"""What is sent to a host: our sources of `onhost/` as one zip, and the few lines that run it."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from ddtree_deploy.onhost.wire.protocol import FactsRequest, to_dict

SOURCE = Path(__file__).parents[1] / "onhost"
# Zip files cannot say "no time"; the same sources must give the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """\
import sys

sys.dont_write_bytecode = True  # it is all compiled; a power cut must not find a file half-written
if sys.argv[1:2] == ["guard"] and len(sys.argv) == 4:  # the service waits, so nothing else is imported
    from onhost.state import held
    if held.starts_the_service(sys.argv[2]):
        sys.exit(0)
from onhost.main import main

sys.exit(main(sys.argv[1:]))
"""

BEGUN_MARK = "DDTREE-BEGUN"  # the first line of the program, once it has got what it is asked

# Runs the sources that an earlier run of this version unpacked (`onhost/state/code.py`). Where there are none
# it runs them from memory: asking for facts writes nothing on a host, in /tmp neither. In letters that no
# shell takes for its own. What it is asked comes over stdin: it may name secrets, and all can read command
# lines. The sources come after it: where they are not needed at once, the answer does not wait for them.
_COMMAND = "import base64; exec(base64.b64decode('{}'))"
_BOOT = """\
import os, stat, sys, zlib
def take(count):
    data = b""
    while len(data) < count:  # not a byte more: who comes after us reads on
        part = os.read(0, count - len(data))
        if not part:
            sys.exit("facts: the connection ended")
        data += part
    return data
def unpack():
    return zlib.decompress(take({sources}).replace(b"=n", b"\\n").replace(b"=e", b"="))
request, sources = take({request}), b""
if request[:1] + request[-1:] != b"{{}}":
    sys.exit("a login file has read part of what was sent to the program")
os.write(1, b"\\n{begun}\\n")  # a login file may have begun a line
state = {state_dir!r} or ("~/.local/state/ddtree-deploy" if os.geteuid() else "/var/lib/ddtree-deploy")
code = os.path.expanduser(state) + "/code/" + sys.implementation.cache_tag + "-{digest}"
try:
    found = os.lstat(code)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
except OSError:
    ours = False
if not ours:
    sources = unpack()
    memory = os.memfd_create("onhost")
    with open(memory, "wb", closefd=False) as out:
        out.write(sources)
    code = "/proc/self/fd/%d" % memory
sys.path.insert(0, code)
sys.dont_write_bytecode = True
from onhost.entry.serve import serve
sys.exit(serve(request, lambda: sources or unpack()))
"""


@functools.cache
def archive() -> bytes:
    """The sources, with a `__main__.py`: Python runs it, packed or not. Equal sources give equal bytes."""
    files = {
        f"onhost/{path.relative_to(SOURCE).as_posix()}": path.read_bytes() for path in SOURCE.rglob("*.py")
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:  # not compressed: as a whole it gets smaller
        for name, data in sorted({**files, "__main__.py": _MAIN.encode()}.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o600 << 16
            packed.writestr(entry, data)
    return out.getvalue()


@functools.cache
def _compressed() -> bytes:
    """Without a newline: a login file that reads a line then waits, and does not take part of it away."""
    return zlib.compress(archive(), 9).replace(b"=", b"=e").replace(b"\n", b"=n")


@dataclass(frozen=True)
class Program:
    """`PYTHON -I -S -c CODE`, and what it reads: `request`, then `sources`; more may follow."""

    code: str
    request: bytes
    sources: bytes


def facts_program(request: FactsRequest) -> Program:
    """What says what a host is, and then waits for a run to begin (`onhost/entry`)."""
    asked = json.dumps(to_dict(request)).encode()
    script = _BOOT.format(
        begun=BEGUN_MARK,
        sources=len(_compressed()),
        request=len(asked),
        state_dir=request.state_dir,
        digest=hashlib.sha256(archive()).hexdigest(),
    )
    return Program(_COMMAND.format(base64.b64encode(script.encode()).decode()), asked, _compressed())
