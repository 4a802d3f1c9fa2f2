"""payload.yaml and its folder: what is taken, what is refused, what the archive holds."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import archive, distinfo, payload
from ddtree_deploy.onhost.wire.protocol import Serves
from tests.unit.planning import PATCH, PATCHED, PAYLOAD_FILES, UPSTREAM, sha, write

HEAD = "schema: 1\nname: p\nversion: 0.1.0\nvariants:\n  - name: v\n    sglang: ['0.5.23']\n"


def files(*lines: str) -> str:
    """A payload.yaml whose variant's files begin on line 8."""
    return HEAD + "    files:\n" + "".join(f"      - {line}\n" for line in lines)


def overlays(*lines: str) -> str:
    """A payload.yaml whose variant's overlays begin on line 8."""
    return HEAD + "    overlays:\n" + "".join(f"      - {line}\n" for line in lines)


PKG = '{from: pkg, to: "site:pkg"}'
BASE = "0" * 64
REFUSED = {
    "bad version": (
        HEAD.replace("0.1.0", "one"),
        ":3: version: 'one' is not a version such as 0.1.0 or 1.2rc1",
    ),
    "version is a number": (
        HEAD.replace("0.1.0", "0.10"),
        ':3: version: expected text, but YAML reads 0.10 as a number; write "0.10" in quotes',
    ),
    "no variants": (
        HEAD.split("variants", maxsplit=1)[0] + "variants: []\n",
        ":4: variants: must not be empty",
    ),
    "typo": (HEAD + "    fils: []\n", ":7: variants[0].fils: unknown key 'fils'; did you mean 'files'?"),
    "typo in a file": (
        files('{frm: pkg, to: "site:pkg"}'),
        ":8: variants[0].files[0].frm: unknown key 'frm'; did you mean 'from'? (and 1 more)",
    ),
    "nothing installed": (HEAD, ":5: variants[0]: the variant installs nothing"),
    "same variant twice": (
        files(PKG) + '  - {name: v, sglang: ["1"], files: []}\n',
        ":9: variants[1].name: 'v' is used twice",
    ),
    "absolute source": (
        files('{from: /etc/passwd, to: "site:x"}'),
        ":8: variants[0].files[0].from: '/etc/passwd' must be a relative path",
    ),
    "source above": (
        files('{from: ../x, to: "site:x"}'),
        ":8: variants[0].files[0].from: '../x' leaves its folder",
    ),
    "target above": (
        files('{from: pkg, to: "site:../x"}'),
        ":8: variants[0].files[0].to: '../x' leaves its folder",
    ),
    "target absolute": (
        files('{from: pkg, to: "site:/x"}'),
        ":8: variants[0].files[0].to: '/x' must be a relative path",
    ),
    "target not shortest": (
        files('{from: pkg, to: "site:a//b"}'),
        ":8: variants[0].files[0].to: 'a//b' is not written in its shortest form",
    ),
    "target without root": (
        files("{from: pkg, to: pkg}"),
        ":8: variants[0].files[0].to: 'pkg' must start with site: (site-packages) "
        "or sglang: (the sglang folder)",
    ),
    "sglang by way of site": (
        files('{from: pkg, to: "site:sglang/x"}'),
        ":8: variants[0].files[0].to: 'site:sglang/x': write sglang:, its folder may be elsewhere "
        "(editable installs)",
    ),
    "compiled target": (
        files('{from: pkg/a.py, to: "site:a.pyc"}'),
        ":8: variants[0].files[0].to: 'site:a.pyc': compiled files are not installed, Python makes them",
    ),
    "control character": (
        files('{from: pkg, to: "site:a\\tb"}'),
        ":8: variants[0].files[0].to: 'a\\tb' has a character that a path here may not have",
    ),
    "missing source": (
        files('{from: nosuch, to: "site:x"}'),
        ":8: variants[0].files[0].from: {dir}/nosuch: does not exist",
    ),
    "same target twice": (
        files(PKG, '{from: pkg/a.py, to: "site:pkg/a.py"}'),
        ":9: variants[0].files[1]: site:pkg/a.py is given twice, first on line 8",
    ),
    "targets differ in case": (
        files('{from: pkg/a.py, to: "site:Mod.py"}', '{from: pkg/a.py, to: "site:mod.py"}'),
        ":9: variants[0].files[1]: site:mod.py and site:Mod.py differ in case only, first on line 8",
    ),
    "file below a file": (
        files('{from: pkg/a.py, to: "site:x"}', '{from: pkg/a.py, to: "site:x/y.py"}'),
        ":9: variants[0].files[1]: site:x/y.py lies below site:x, which is a file",
    ),
    "overlay without base": (
        overlays('{to: "sglang:a.py", file: pkg/a.py}'),
        ":8: variants[0].overlays[0].base: missing key 'base'",
    ),
    "overlay with half a digest": (
        overlays('{to: "sglang:a.py", file: pkg/a.py, base: abc}'),
        ":8: variants[0].overlays[0].base: 'abc' is not a sha256 (64 hexadecimal digits)",
    ),
    "overlay with both": (
        overlays('{to: "sglang:a.py", file: pkg/a.py, patch: pkg/a.py, base: "' + BASE + '"}'),
        ":8: variants[0].overlays[0]: an overlay has either file: (the whole new file) "
        "or patch: (a unified diff)",
    ),
    "overlay that changes nothing": (
        overlays('{to: "sglang:a.py", file: pkg/a.py, base: ' + sha(b"A = 1\n") + "}"),
        ":8: variants[0].overlays[0].file: pkg/a.py is the upstream file itself, nothing would change",
    ),
    "patch without result": (
        overlays('{to: "sglang:a.py", patch: pkg/a.py, base: "' + BASE + '"}'),
        ":8: variants[0].overlays[0]: a patch needs result:, the sha256 of the patched file; print it with: "
        "ddtree-deploy payload-digest pkg/a.py UPSTREAM_FILE",
    ),
    "base file of another version": (
        overlays('{to: "sglang:a.py", patch: p.patch, base_file: pkg/a.py, base: "' + BASE + '"}'),
        ":8: variants[0].overlays[0].base_file: pkg/a.py does not have the digest that base: says",
    ),
    "patch that does not fit": (
        overlays('{to: "sglang:a.py", patch: p.patch, base_file: pkg/a.py, base: ' + sha(b"A = 1\n") + "}"),
        ":8: variants[0].overlays[0].patch: p.patch does not fit pkg/a.py: "
        "hunk 1: line 1 should be 'def schedule():', it is 'A = 1'",
    ),
    "wrong result": (
        overlays(
            '{to: "sglang:a.py", patch: p.patch, base_file: up.py, base: '
            + sha(UPSTREAM)
            + ', result: "'
            + BASE
            + '"}'
        ),
        f":8: variants[0].overlays[0].result: the patched file has the sha256 {sha(PATCHED)}",
    ),
    "bad entry point": (
        files(PKG) + "    dist_info: {name: d, entry_points: {g: {n: 'a b'}}}\n",
        ":9: variants[0].dist_info.entry_points: n = a b is not an entry point; write name: module:attribute",
    ),
    "missing check": (
        files(PKG) + "checks: {smoke: {script: checks/no.py}}\n",
        ":9: checks.smoke.script: {dir}/checks/no.py: does not exist",
    ),
    "check expects lines": (
        files(PKG) + 'checks: {smoke: {script: pkg/a.py, expect: "a\\nb"}}\n',
        ":9: checks.smoke.expect: expect is one line, the last of the script's output",
    ),
    "serves two things": (
        files(PKG) + "    serves: {server_info: f, metric: m, label: l, equals: version}\n",
        ":9: variants[0].serves: give server_info: (a field of /server_info) or metric: (a name in /metrics)",
    ),
    "serves a metric without a label": (
        files(PKG) + "    serves: {metric: m, equals: version}\n",
        ":9: variants[0].serves: label: names the label of the metric that has the value",
    ),
    "serves modules in a metric": (
        files(PKG) + "    serves: {metric: m, label: l, equals: modules}\n",
        ":9: variants[0].serves: a metric has one text: equals: version",
    ),
    "attachments of one name": (
        files(PKG) + "attachments: [pkg/a.py, other/a.py]\n",
        ":9: attachments[1]: two attachments are called 'a.py'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path) -> None:
    text, says = REFUSED[name]
    write(
        tmp_path,
        {
            "payload.yaml": text.encode(),
            "pkg/a.py": "A = 1\n",
            "other/a.py": "A = 2\n",
            "p.patch": PATCH,
            "up.py": UPSTREAM,
        },
    )
    with pytest.raises(InputError) as caught:
        payload.load(tmp_path)
    wanted = f"{tmp_path}/payload.yaml{says.replace('{dir}', str(tmp_path))}"
    assert caught.value.render() == f"{wanted}; nothing was touched"


def test_no_payload(tmp_path: Path) -> None:
    for path, says in (
        (tmp_path / "nosuch", f"{tmp_path}/nosuch: payload folder does not exist"),
        (tmp_path, f"{tmp_path}/payload.yaml: payload file does not exist"),
        (write(tmp_path, {"f": ""}) / "f", f"{tmp_path}/f: payload folder is not a folder"),
    ):
        with pytest.raises(InputError) as caught:
            payload.load(path)
        assert caught.value.render() == f"{says}; nothing was touched"


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _socket(path: Path) -> None:
    # a socket's address is short: bind by a relative name
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path.name)
    os.chdir(here)


def _not_utf8(path: Path) -> None:
    Path(os.fsdecode(os.fsencode(path.parent) + b"/n\xff.py")).write_bytes(b"")


def _large(path: Path) -> None:
    with path.open("wb") as f:
        f.truncate(257 * 1024 * 1024)


STRANGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "link": ("pkg/l.py", _link, "{dir}/pkg/l.py: is a symbolic link; a payload holds files only"),
    "linked folder": ("pkg/sub", _link, "{dir}/pkg/sub: is a symbolic link; a payload holds files only"),
    "pipe": ("pkg/p.py", os.mkfifo, "{dir}/pkg/p.py: is a socket or device; a payload holds files only"),
    "socket": ("pkg/s.py", _socket, "{dir}/pkg/s.py: is a socket or device"),
    "not UTF-8": ("pkg/x", _not_utf8, "{dir}/pkg/n\\xff.py: the name is not UTF-8"),
    "too large": ("pkg/big.bin", _large, "{dir}/pkg/big.bin: is too large: 269.5 MB, at most 268.4 MB"),
    "line break in a name": (
        "pkg/a\nb.py",
        Path.touch,
        "{dir}/pkg/a\\x0ab.py: 'a\\nb.py' has a character that a path here may not have",
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_only_plain_files_are_taken(name: str, tmp_path: Path) -> None:
    rel, make, says = STRANGE[name]
    write(tmp_path, {"payload.yaml": files(PKG).encode(), "pkg/a.py": "A = 1\n"})
    make(tmp_path / rel)
    with pytest.raises(InputError) as caught:
        payload.load(tmp_path)
    assert caught.value.message == says.replace("{dir}", str(tmp_path))
    assert (caught.value.line, caught.value.field) == (8, "variants[0].files[0].from")


def test_a_source_that_is_itself_a_link_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"payload.yaml": files(PKG).encode(), "real/a.py": "A = 1\n"})
    (tmp_path / "pkg").symlink_to("real")
    with pytest.raises(InputError, match=r"pkg: is a symbolic link"):
        payload.load(tmp_path)


def test_what_a_variant_says_of_itself(tmp_path: Path) -> None:
    text = files(PKG) + "    serves: {server_info: modules_of_p, equals: modules}\n"
    write(tmp_path, {"payload.yaml": text.encode(), "pkg/a.py": "A = 1\n"})
    (variant,) = payload.load(tmp_path).variants
    assert variant.serves == Serves("modules", server_info="modules_of_p")
    shipped = payload.load(Path(__file__).parents[2] / "payload")
    assert [v.serves.equals if v.serves else "" for v in shipped.variants] == ["modules", "modules", ""]


def test_what_a_variant_installs(tmp_path: Path) -> None:
    write(tmp_path, PAYLOAD_FILES)
    write(
        tmp_path / "sglang_ddtree", {"__pycache__/plugin.cpython-311.pyc": "x", ".hidden": "x", "a.pyc": "x"}
    )
    made = payload.load(tmp_path)
    (variant,) = made.variants
    dist = "site:sglang_ddtree-0.1.0.dist-info"
    assert [item.ref for item in variant.items] == [
        "sglang:srt/sched.py",
        *(f"{dist}/{name}" for name in ("INSTALLER", "METADATA", "RECORD", "WHEEL", "entry_points.txt")),
        "site:sglang_ddtree/__init__.py",
        "site:sglang_ddtree/kernels/tree.py",
        "site:sglang_ddtree/plugin.py",
    ]
    patch = variant.items[0]
    assert (patch.kind, patch.sha256, patch.base_sha256) == ("patch", sha(PATCHED), sha(UPSTREAM))
    assert [(c.name, c.script, c.expect, c.timeout_s, c.argv) for c in made.checks] == [
        ("smoke", "checks/smoke.py", "ok 5", 300.0, False),
        ("parse_argv", "checks/parse_argv.py", "", 300.0, True),
    ]
    entries = made.archive_entries(variant)
    assert {name.split("/")[0] for name in entries} == {"blobs", "checks"}
    for item in variant.items:
        assert entries[f"blobs/{item.blob}"] == item.data


@pytest.mark.starts
def test_importlib_and_pip_accept_the_dist_info(tmp_path: Path) -> None:
    write(tmp_path / "p", PAYLOAD_FILES)
    (variant,) = payload.load(tmp_path / "p").variants
    site = tmp_path / "site"
    write(site, {i.ref.removeprefix("site:"): i.data for i in variant.items if i.ref.startswith("site:")})
    (found,) = importlib.metadata.distributions(path=[str(site)])
    assert (found.metadata["Name"], found.version) == ("sglang-ddtree", "0.1.0")
    (point,) = found.entry_points
    assert (point.group, point.name, point.value) == (
        "sglang.srt.plugins",
        "ddtree",
        "sglang_ddtree.plugin:register",
    )
    assert found.files is not None
    for file in found.files:
        content = Path(str(file.locate())).read_bytes()
        if file.hash is not None:
            assert file.size == len(content)
            assert (
                file.hash.value
                == distinfo._record({"x": content}, "y").decode().split("=", 1)[1].split(",")[0]
            )
    on_disk = {p.relative_to(site).as_posix() for p in site.rglob("*") if p.is_file()}
    assert {str(f) for f in found.files} == on_disk
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--path", str(site), "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sglang-ddtree 0.1.0" in shown.stdout


def test_record_quotes_strange_names() -> None:
    made = distinfo.files("d", "1", "", {}, {"a,b.py": b"", 'q".py': b""})
    rows = list(csv.reader(io.StringIO(made["d-1.dist-info/RECORD"].decode())))
    assert {row[0] for row in rows} >= {"a,b.py", 'q".py'}


names = st.lists(
    st.text(
        st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs", "Cc"]),
        min_size=1,
        max_size=60,
    ).filter(lambda s: s not in (".", "..")),
    min_size=1,
    max_size=3,
).map("/".join)


@settings(max_examples=60)
@given(st.dictionaries(names, st.binary(max_size=300), max_size=8), st.randoms())
def test_the_archive_is_the_same_for_the_same_content_and_gives_it_back(
    entries: dict[str, bytes], random: object
) -> None:
    packed = archive.build(entries)
    shuffled = list(entries.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert archive.build(dict(shuffled)) == packed
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in tar}
        assert all(
            m.isreg() and (m.mode, m.uid, m.mtime, m.uname) == (0o644, 0, 0, "") for m in tar.getmembers()
        )
    assert found == entries


@pytest.mark.parametrize("name", ["/x", "../x", "a/../b", "a//b", ".", "a/"])
def test_the_archive_takes_relative_paths_only(name: str) -> None:
    with pytest.raises(ValueError, match="not a relative path"):
        archive.build({name: b""})


def test_the_same_payload_has_the_same_digest_anywhere_at_any_time() -> None:
    digests = set()
    for mtime in (0, 10**9):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), PAYLOAD_FILES)
            for path in Path(folder).rglob("*"):
                os.utime(path, (mtime, mtime))
            made = payload.load(folder)
            digests.add(archive.digest(archive.build(made.archive_entries(made.variants[0]))))
    assert len(digests) == 1


def test_a_patch_whose_upstream_file_is_there_needs_no_result(tmp_path: Path) -> None:
    text = overlays(f'{{to: "sglang:a.py", patch: p.patch, base_file: up.py, base: {sha(UPSTREAM)}}}')
    write(tmp_path, {"payload.yaml": text.encode(), "p.patch": PATCH, "up.py": UPSTREAM})
    (item,) = payload.load(tmp_path).variants[0].items
    assert (item.kind, item.data, item.content, item.sha256) == ("patch", PATCH, PATCHED, sha(PATCHED))


def test_the_lines_that_a_patch_needs(tmp_path: Path) -> None:
    write(tmp_path, {"p.patch": PATCH, "up.py": UPSTREAM, "other.py": "x\n"})
    lines = payload.digest_lines(tmp_path / "p.patch", tmp_path / "up.py")
    assert lines == f"base: {sha(UPSTREAM)}\nresult: {sha(PATCHED)}\n"
    with pytest.raises(InputError, match=r"does not fit .*other\.py: hunk 1"):
        payload.digest_lines(tmp_path / "p.patch", tmp_path / "other.py")
    with pytest.raises(InputError, match="does not exist"):
        payload.digest_lines(tmp_path / "p.patch", tmp_path / "nosuch.py")
