"""YAML with line numbers: every refusal names file, line and field, in one line.

`load` reads one mapping from a file; `models` fits it to what is expected of it. What YAML 1.1 would silently
turn into something else (`022` is 18, `12:30` is 750, `on:` is a boolean key) is refused instead.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.yaml.nodes import Builder, Loc, dotted

MAX_BYTES = 4 * 1024 * 1024
T = TypeVar("T")


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` or `; known: a, b` or nothing."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


@dataclass(frozen=True)
class Document:
    """A YAML file: `data` (plain Python), and for each path of keys and indices its line and its text."""

    file: Path
    data: dict[str, Any]
    lines: dict[Loc, int]
    texts: dict[Loc, str]  # scalars as written, before YAML gave them a type

    def line(self, loc: Loc) -> int | None:
        """The line of `loc`, or of the nearest thing around it (a missing key has none of its own)."""
        for end in range(len(loc), -1, -1):
            if loc[:end] in self.lines:
                return self.lines[loc[:end]]
        return None

    def error(self, loc: Loc, message: str) -> InputError:
        """An InputError at `loc`."""
        return InputError(message, file=self.file, line=self.line(loc), field=dotted(loc))


def load(path: Path | str, what: str = "") -> Document:
    """Read one YAML mapping.

    what: the kind of file, for messages (`hosts file`). Raises InputError: missing, unreadable, not UTF-8,
    YAML syntax, empty, not a mapping, duplicate keys, keys that are not text, values that YAML misreads.
    """
    path = Path(path)
    text = read_text(path, what)
    builder = Builder(path)
    data: Any = None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if isinstance(node, yaml.MappingNode):
            data = builder.build(node, (), node.start_mark.line + 1)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise InputError(_syntax(exc, text), file=path, line=mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise InputError(
            f"character {chr(exc.character)!r} is not allowed in YAML"
            if isinstance(exc.character, int)
            else f"not valid YAML: {exc.reason}",
            file=path,
            line=line,
        ) from None
    except RecursionError:
        raise InputError("nested too deeply", file=path, line=_deep_line(text)) from None
    if node is None or data == {}:
        raise InputError("the file is empty", file=path)
    if data is None:
        got = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        raise InputError(f"expected a mapping, got {got}", file=path, line=node.start_mark.line + 1)
    return Document(path, data, builder.lines, builder.texts)


def read_text(path: Path, what: str = "") -> str:
    """The UTF-8 text of an input file. Raises InputError naming file, reason and the line of a bad byte."""
    label = what or "file"
    try:
        if path.is_dir():
            raise InputError(f"{label} is a folder", file=path)
        with path.open("rb") as f:  # never more than the limit: a device says that its size is 0
            raw = f.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{label} does not exist", file=path) from None
    except OSError as exc:
        raise InputError(f"{label} cannot be read: {exc.strerror}", file=path) from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{label} is larger than {MAX_BYTES // 1024 // 1024} MiB", file=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise InputError(f"not UTF-8 text (byte 0x{raw[exc.start]:02x})", file=path, line=line) from None


def read_json(path: Path, what: str) -> tuple[str, Any]:
    """The text of a JSON file, and what it says. Raises InputError naming the line."""
    text = read_text(path, what)
    try:
        return text, json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", file=path, line=error.lineno) from None


def write_checked(path: Path, text: str, read: Callable[[Path], T], *, folders: bool = False) -> T:
    """Write a file that `read` takes, else none: what is at `path` has passed it. Returns what it returned.

    folders: make those on the way. Raises InputError.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        if folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        found = read(temporary)
        temporary.replace(path)
        return found
    except InputError as error:
        raise InputError(error.message, file=path, line=error.line, field=error.field) from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=path) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _deep_line(text: str, limit: int = 100) -> int | None:
    """The line where nesting passes `limit`: the event parser does not recurse, composing its events does."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > limit and event.start_mark is not None:
            return event.start_mark.line + 1
    return None


def _syntax(exc: yaml.MarkedYAMLError, text: str) -> str:
    problem = (exc.problem or "").strip()
    mark = exc.problem_mark
    if mark is not None and "'\\t'" in problem:
        return "a tab cannot be used for indentation in YAML; use spaces"
    if "expected a single document" in str(exc.context or "") or "but found another document" in problem:
        return "one YAML document expected, found a second one (---)"
    context = f" ({exc.context.strip()})" if exc.context else ""
    return f"not valid YAML: {problem}{context}"
