"""A host on paper: what a trait may change, and how it becomes files under a host's root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab import fake_venv
from tests.lab.fake_venv import VENV

SGL = 990  # uid and gid of the image's ordinary user
UNITS = "/etc/systemd/system"
KEY = "zoo-key-5a1e77"  # hosts.yaml takes it from the environment
KEY_ENV = "ZOO_API_KEY"
SITE = next(iter(Path("/usr/lib").glob("python3.[0-9]*"))).name  # lib/SITE/site-packages


@dataclass
class File:
    """A file, link (`to`) or folder (`data` None) of the host."""

    path: str
    data: bytes | None = None
    mode: int = 0  # 0: 644 for a file, 755 for a folder
    owner: int = 0
    to: str = ""


@dataclass
class Draft:
    """One host. Texts of the unit are as in its file. `refused` holds every true reason to say no."""

    name: str
    unit: str = "sglang.service"  # as hosts.yaml calls it
    fragment: str = ""  # the file's name, where it is another: a template, an alias
    folder: str = UNITS
    venv: str = VENV
    python: str = ""  # in ExecStart=; default: of the venv
    module: str = "-m sglang.launch_server"
    wrap: str = "{}"  # around the command
    args: list[str] = field(default_factory=list)
    port: str = "30000"  # in ExecStart=
    real_port: int = 30000
    head: bytes = b""  # raw bytes at the top of the unit file
    unit_lines: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # of [Service]
    install: str = "WantedBy=multi-user.target"
    installed: bool = True  # the fragment is written and enabled
    files: list[File] = field(default_factory=list)
    acts: list[Callable[[Path], None]] = field(default_factory=list)  # on the root, before the boot
    live: list[str] = field(default_factory=list)  # shell commands on the booted host
    logins: list[str] = field(default_factory=list)  # the same over SSH: what they start stays in a session
    entry: dict[str, Any] = field(default_factory=dict)
    service: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    others: set[int] = field(default_factory=set)  # ports of other servers that must go on
    restless: set[str] = field(default_factory=set)  # units that come and go by themselves
    put_back: str = ""  # the true reason of a rollout that cannot pass, which no look at the host can foresee
    dependents: set[str] = field(default_factory=set)  # units that a restart may restart
    secrets: list[str] = field(default_factory=list)  # must not be shown anywhere
    refused: list[str] = field(default_factory=list)  # regular expressions; empty: a healthy plain host
    must_refuse: bool = False  # else it may also be served as asked
    disk_mb: int = 0
    kind: str = "systemd"
    reboots: bool | None = None  # None: the seed says
    user_dir: str = ""  # the SSH user's home, where its state is
    slow: float = 0.0  # seconds that a start takes more
    traits: list[str] = field(default_factory=list)

    # What traits write

    def file(self, path: str, text: str | bytes, mode: int = 0o644, owner: int = 0) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.files.append(File(path, data, mode, owner))

    def link(self, path: str, to: str) -> None:
        self.files.append(File(path, to=to))

    def drop_in(self, name: str, text: str | bytes) -> None:
        self.file(f"{UNITS}/{self.fragment_name}.d/{name}", text)

    def other_unit(self, name: str, text: str, target: str = "multi-user.target") -> None:
        """A unit beside the service, enabled for `target` ("" for none)."""
        self.file(f"{UNITS}/{name}", text)
        if target:
            self.link(f"{UNITS}/{target}.wants/{name}", f"{UNITS}/{name}")

    # What the host is

    @property
    def title(self) -> str:
        """Its name and its traits, for people."""
        traits = " ".join(self.traits).replace("_", "-")
        return f"{self.name} ({traits})" if traits not in ("", self.name) else self.name

    @property
    def fragment_name(self) -> str:
        return self.fragment or self.unit

    @property
    def site(self) -> str:
        """site-packages of the venv."""
        return f"{self.venv}/lib/{SITE}/site-packages"

    @property
    def command(self) -> str:
        words = [
            self.python or f"{self.venv}/bin/python",
            self.module,
            f"--model-path /models/target --host 127.0.0.1 --port {self.port}",
            "--speculative-algorithm DFLASH --speculative-draft-model-path /models/draft",
            *self.args,
        ]
        return self.wrap.format(" ".join(words))

    def text(self) -> bytes:
        """The unit file."""
        lines = ["[Unit]", "Description=SGLang server", "After=network.target", *self.unit_lines, ""]
        lines += ["[Service]", *self.lines]
        if not any(line.startswith("ExecStart=") for line in self.lines):
            lines.append(f"ExecStart={self.command}")
        if not any(line.startswith("Restart=") for line in self.lines):
            lines += ["Restart=on-failure", "RestartSec=1"]
        lines += ["", "[Install]", self.install]
        return self.head + "\n".join(lines).encode() + b"\n"

    def build(self, root: Path) -> None:
        """Make the host's files under `root`; it is not booted yet."""
        for act in self.acts:
            act(root)
        for file in self.files:
            _write(root, file)
        if self.installed:
            _write(root, File(f"{self.folder}/{self.fragment_name}", self.text()))
            if "WantedBy" in self.install:
                wants = f"{UNITS}/multi-user.target.wants/{self.unit}"
                _write(root, File(wants, to=f"{self.folder}/{self.fragment_name}"))


def _write(root: Path, file: File) -> None:
    path = root / file.path.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.to:
        path.symlink_to(file.to)
        return
    if file.data is None:
        path.mkdir(exist_ok=True)
    else:
        path.write_bytes(file.data)
    path.chmod(file.mode or (0o755 if file.data is None else 0o644))
    os.chown(path, file.owner, file.owner)


# What several traits do to a venv


def move_venv(draft: Draft, path: str) -> None:
    """The venv is at `path`, not where the image has it."""
    old, draft.venv = draft.venv, path

    def act(root: Path) -> None:
        new = root / path.lstrip("/")
        new.parent.mkdir(parents=True, exist_ok=True)
        (root / old.lstrip("/")).rename(new)
        _rename_inside(new, old, path)

    draft.acts.append(act)


def copy_venv(draft: Draft, path: str) -> None:
    """One more venv like the one there is."""

    def act(root: Path) -> None:
        new = root / path.lstrip("/")
        new.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--archive", root / draft.venv.lstrip("/"), new], check=True)
        _rename_inside(new, draft.venv, path)

    draft.acts.append(act)


def _rename_inside(venv: Path, old: str, new: str) -> None:
    for script in [*venv.glob("bin/[aA]ctivate*"), venv / "pyvenv.cfg"]:
        script.write_text(script.read_text().replace(old, new))


def checkout(path: str, *, block: int = 7) -> list[File]:
    """A folder with a package called sglang, whose overlaid module says another number."""
    return [
        File(f"{path}/{name}", text.replace("BLOCK = 16", f"BLOCK = {block}").encode())
        for name, text in fake_venv.FILES.items()
    ]


def own(path: str, owner: int) -> Callable[[Path], None]:
    """Give a folder, and all in it, to a user."""

    def act(root: Path) -> None:
        top = root / path.lstrip("/")
        for found in [top, *top.rglob("*")]:
            os.chown(found, owner, owner, follow_symlinks=False)

    return act
