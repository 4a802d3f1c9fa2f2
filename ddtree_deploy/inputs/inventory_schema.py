"""What hosts.yaml may say: models, and the checks between fields."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from ddtree_deploy.inputs.yaml.document import Document
from ddtree_deploy.inputs.yaml.models import Duration, Model, NameOrNone, Timeout, User, UserOrNone
from ddtree_deploy.inputs.yaml.nodes import Loc

CONNECT_S = 10.0  # where nobody says otherwise
_FLAG = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
_HOST_NAME = re.compile(r"(?=[A-Za-z0-9])([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}(?<=[A-Za-z0-9])\.?\Z")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class ApiKeyModel(Model):
    env: str

    @field_validator("env")
    @classmethod
    def _env(cls, value: str) -> str:
        if not _ENV.match(value):
            raise ValueError(f"{value!r} is not the name of an environment variable")
        return value


class LaunchModel(Model):
    command: list[str] | None = None
    set: dict[str, str | None] = Field(default_factory=dict)
    unset: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)


class StartModel(Model):
    stalled_after: Timeout = 600.0
    limit: Timeout = 2700.0


class StopModel(Model):
    drain: Duration = 60.0
    limit: Timeout = 120.0
    kill: bool = False


class ServiceModel(Model):
    kind: Literal["systemd", "supervised", "adopted"]
    endpoint: str
    also_endpoints: list[str] = Field(default_factory=list)
    unit: str = ""
    name: NameOrNone = ""
    api_key: ApiKeyModel | None = None
    launch: LaunchModel = Field(default_factory=LaunchModel)
    start: StartModel = Field(default_factory=StartModel)
    stop: StopModel = Field(default_factory=StopModel)
    user: UserOrNone = ""

    def default_name(self) -> str:
        """The unit without its suffix, or `sglang-PORT`: two services of one host never share a name."""
        return self.unit.removesuffix(".service") or f"sglang-{urlsplit(self.endpoint).port}"


class HostModel(Model):
    address: str
    python: str
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    user: User | None = None
    identity_file: str | None = None
    known_hosts: str = "~/.ssh/known_hosts"
    gpus: Annotated[int, Field(ge=0, le=1024)] | None = None
    become: bool = False
    sign_with: str | None = None
    playbook: str | None = None
    state_dir: str = ""
    connect_timeout: Timeout = CONNECT_S
    also_stop: list[str] = Field(default_factory=list)
    service: ServiceModel | None = None

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        if "@" in value:
            raise ValueError(f"{value!r}: give the user as `user:`, not in the address")
        bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        if _ip(bare) is not None:
            return bare
        if re.fullmatch(r"([^:]+|\[.*\]):\d+", value):
            raise ValueError(f"{value!r}: give the port as `port:`, not in the address")
        if not _HOST_NAME.match(value):
            raise ValueError(f"{value!r} is not a host name or an IP address")
        return value

    @field_validator("python", "state_dir")
    @classmethod
    def _host_path(cls, value: str, info: ValidationInfo) -> str:
        good = value.startswith(("/", "~/")) and ".." not in value.split("/")
        if info.field_name == "state_dir":
            good = not value or (good and value.strip("/~") != "")
        if not good:
            raise ValueError(f"{value!r} must be an absolute path on the host, or start with ~/")
        return value

    @field_validator("also_stop")
    @classmethod
    def _also_stop(cls, value: list[str]) -> list[str]:
        if any(not part.strip() for part in value):
            raise ValueError("an empty text would match every process")
        return value


class InventoryModel(Model):
    defaults: dict[str, Any] = Field(default_factory=dict)
    hosts: dict[str, Any]
    groups: dict[str, list[str]] = Field(default_factory=dict)


def flag_texts(doc: Document, loc: Loc) -> None:
    """Give numbers in `launch.set`, `launch.env` and `launch.command` back the text that was written.

    `speculative-num-steps: 4` and `0.850` are arguments of a command line: what counts is their spelling.
    `true` is a flag without a value; YAML's other booleans are refused, since `no` may be meant as text.
    """
    where = (*loc, "service", "launch")
    launch: Any = doc.data
    for part in where:
        launch = launch.get(part) if isinstance(launch, dict) else None
    if not isinstance(launch, dict):
        return
    for table in ("set", "env", "command"):
        values: Any = launch.get(table)
        pairs = values.items() if isinstance(values, dict) else enumerate(values or ())
        for key, value in list(pairs) if isinstance(values, dict | list) else ():
            at = (*where, table, key)
            if isinstance(value, bool):
                text = doc.texts[at]
                if table != "set" or text != "true":
                    raise doc.error(at, _boolean(text, value, table))
                values[key] = None
            elif not isinstance(value, str | dict | list | type(None)):
                values[key] = doc.texts[at]


def _boolean(text: str, value: bool, table: str) -> str:
    if table != "set":
        return f'YAML reads {text} as a boolean; write "{text}" in quotes'
    if value:
        return f'YAML reads {text} as a boolean; write true for a flag without value, or "{text}" in quotes'
    return (
        f'YAML reads {text} as a boolean; to remove a flag list it under unset, or write "{text}" in quotes'
    )


def check_host(doc: Document, loc: Loc, host: HostModel) -> None:
    """Contradictions between fields of one host. Raises InputError."""
    service = host.service
    if service is None:
        return
    at = (*loc, "service")
    _check_kind(doc, at, service)
    _check_endpoint(doc, (*at, "endpoint"), service.endpoint, host.address)
    for i, endpoint in enumerate(service.also_endpoints):
        _check_endpoint(doc, (*at, "also_endpoints", i), endpoint, host.address)
    _check_launch(doc, at, service)
    if service.start.stalled_after > service.start.limit:
        raise doc.error((*at, "start"), "stalled_after is longer than limit")


def _check_kind(doc: Document, at: Loc, service: ServiceModel) -> None:
    if service.kind == "systemd":
        if not service.unit:
            raise doc.error(at, "a systemd service needs `unit:`")
        if not service.unit.endswith(".service"):
            raise doc.error((*at, "unit"), f"{service.unit!r} must end in .service")
        if not re.fullmatch(r"[A-Za-z0-9:_.@\\-]+", service.unit):
            raise doc.error((*at, "unit"), f"{service.unit!r} is not the name of a unit")
    elif service.unit:
        raise doc.error((*at, "unit"), f"only a systemd service has a unit, this one is {service.kind}")


def _check_endpoint(doc: Document, where: Loc, endpoint: str, address: str) -> None:
    example = "such as http://127.0.0.1:30000"
    try:
        url = urlsplit(endpoint)
        port = url.port
    except ValueError:
        raise doc.error(where, f"{endpoint!r} is not a URL {example}") from None
    if url.scheme not in ("http", "https") or not url.hostname:
        raise doc.error(where, f"{endpoint!r} is not a URL {example}")
    if not port:
        raise doc.error(where, f"{endpoint!r} has no port; write it out, {example}")
    if url.path not in ("", "/") or url.query or url.fragment or url.username:
        raise doc.error(where, f"{endpoint!r} must be scheme, host and port only, {example}")
    if not _is_loopback(url.hostname) and not _same_host(url.hostname, address):
        raise doc.error(
            where, f"{url.hostname!r} is neither loopback nor this host's address; the host itself asks it"
        )


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address, an IPv4 one that is written as IPv6 as what it is; None for a name."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_loopback(name: str) -> bool:
    ip = _ip(name)
    return ip.is_loopback if ip is not None else name == "localhost"


def _same_host(one: str, other: str) -> bool:
    ip = _ip(one)
    if ip is not None:
        return ip == _ip(other)
    return one.rstrip(".").lower() == other.rstrip(".").lower()


def _check_launch(doc: Document, at: Loc, service: ServiceModel) -> None:
    launch = service.launch
    where = (*at, "launch")
    if launch.command is not None:
        if launch.set or launch.unset:
            raise doc.error(where, "command gives the whole command line; set and unset edit one: use either")
        if not launch.command or not launch.command[0]:
            raise doc.error((*where, "command"), "the command is empty")
        if not launch.command[0].startswith("/"):
            raise doc.error(
                (*where, "command"), f"{launch.command[0]!r} must be an absolute path on the host"
            )
    for flag in launch.set:
        _check_flag(doc, (*where, "set", flag), flag)
    for i, flag in enumerate(launch.unset):
        _check_flag(doc, (*where, "unset", i), flag)
        if flag in launch.set:
            raise doc.error((*where, "unset", i), f"{flag!r} is under set too")
    for name in launch.env:
        if not _ENV.match(name):
            raise doc.error((*where, "env", name), f"{name!r} is not the name of an environment variable")
    for table, texts in (
        ("set", [t for t in launch.set.values() if t]),
        ("command", launch.command or []),
        ("env", list(launch.env.values())),
    ):
        if any("\n" in t or "\0" in t for t in texts):
            raise doc.error((*where, table), "a value contains a line break")


def _check_flag(doc: Document, loc: Loc, flag: str) -> None:
    if flag.startswith("-"):
        raise doc.error(loc, f"write flags without leading dashes: {flag.lstrip('-')}")
    if not _FLAG.match(flag):
        better = flag.lower().replace("_", "-")
        hint = f"; did you mean {better!r}?" if _FLAG.match(better) else ""
        raise doc.error(loc, f"{flag!r} is not a flag{hint}")
