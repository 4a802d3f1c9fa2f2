"""What is wrong with a YAML file is said in one line, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.yaml.document import load
from ddtree_deploy.inputs.yaml.models import Duration, Model, Size, Timeout, fit
from ddtree_deploy.inputs.yaml.values import format_duration, parse_duration, parse_size

# name: (content, what `render` says after the file name)
REFUSED = {
    "empty": ("", "the file is empty"),
    "comments only": ("# nothing\n", "the file is empty"),
    "empty mapping": ("{}\n", "the file is empty"),
    "list": ("- a\n", ":1: expected a mapping, got a list"),
    "scalar": ("\njust text\n", ":2: expected a mapping, got a single value"),
    "duplicate": ("a: 1\nb: 2\na: 3\n", ":3: a: duplicate key 'a', first given on line 1"),
    "duplicate, nested": (
        "x:\n  a: 1\n  'a': 2\n",
        ":3: x.a: duplicate key 'a', first given on line 2",
    ),
    "octal": ("a:\n  port: 022\n", ':2: a.port: YAML reads 022 as the number 18; write 18 or "022"'),
    "sexagesimal": ("at: 12:30\n", ':1: at: YAML reads 12:30 as the number 750; write 750 or "12:30"'),
    "boolean key": ("on: 1\n", ':1: YAML reads the key on as a boolean; write "on"'),
    "number key": ("a:\n  7: x\n", ':2: a: YAML reads the key 7 as a number; write "7"'),
    "null key": ("a:\n  ~: x\n", ':2: a: YAML reads the key ~ as nothing; write "~"'),
    "list as key": ("? [a, b]\n: 1\n", ":1: a key must be text"),
    "bad date": ("day: 2026-13-45\n", ":1: day: 2026-13-45 cannot be read as a value; put it in quotes"),
    "tab": ("a:\n\tb: 1\n", ":2: a tab cannot be used for indentation in YAML; use spaces"),
    "unclosed": (
        "a: [1, 2\nb: 3\n",
        ":2: not valid YAML: expected ',' or ']', but got ':' (while parsing a flow sequence)",
    ),
    "bad indentation": (
        "a: 1\n  b: 2\n",
        ":2: not valid YAML: mapping values are not allowed here",
    ),
    "unknown alias": ("a: *b\n", ":1: not valid YAML: found undefined alias 'b'"),
    "two documents": ("a: 1\n---\nb: 2\n", ":2: one YAML document expected, found a second one (---)"),
    "python object": (
        "a: !!python/object:os.system x\n",
        ":1: a: the tag !!python/object:os.system is not allowed",
    ),
    "binary": ("a: !!binary aGk=\n", ":1: a: the tag !!binary is not allowed"),
    "own tag": ("a: !vault x\n", ":1: a: the tag !vault is not allowed"),
    "recursive": ("a: &x\n  b: *x\n", ":1: a.b: an anchor contains itself"),
    "bad merge": ("a:\n  <<: 7\n", ":2: a: `<<` must be given a mapping or a list of mappings"),
    "control character": ("a: 1\nb: \x07\n", ":2: character '\\x07' is not allowed in YAML"),
    "deep": ("a: " + "[" * 2000 + "]" * 2000 + "\n", "nested too deeply"),
    "multiplying aliases": (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{n}: &{n} [{','.join([f'*{p}'] * 9)}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)
        ),
        "more than 50000 values (do aliases multiply?)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_place_and_are_one_line(name: str, tmp_path: Path) -> None:
    content, says = REFUSED[name]
    path = tmp_path / "f.yaml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        load(path)
    rendered = caught.value.render()
    assert "\n" not in rendered
    assert caught.value.exit_code == 2
    text = rendered.removeprefix(str(path)).removesuffix("; nothing was touched")
    if says.startswith(":"):
        assert text == says
    else:
        assert text.endswith(f": {says}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases = [(tmp_path / "absent.yaml", "hosts file does not exist"), (tmp_path, "hosts file is a folder")]
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nname: J\xf6rg\n")
    cases.append((latin, "not UTF-8 text (byte 0xf6)"))
    big = tmp_path / "big.yaml"
    with big.open("wb") as f:
        f.truncate(5 * 1024 * 1024)
    cases.append((big, "hosts file is larger than 4 MiB"))
    for path, message in cases:
        with pytest.raises(InputError) as caught:
            load(path, "hosts file")
        assert caught.value.message == message
        assert caught.value.file == str(path)
    assert caught.value.line is None
    with pytest.raises(InputError) as caught:
        load(latin)
    assert caught.value.line == 2


def test_anchors_and_merge_keys_work_and_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        "base: &b\n  x: 1\n  y: 2\nmore: &m\n  <<: *b\n  y: 3\nlast:\n  <<: *m\n  z: 4\nagain: *m\n"
    )
    doc = load(path)
    assert doc.data["more"] == {"x": 1, "y": 3}
    assert doc.data["last"] == {"x": 1, "y": 3, "z": 4}
    assert doc.data["again"] == {"x": 1, "y": 3}
    assert doc.line(("more", "y")) == 6
    assert doc.line(("last", "z")) == 9
    assert doc.line(("last", "nosuch")) == 7


class Inner(Model):
    size: Size = 0
    wait: Timeout = 1.0
    names: list[str] = Field(default_factory=list)


class Outer(Model):
    port: int
    label: str = ""
    on: bool = False
    ratio: float = 1.0
    inner: Inner = Field(default_factory=Inner)


PARSED = {
    "missing": ("label: x\n", ":1: port: missing key 'port'"),
    "unknown, close": (
        "port: 1\ninner:\n  wiat: 1s\n",
        ":3: inner.wiat: unknown key 'wiat'; did you mean 'wait'?",
    ),
    "unknown, far": (
        "port: 1\ninner:\n  colour: 1\n",
        ":3: inner.colour: unknown key 'colour'; known: names, size, wait",
    ),
    "text for number": ('port: "22"\n', ":1: port: expected a whole number, got '22'"),
    "fraction for number": ("port: 2.5\n", ":1: port: expected a whole number, got 2.5 (a number)"),
    "boolean for number": ("port: yes\n", ":1: port: expected a whole number, got yes (a boolean)"),
    "boolean for text": (
        "port: 1\nlabel: no\n",
        ':2: label: expected text, but YAML reads no as a boolean; write "no" in quotes',
    ),
    "number for text": (
        "port: 1\nlabel: 0.50\n",
        ':2: label: expected text, but YAML reads 0.50 as a number; write "0.50" in quotes',
    ),
    "date for text": (
        "port: 1\nlabel: 2026-11-29\n",
        ':2: label: expected text, but YAML reads 2026-11-29 as a date; write "2026-11-29" in quotes',
    ),
    "nothing for text": ("port: 1\nlabel:\n", ":2: label: expected text, got nothing"),
    "text for boolean": ("port: 1\non: x\n", ':2: YAML reads the key on as a boolean; write "on"'),
    "mapping for list": (
        "port: 1\ninner: {names: {a: b}}\n",
        ":2: inner.names: expected a list, got a mapping",
    ),
    "in a list": (
        "port: 1\ninner:\n  names:\n    - a\n    - 7\n",
        ':5: inner.names[1]: expected text, but YAML reads 7 as a number; write "7" in quotes',
    ),
    "list for mapping": ("port: 1\ninner: [a]\n", ":2: inner: expected a mapping, got a list"),
    "duration without unit": (
        "port: 1\ninner: {wait: 10}\n",
        ":2: inner.wait: a duration needs a unit: 10s, 10m or 10h",
    ),
    "zero duration": ("port: 1\ninner: {wait: 0s}\n", ":2: inner.wait: '0s' must be more than zero"),
    "size without unit": (
        "port: 1\ninner: {size: 500}\n",
        ":2: inner.size: a size needs a unit: 500B, 500MiB or 500GiB",
    ),
    "two problems, the first in the file": (
        "inner: {size: x}\nport: a\n",
        ":1: inner.size: 'x' is not a size such as 500MB, 64MiB or 1GiB (and 1 more)",
    ),
}


@pytest.mark.parametrize("name", PARSED)
def test_models_refuse_with_place_and_field(name: str, tmp_path: Path) -> None:
    content, says = PARSED[name]
    path = tmp_path / "f.yaml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        fit(load(path), Outer)
    assert caught.value.render() == f"{path}{says}; nothing was touched"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("10s", 10),
        ("5m", 300),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("0s", 0),
        ("2d", 172800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    if seconds:
        assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "s", "10", "10 s", "-5s", "5 minutes", "1e3s", "10S", None, True, [1]])
def test_not_durations(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("512B", 512),
        ("500MB", 500_000_000),
        ("1GiB", 1024**3),
        ("1.5KiB", 1536),
        ("2kB", 2000),
        ("1TiB", 1024**4),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1", "1G", "-1GiB", "1gib", None, 5, True])
def test_not_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


class Times(Model):
    drain: Duration = 1.0


def test_a_duration_may_be_zero_where_that_means_something(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("drain: 0s\n")
    assert fit(load(tmp_path / "f.yaml"), Times).drain == 0
