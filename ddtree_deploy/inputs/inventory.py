"""hosts.yaml -> `Host`s and groups.

Unknown keys, duplicate keys, wrong types and contradictions are refused with file, line and field.
Relative paths are relative to the folder of hosts.yaml.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.inventory_schema import (
    CONNECT_S,
    HostModel,
    InventoryModel,
    ServiceModel,
    check_host,
    flag_texts,
)
from ddtree_deploy.inputs.yaml.document import Document, suggest
from ddtree_deploy.inputs.yaml.document import load as load_yaml
from ddtree_deploy.inputs.yaml.models import fit
from ddtree_deploy.inputs.yaml.values import parse_name
from ddtree_deploy.onhost.wire.protocol import Launch, Service


@dataclass(frozen=True)
class Host:
    """One host of hosts.yaml, defaults filled in. Times in seconds; paths on this machine are absolute."""

    name: str
    address: str
    python: str  # on the host: absolute, or starts with ~/
    port: int = 22
    user: str | None = None  # None: the name of the user who runs ddtree-deploy
    identity_file: Path | None = None
    known_hosts: Path = field(default_factory=lambda: Path("~/.ssh/known_hosts").expanduser())
    gpus: int | None = None  # expected number
    become: bool = False
    sign_with: Path | None = None  # an SSH key that vouches for payloads
    playbook: Path | None = None  # of its rollouts; None: playbooks/rollout.yaml
    state_dir: str = ""  # on the host; "": the default of the user there
    connect_timeout_s: float = CONNECT_S
    also_stop: tuple[str, ...] = ()
    service: Service | None = None
    api_key_env: str = ""
    file: Path | None = None
    line: int | None = None

    def error(self, message: str, field: str = "", **more: str) -> InputError:
        """An InputError at this host in hosts.yaml, or at a field of it."""
        place = ".".join(["hosts", self.name, *([field] if field else [])])
        return InputError(message, file=self.file, line=self.line, field=place, **more)

    def secrets(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """`{"api_key": ...}` from the environment, or {}. InputError: the variable is not set."""
        if not self.api_key_env:
            return {}
        value = (os.environ if environ is None else environ).get(self.api_key_env, "")
        if not value:
            raise self.error(
                f"the environment variable {self.api_key_env} is not set; the API key is taken from it",
                "service.api_key",
                next_command=f"export {self.api_key_env}=...",
            )
        return {"api_key": value}


@dataclass(frozen=True)
class Inventory:
    """All hosts, in the order of the file, and groups already flattened to host names."""

    file: Path
    hosts: dict[str, Host]
    groups: dict[str, tuple[str, ...]]

    def resolve(self, target: str) -> list[Host]:
        """The hosts of a host or group name, each once. Raises InputError with a suggestion and the list."""
        if target in self.hosts:
            return [self.hosts[target]]
        if target in self.groups:
            return [self.hosts[name] for name in self.groups[target]]
        hint = suggest(target, [*self.hosts, *self.groups])
        listed = f"hosts: {', '.join(self.hosts)}"
        if self.groups:
            listed += f"; groups: {', '.join(self.groups)}"
        hint = hint if hint.startswith("; did") else ""
        raise InputError(f"no host or group is named {target!r}{hint} ({listed})", file=self.file)


def load(path: Path) -> Inventory:
    """Read hosts.yaml. Raises InputError for the first thing wrong in it."""
    doc = load_yaml(path, "hosts file")
    top = fit(doc, InventoryModel)
    defaults = doc.data.get("defaults") or {}
    flag_texts(doc, ("defaults",))
    if not top.hosts:
        raise doc.error(("hosts",), "no hosts are listed")
    hosts = {name: _host(doc, name, defaults) for name in top.hosts}
    return Inventory(doc.file, hosts, _groups(doc, hosts, top.groups))


_SAME = ("address", "python", "port", "user", "gpus", "become", "state_dir")


def _host(doc: Document, name: str, defaults: dict[str, Any]) -> Host:
    loc = ("hosts", name)
    _check_name(doc, loc)
    own = doc.data["hosts"][name]
    if not isinstance(own, dict):
        raise doc.error(loc, "expected a mapping with address and python")
    flag_texts(doc, loc)
    merged = _merge(defaults, own)
    if "service" not in own:
        merged.pop("service", None)  # defaults say how services are run, not that there is one
    model = fit(doc, HostModel, loc, merged, fallback=("defaults",))
    check_host(doc, loc, model)
    here = doc.file.resolve().parent
    paths = {key: getattr(model, key) for key in ("identity_file", "known_hosts", "sign_with", "playbook")}
    local: dict[str, Any] = {k: here / Path(text).expanduser() for k, text in paths.items() if text}
    return Host(
        name=name,
        **{key: getattr(model, key) for key in _SAME},
        **local,
        connect_timeout_s=model.connect_timeout,
        also_stop=tuple(model.also_stop),
        service=_service(model.service) if model.service else None,
        api_key_env=model.service.api_key.env if model.service and model.service.api_key else "",
        file=doc.file,
        line=doc.line(loc),
    )


def _check_name(doc: Document, loc: tuple[str, str]) -> None:
    try:
        parse_name(loc[-1])
    except ValueError as error:
        raise doc.error(loc, str(error)) from None


def _service(model: ServiceModel) -> Service:
    return Service(
        name=model.name or model.default_name(),
        kind=model.kind,
        endpoint=model.endpoint.rstrip("/"),
        also_endpoints=[endpoint.rstrip("/") for endpoint in model.also_endpoints],
        unit=model.unit,
        launch=Launch(**model.launch.model_dump()),
        start_stalled_after_s=model.start.stalled_after,
        start_limit_s=model.start.limit,
        drain_s=model.stop.drain,
        stop_limit_s=model.stop.limit,
        stop_kill=model.stop.kill,
        user=model.user,
    )


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key, all else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _merge(known, value) if both and isinstance(known, dict) else value
    return merged


def _groups(
    doc: Document, hosts: dict[str, Host], groups: dict[str, list[str]]
) -> dict[str, tuple[str, ...]]:
    """Groups flattened to host names: in order, each once."""
    for name, members in groups.items():
        loc = ("groups", name)
        _check_name(doc, loc)
        if name in hosts:
            raise doc.error(loc, f"{name!r} is a host already (line {doc.line(('hosts', name))})")
        if not members:
            raise doc.error(loc, "the group is empty")
        for i, member in enumerate(members):
            if member not in hosts and member not in groups:
                hint = suggest(member, [*hosts, *groups])
                raise doc.error((*loc, i), f"no host or group is named {member!r}{hint}")
            if member in members[:i]:
                raise doc.error((*loc, i), f"{member!r} is listed twice")

    def flatten(name: str, trail: tuple[str, ...]) -> list[str]:
        if name in hosts:
            return [name]
        if name in trail:
            circle = " -> ".join([*trail[trail.index(name) :], name])
            raise doc.error(("groups", trail[-1]), f"groups contain each other: {circle}")
        return [h for member in groups[name] for h in flatten(member, (*trail, name))]

    return {name: tuple(dict.fromkeys(flatten(name, ()))) for name in groups}
