"""What systemd itself holds of a unit, asked over its bus: arrays are arrays there, and specifiers expanded.

`systemctl show` joins words with blanks; it is asked only for what has none.
"""

from __future__ import annotations

import glob
import json
import os
import pwd
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...programs import bounded, process, systemctl
from .. import proc
from ..base import ServiceError
from . import expansion

BUS = "org.freedesktop.systemd1"
OBJECT = "/org/freedesktop/systemd1"
USER_ALWAYS = 255  # from this version on USER is set without User=, too
NOBODY = 65534  # systemd gives this one neither HOME nor SHELL
ASK_S = 30.0


@dataclass(frozen=True)
class Command:
    """One ExecStart=: the program, its words (argv[0] first, `$` not expanded), what its prefix says."""

    path: str
    argv: list[str]
    flags: list[str]  # ignore-failure, no-env-expand, privileged, no-setuid, ambient

    def expanded(self, env: dict[str, str], version: int) -> list[str]:
        """What the process gets. Raises ServiceError where systemd would not start it."""
        argv = self.argv if "no-env-expand" in self.flags else expansion.expand(self.argv, env, version)
        if not argv:
            raise ServiceError("its ExecStart= has no argv[0] after its variables are expanded")
        return argv


@dataclass(frozen=True)
class Definition:
    """A unit as systemd would start it now."""

    properties: dict[str, Any]
    manager_environment: list[str]
    version: int

    @property
    def commands(self) -> list[Command]:
        told = self.properties.get("ExecStartEx")
        if told is None:  # before 243
            return [
                Command(path, argv, ["ignore-failure"] if ignore else [])
                for path, argv, ignore, *_ in self.properties.get("ExecStart", [])
            ]
        return [Command(path, argv, flags) for path, argv, flags, *_ in told]

    @property
    def fragment(self) -> str:
        return str(self.properties.get("FragmentPath", ""))

    @property
    def drop_ins(self) -> list[str]:
        return list(self.properties.get("DropInPaths", []))

    @property
    def own_environment(self) -> list[str]:
        """`Environment=`, as NAME=VALUE."""
        return list(self.properties.get("Environment", []))

    @property
    def user(self) -> str:
        return str(self.properties.get("User", ""))

    def folder(self) -> str:
        """`WorkingDirectory=` as a path; one that may be missing, and is, counts for nothing."""
        told = str(self.properties.get("WorkingDirectory", ""))
        path = told.lstrip("!-") or "/"
        path = self._home() if path == "~" else path
        return "/" if told != path and not os.path.isdir(path) else path

    def uid(self, command: Command) -> int | None:
        """The user that it runs as; None where that is decided at the start."""
        if {"privileged", "no-setuid"} & set(command.flags):
            return 0
        if self.properties.get("DynamicUser"):
            return None
        return _account(self.user or "root").pw_uid

    def environment(self, own: list[str]) -> dict[str, str]:
        """The environment of a start with `own` in the place of `Environment=`, but for what only a start
        makes (`INVOCATION_ID`, ...), and PAM. Raises ServiceError where it would not start.
        """
        env = pairs(self.manager_environment)
        env |= self._login()
        if self.properties.get("ExecSearchPath"):
            env["PATH"] = ":".join(self.properties["ExecSearchPath"])
        passed = proc.environ(1)
        env |= {name: passed[name] for name in self.properties.get("PassEnvironment", []) if name in passed}
        env |= pairs(own)
        for _, values in self.environment_files():
            env |= values
        for name in self.unset(env):
            del env[name]
        return env

    def environment_files(self) -> list[tuple[str, dict[str, str]]]:
        """(path, variables) of each `EnvironmentFile=` in the order in which they are read."""
        found = []
        for pattern, optional in self.properties.get("EnvironmentFiles", []):
            paths = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
            if not paths and not optional:
                raise ServiceError(f"no file matches its EnvironmentFile={pattern}: it would not start")
            for path in paths:
                try:
                    values = expansion.environment_file(Path(path).read_bytes(), self.version)
                except (OSError, ValueError) as error:
                    if optional:
                        continue
                    reason = getattr(error, "strerror", None) or error
                    raise ServiceError(
                        f"its EnvironmentFile={path} cannot be used: {reason}: it would not start"
                    ) from None
                found.append((path, values))
        return found

    def unset(self, env: dict[str, str]) -> list[str]:
        """Names in `env` that `UnsetEnvironment=` takes away."""
        words = (word.partition("=") for word in self.properties.get("UnsetEnvironment", []))
        return sorted(
            {name for name, equals, value in words if name in env and (not equals or env[name] == value)}
        )

    def _login(self) -> dict[str, str]:
        name = self.user or ("root" if self.version >= USER_ALWAYS else "")
        at_home = self.properties.get("WorkingDirectory") == "~"
        if not name or (self.properties.get("DynamicUser") and not _exists(name)):
            return {"HOME": self._home()} if at_home else {}
        account = _account(name)
        env = {"USER": account.pw_name}
        if self.properties.get("SetLoginEnvironment", bool(self.user)):
            env["LOGNAME"] = account.pw_name
            if at_home or (account.pw_dir not in ("", "/") and account.pw_uid != NOBODY):
                env["HOME"] = self._home()
            if account.pw_shell.rpartition("/")[2] not in ("", "nologin", "false"):
                env["SHELL"] = account.pw_shell
        return env

    def _home(self) -> str:
        """What `WorkingDirectory=~` is: for those without a home root's."""
        account = _account(self.user or "root")
        root = account.pw_dir in ("", "/") or account.pw_uid == NOBODY
        return _account("root").pw_dir if root else account.pw_dir


def ask(unit: str) -> Definition:
    """The unit as systemd holds it. Raises ServiceError."""
    path = _call("call", BUS, OBJECT, f"{BUS}.Manager", "LoadUnit", "s", unit)[0][0]
    properties: dict[str, Any] = {}
    for interface in ("Unit", unit.rpartition(".")[2].capitalize()):
        (told,) = _call(
            "call", BUS, path, "org.freedesktop.DBus.Properties", "GetAll", "s", f"{BUS}.{interface}"
        )
        properties |= {name: value["data"] for name, value in told[0].items()}
    environment, version = _call("get-property", BUS, OBJECT, f"{BUS}.Manager", "Environment", "Version")
    number = re.search(r"\d+", version)
    return Definition(properties, environment, int(number[0]) if number else 0)


def _call(*words: str) -> list[Any]:
    """The data of each answer of `busctl WORDS`."""
    argv = ["busctl", "--system", "--json=short", *words]
    try:
        done = bounded.call(argv, seconds=ASK_S, env=systemctl.environment())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"systemd cannot be asked: busctl: {error}") from None
    if done.returncode:
        said = done.stderr.strip() or f"status {done.returncode}"
        raise ServiceError(
            f"systemd cannot be asked: busctl {words[0]} {words[-1]}: {said}; it needs systemd 240 and dbus"
        )
    try:
        return [json.loads(line)["data"] for line in done.stdout.splitlines() if line.strip()]
    except (ValueError, KeyError, TypeError):
        raise ServiceError(f"systemd cannot be asked: busctl says {done.stdout[:200]!r}") from None


def pairs(words: list[str]) -> dict[str, str]:
    """NAME=VALUE words as a mapping; the last of a name wins."""
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def _exists(name: str) -> bool:
    try:
        _account(name)
    except ServiceError:
        return False
    return True


def _account(name: str) -> pwd.struct_passwd:
    try:
        return process.account(name)
    except KeyError:
        raise ServiceError(f"there is no user {name} on this host") from None
