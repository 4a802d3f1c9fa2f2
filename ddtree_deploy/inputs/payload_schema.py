"""What payload.yaml may say."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from ddtree_deploy.inputs.yaml.models import Model, Name, Size, Timeout

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_POINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9.]+)?\Z")
_ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?\Z")
_GROUP = re.compile(r"\w+(\.\w+)*\Z")
_REF = re.compile(r"(site|sglang):(.+)\Z", re.DOTALL)


def check_relative(path: str) -> str:
    """`path`, if it is a plain relative one. Raises ValueError saying why it is not."""
    if not path:
        raise ValueError("the path is empty")
    if path.startswith(("/", "~")):
        raise ValueError(f"{path!r} must be a relative path")
    if "\\" in path or any(ord(c) < 32 or ord(c) == 127 for c in path):
        raise ValueError(f"{path!r} has a character that a path here may not have")
    parts = path.split("/")
    if ".." in parts:
        raise ValueError(f"{path!r} leaves its folder")
    if "" in parts or "." in parts:
        raise ValueError(f"{path!r} is not written in its shortest form")
    return path


def _ref(value: str) -> str:
    match = _REF.match(value)
    if match is None:
        raise ValueError(f"{value!r} must start with site: (site-packages) or sglang: (the sglang folder)")
    check_relative(match[2])
    if match[2].endswith(".pyc") or "__pycache__" in match[2].split("/"):
        raise ValueError(f"{value!r}: compiled files are not installed, Python makes them")
    if match[1] == "site" and match[2].split("/")[0] == "sglang":
        raise ValueError(f"{value!r}: write sglang:, its folder may be elsewhere (editable installs)")
    return value


def _digest(value: str) -> str:
    if not _SHA256.match(value):
        raise ValueError(f"{value!r} is not a sha256 (64 hexadecimal digits)")
    return value


def _version(value: str) -> str:
    if not _VERSION.match(value):
        raise ValueError(f"{value!r} is not a version such as 0.1.0 or 1.2rc1")
    return value


Relative = Annotated[str, AfterValidator(check_relative)]
Ref = Annotated[str, AfterValidator(_ref)]
Digest = Annotated[str, AfterValidator(_digest)]
Version = Annotated[str, AfterValidator(_version)]


class FileModel(Model):
    from_: Relative = Field(alias="from")
    to: Ref


class OverlayModel(Model):
    to: Ref
    base: Digest
    file: Relative | None = None
    patch: Relative | None = None
    result: Digest | None = None
    base_file: Relative | None = None

    @model_validator(mode="after")
    def _one(self) -> OverlayModel:
        if (self.file is None) == (self.patch is None):
            raise ValueError("an overlay has either file: (the whole new file) or patch: (a unified diff)")
        if self.file is not None and (self.result or self.base_file):
            raise ValueError("result: and base_file: belong to a patch")
        return self


class DistInfoModel(Model):
    name: Name
    summary: str = ""
    entry_points: dict[str, dict[str, str]] = Field(default_factory=dict)

    @field_validator("summary")
    @classmethod
    def _summary(cls, value: str) -> str:
        if "\n" in value:
            raise ValueError("the summary must be one line")
        return value

    @field_validator("entry_points")
    @classmethod
    def _entry_points(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        for group, points in value.items():
            if not _GROUP.match(group):
                raise ValueError(f"{group!r} is not the name of an entry point group")
            for name, target in points.items():
                if not _POINT.match(name) or not _ENTRY.match(target):
                    raise ValueError(f"{name} = {target} is not an entry point; write name: module:attribute")
        return value


class ServesModel(Model):
    server_info: str = ""
    metric: str = ""
    label: str = ""
    equals: Literal["version", "modules"]

    @model_validator(mode="after")
    def _one(self) -> ServesModel:
        if bool(self.server_info) == bool(self.metric):
            raise ValueError("give server_info: (a field of /server_info) or metric: (a name in /metrics)")
        if bool(self.label) != bool(self.metric):
            raise ValueError("label: names the label of the metric that has the value")
        if self.metric and self.equals == "modules":
            raise ValueError("a metric has one text: equals: version")
        return self


class VariantModel(Model):
    name: Name
    sglang: list[str] = Field(min_length=1)
    files: list[FileModel] = Field(default_factory=list)
    overlays: list[OverlayModel] = Field(default_factory=list)
    dist_info: DistInfoModel | None = None
    serves: ServesModel | None = None


class CheckModel(Model):
    script: Relative
    expect: str = ""  # the exact last line of its stdout; "": only exit status 0 counts
    timeout: Timeout = 300.0
    argv: bool = False  # append `--` and the future command line of the server
    gpu_memory: Size | None = None  # run on one GPU, only where it has so much free; skipped elsewhere

    @field_validator("expect")
    @classmethod
    def _expect(cls, value: str) -> str:
        if "\n" in value:
            raise ValueError("expect is one line, the last of the script's output")
        return value


class PayloadModel(Model):
    schema_: Literal[1] = Field(alias="schema")
    name: Name
    version: Version
    variants: list[VariantModel] = Field(min_length=1)
    checks: dict[str, CheckModel] = Field(default_factory=dict)
    attachments: list[Relative] = Field(default_factory=list)
