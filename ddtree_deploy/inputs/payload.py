"""payload/ -> Payload: variants with their files, checks, attachments; everything read and hashed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import archive, distinfo
from ddtree_deploy.inputs.payload_files import Reader
from ddtree_deploy.inputs.payload_schema import OverlayModel, PayloadModel, VariantModel
from ddtree_deploy.inputs.yaml.document import Document
from ddtree_deploy.inputs.yaml.document import load as load_yaml
from ddtree_deploy.inputs.yaml.models import fit
from ddtree_deploy.inputs.yaml.nodes import Loc
from ddtree_deploy.onhost.staging.patch import PatchError, apply
from ddtree_deploy.onhost.wire.protocol import Serves

FILE = "payload.yaml"
T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """One file that a variant brings into place."""

    ref: str  # site:REL or sglang:REL
    kind: str  # file | patch
    data: bytes  # the content, or the unified diff
    sha256: str  # of the installed content
    base_sha256: str = ""  # of the upstream file that it replaces; "" = a new file
    origin: str = ""  # path below the payload folder; "" = generated
    patched: bytes | None = None  # of a patch: the content, where the payload has the upstream file
    executable: bool = False  # of a `file`

    @property
    def blob(self) -> str:
        """Its name in the archive, below `blobs/`: by content, so equal files are packed once."""
        return f"{archive.digest(self.data)[:16]}-{PurePosixPath(self.origin or self.ref).name}"

    @property
    def content(self) -> bytes | None:
        """The installed content; None for a patch of a file that only the host has."""
        return self.data if self.kind == "file" else self.patched


@dataclass(frozen=True)
class Variant:
    """What fits one or more exact versions of SGLang. Items are sorted by `ref`."""

    name: str
    sglang: tuple[str, ...]
    items: tuple[Item, ...]
    serves: Serves | None = None  # what its server says of itself

    @property
    def overlays(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.base_sha256)


@dataclass(frozen=True)
class Check:
    """A script that the host's Python runs against the staged files."""

    name: str
    script: str  # checks/ddtree_smoke.py: its path in the archive
    data: bytes
    expect: str
    timeout_s: float
    argv: bool
    gpu_memory: int | None = None  # bytes that must be free on one GPU, else the check is skipped


@dataclass(frozen=True)
class Payload:
    folder: Path
    name: str
    version: str
    variants: tuple[Variant, ...]
    checks: tuple[Check, ...]
    attachments: dict[str, bytes]  # attachments/NAME -> content

    def archive_entries(self, variant: Variant) -> dict[str, bytes]:
        """What the archive holds for one variant: blobs, checks, attachments."""
        entries = {f"blobs/{item.blob}": item.data for item in variant.items}
        entries.update({check.script: check.data for check in self.checks})
        return {**entries, **self.attachments}


def load(folder: Path | str) -> Payload:
    """Read a payload folder. Raises InputError for the first thing wrong in it."""
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"payload folder {what}", file=folder)
    doc = load_yaml(folder / FILE, "payload file")
    top = fit(doc, PayloadModel)
    reader = Reader(folder)
    variants: dict[str, Variant] = {}
    for i, model in enumerate(top.variants):
        if model.name in variants:
            raise doc.error(("variants", i, "name"), f"{model.name!r} is used twice")
        variants[model.name] = _variant(doc, ("variants", i), model, top, reader)
    checks: list[Check] = []
    for name, check in top.checks.items():
        script = f"checks/{PurePosixPath(check.script).name}"
        data = _located(doc, ("checks", name, "script"), reader.file, check.script)
        if any(c.script == script and c.data != data for c in checks):
            raise doc.error(("checks", name, "script"), f"two scripts are called {script!r}")
        checks.append(Check(name, script, data, check.expect, check.timeout, check.argv, check.gpu_memory))
    attachments: dict[str, bytes] = {}
    for i, rel in enumerate(top.attachments):
        path = f"attachments/{PurePosixPath(rel).name}"
        if path in attachments:
            raise doc.error(("attachments", i), f"two attachments are called {PurePosixPath(rel).name!r}")
        attachments[path] = _located(doc, ("attachments", i), reader.file, rel)
    return Payload(folder, top.name, top.version, tuple(variants.values()), tuple(checks), attachments)


def _located(doc: Document, loc: Loc, read: Callable[[str], T], rel: str) -> T:
    """What is read, with the line of payload.yaml that asks for it in the error."""
    try:
        return read(rel)
    except InputError as exc:
        raise doc.error(loc, f"{exc.file}: {exc.message}") from None


def _variant(doc: Document, loc: Loc, model: VariantModel, top: PayloadModel, reader: Reader) -> Variant:
    items: dict[str, Item] = {}
    owners: dict[str, tuple[str, Loc]] = {}  # casefolded ref -> ref, where it was asked for

    def add(item: Item, at: Loc) -> None:
        folded = item.ref.casefold()
        if folded in owners:
            ref, other = owners[folded]
            same = (
                f"{item.ref} is given twice"
                if ref == item.ref
                else f"{item.ref} and {ref} differ in case only"
            )
            raise doc.error(at, f"{same}, first on line {doc.line(other)}")
        owners[folded] = (item.ref, at)
        items[item.ref] = item

    for i, file in enumerate(model.files):
        at = (*loc, "files", i)
        for rel, (data, executable) in _located(doc, (*at, "from"), reader.tree, file.from_).items():
            ref = f"{file.to}/{rel}" if rel else file.to
            origin = f"{file.from_}/{rel}" if rel else file.from_
            add(Item(ref, "file", data, archive.digest(data), origin=origin, executable=executable), at)
    for i, overlay in enumerate(model.overlays):
        add(_overlay(doc, (*loc, "overlays", i), overlay, reader), (*loc, "overlays", i))
    if model.dist_info:
        info = model.dist_info
        # RECORD speaks of site-packages only: files below sglang: belong to SGLang's own RECORD.
        installed = {
            ref.removeprefix("site:"): item.data
            for ref, item in items.items()
            if ref.startswith("site:") and not item.base_sha256
        }
        made = distinfo.files(info.name, top.version, info.summary, info.entry_points, installed)
        for rel, data in made.items():
            add(Item(f"site:{rel}", "file", data, archive.digest(data)), (*loc, "dist_info"))
    if not items:
        raise doc.error(loc, "the variant installs nothing")
    for ref in items:
        for parent in PurePosixPath(ref).parents:
            if str(parent) in items:
                raise doc.error(owners[ref.casefold()][1], f"{ref} lies below {parent}, which is a file")
    serves = Serves(**model.serves.model_dump()) if model.serves else None
    return Variant(model.name, tuple(model.sglang), tuple(items[ref] for ref in sorted(items)), serves)


def _overlay(doc: Document, at: Loc, model: OverlayModel, reader: Reader) -> Item:
    if model.file is not None:
        data, executable = _located(doc, (*at, "file"), reader.content, model.file)
        digest = archive.digest(data)
        if digest == model.base:
            raise doc.error((*at, "file"), f"{model.file} is the upstream file itself, nothing would change")
        return Item(model.to, "file", data, digest, model.base, model.file, executable=executable)
    assert model.patch is not None
    data = _located(doc, (*at, "patch"), reader.file, model.patch)
    if model.base_file is not None:
        return _patched(doc, at, model, data, _located(doc, (*at, "base_file"), reader.file, model.base_file))
    if model.result is None:
        raise doc.error(
            at,
            "a patch needs result:, the sha256 of the patched file; print it with: "
            f"ddtree-deploy payload-digest {model.patch} UPSTREAM_FILE",
        )
    return Item(model.to, "patch", data, model.result, model.base, model.patch)


def _patched(doc: Document, at: Loc, model: OverlayModel, patch: bytes, upstream: bytes) -> Item:
    """A patch whose upstream file is in the payload: its result is known, and checked if it is stated too."""
    assert model.patch is not None
    if archive.digest(upstream) != model.base:
        raise doc.error((*at, "base_file"), f"{model.base_file} does not have the digest that base: says")
    try:
        content = apply(upstream, patch)
    except PatchError as exc:
        raise doc.error((*at, "patch"), f"{model.patch} does not fit {model.base_file}: {exc}") from None
    digest = archive.digest(content)
    if model.result not in (None, digest):
        raise doc.error((*at, "result"), f"the patched file has the sha256 {digest}")
    return Item(model.to, "patch", patch, digest, model.base, model.patch, content)


def digest_lines(patch: Path, upstream: Path) -> str:
    """The lines `base:` and `result:` of payload.yaml for a patch and the upstream file it was made against.

    Raises InputError if a file cannot be read or the patch does not fit to the letter.
    """
    diff, base = (Reader(path.parent).file(path.name) for path in (patch, upstream))
    try:
        content = apply(base, diff)
    except PatchError as exc:
        raise InputError(f"does not fit {upstream}: {exc}", file=patch) from None
    return f"base: {archive.digest(base)}\nresult: {archive.digest(content)}\n"
