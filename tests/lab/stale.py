"""stale.py FOLDER: print the .pyc files that this Python would load although their source differs."""

import marshal
import struct
import sys
from importlib.util import MAGIC_NUMBER, source_from_cache
from pathlib import Path

CHECKED = 3  # flags of a .pyc whose source is hashed at each import


def stale(compiled: Path) -> bool:
    """Whether Python takes this file for the compiled form of a source that it is not."""
    source = Path(source_from_cache(str(compiled)))
    data = compiled.read_bytes()
    if not source.exists() or len(data) < 16 or data[:4] != MAGIC_NUMBER:
        return False
    flags, mtime, size = struct.unpack("<III", data[4:16])
    info = source.stat()
    seen = flags == 0 and (mtime != int(info.st_mtime) & 0xFFFFFFFF or size != info.st_size & 0xFFFFFFFF)
    if seen or flags == CHECKED:
        return False
    code = marshal.loads(data[16:])
    fresh = compile(source.read_bytes(), code.co_filename, "exec", dont_inherit=True)
    return bool(fresh != code)


def everywhere(folder: str) -> list[str]:
    """All such files of a folder."""
    return [str(path) for path in sorted(Path(folder).rglob("__pycache__/*.pyc")) if stale(path)]


if __name__ == "__main__":
    print("".join(f"{path}\n" for path in everywhere(sys.argv[1])), end="")
