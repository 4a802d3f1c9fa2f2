"""The control of a service, by its kind."""

from __future__ import annotations

from pathlib import Path

from ..wire.protocol import Service
from .base import ServiceControl, ServiceError


def control(service: Service, state_dir: Path, secrets: dict[str, str]) -> ServiceControl:
    """The control of `service`. `state_dir`: of the venv (STATE/sites/KEY). `secrets`: the plan's."""
    if service.kind == "systemd":
        from .systemd.control import SystemdControl

        return SystemdControl(service, state_dir, secrets)
    if service.kind in ("supervised", "adopted"):
        from .process.control import ProcessControl

        return ProcessControl(service, state_dir, secrets)
    raise ServiceError(f"unknown kind of service {service.kind!r}: systemd, supervised or adopted")
