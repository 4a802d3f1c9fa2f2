"""From YAML nodes to plain Python values, with the line and the text of each.

Refused here: duplicate keys, keys that are not text, tags, anchors that contain themselves or multiply, and
what YAML 1.1 would silently turn into something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ddtree_deploy.errors import InputError

Loc = tuple[str | int, ...]
MAX_NODES = 50_000  # aliases may multiply: a small file can expand to billions of values
_TAGS = {f"tag:yaml.org,2002:{t}" for t in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")}
_MERGE = "tag:yaml.org,2002:merge"
_KINDS = {bool: "a boolean", int: "a number", float: "a number", type(None): "nothing", str: "text"}
_OCTAL = re.compile(r"[-+]?0[0-7_]+$")
_PLAIN_FIELD = re.compile(r"[\w.-]+$")


def kind_of(value: Any) -> str:
    """What a YAML value is, in words: `a mapping`, `a list`, `a number`, ..."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return _KINDS.get(type(value), "a date")


def dotted(loc: Loc) -> str:
    """`hosts.ct129.also_stop[0]`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _PLAIN_FIELD.match(part) else repr(part)
            text += f".{name}" if text else name
    return text


class Builder:
    """Turns composed nodes into plain Python, noting lines and texts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: dict[Loc, int] = {}
        self.texts: dict[Loc, str] = {}
        self._open: list[yaml.Node] = []
        self._count = 0
        self._known: dict[int, dict[str, tuple[yaml.Node, yaml.Node]]] = {}
        self._constructor = yaml.SafeLoader("")

    def _error(self, node: yaml.Node, loc: Loc, message: str) -> InputError:
        return InputError(message, file=self.file, line=node.start_mark.line + 1, field=dotted(loc))

    def build(self, node: yaml.Node, loc: Loc, line: int) -> Any:
        self._count += 1
        if self._count > MAX_NODES:
            raise self._error(node, (), f"more than {MAX_NODES} values (do aliases multiply?)")
        if node in self._open:
            raise self._error(node, loc, "an anchor contains itself")
        if node.tag not in _TAGS and node.tag != _MERGE:
            raise self._error(
                node, loc, f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not allowed"
            )
        self.lines[loc] = line
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, loc)
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(n, (*loc, i), n.start_mark.line + 1) for i, n in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, loc)
        finally:
            self._open.pop()

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> Any:
        text = node.value
        self._check_characters(node, loc)
        self.texts[loc] = text
        if node.tag == _MERGE:  # `<<` or `=` as a plain value
            return text
        number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        if number and (":" in text or _OCTAL.match(text)):
            value = self._constructor.construct_object(node)
            raise self._error(
                node, loc, f'YAML reads {text} as the number {value}; write {value} or "{text}"'
            )
        return self._construct(node, loc)

    def _construct(self, node: yaml.ScalarNode, loc: Loc) -> Any:
        try:
            return self._constructor.construct_object(node)
        except (ValueError, OverflowError, LookupError, AttributeError, yaml.YAMLError):
            # A tag that does not fit (`!!bool maybe`) is met by PyYAML with whatever its lookup raises.
            text = node.value
            raise self._error(node, loc, f"{text} cannot be read as a value; put it in quotes") from None

    def _check_characters(self, node: yaml.ScalarNode, loc: Loc) -> None:
        """Escapes can write what no path, command line or UTF-8 file can hold."""
        bad = next((c for c in node.value if c == "\0" or "\ud800" <= c <= "\udfff"), None)
        if bad is not None:
            raise self._error(node, loc, f"the character \\u{ord(bad):04x} is not allowed")

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        return {
            name: self.build(value, (*loc, name), key.start_mark.line + 1)
            for name, (key, value) in self._pairs(node, loc).items()
        }

    def _pairs(self, node: yaml.MappingNode, loc: Loc) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Keys with their nodes, `<<` resolved: what is given here wins, then the first mapping merged."""
        if id(node) in self._known:
            return self._known[id(node)]
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(other, yaml.MappingNode):
                        raise self._error(key, loc, "`<<` must be given a mapping or a list of mappings")
                    if other in self._open:
                        raise self._error(key, loc, "an anchor contains itself")
                    merged = {**self._pairs(other, loc), **merged}
                continue
            name = self._key(key, loc)
            if name in own:
                first = own[name][0].start_mark.line + 1
                raise self._error(key, (*loc, name), f"duplicate key {name!r}, first given on line {first}")
            own[name] = (key, value)
        self._known[id(node)] = {**merged, **own}
        return self._known[id(node)]

    def _key(self, key: yaml.Node, loc: Loc) -> str:
        if isinstance(key, yaml.ScalarNode) and key.tag == "tag:yaml.org,2002:str":
            self._check_characters(key, loc)
            return str(key.value)
        if not isinstance(key, yaml.ScalarNode):
            raise self._error(key, loc, "a key must be text")
        value = self._construct(key, loc)
        raise self._error(
            key, loc, f'YAML reads the key {key.value} as {kind_of(value)}; write "{key.value}"'
        )
