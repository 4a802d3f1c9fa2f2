"""A host of hosts.yaml together with what it has said of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddtree_deploy.errors import NOTHING_DONE, DriftError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Facts, Release
from ddtree_deploy.onhost.wire.protocol import FileState

PACKAGE = "sglang"


@dataclass(frozen=True)
class Known:
    """What every plan is made from."""

    host: Host
    facts: Facts

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def live(self) -> str:
        """The run of the live release; "" = none of ours."""
        return str((self.facts.installed or {}).get("release", ""))

    @property
    def owned(self) -> Mapping[str, Mapping[str, Any]]:
        """Path -> {sha256, mode, ref, base_sha256} of the files of the live release."""
        files: Mapping[str, Mapping[str, Any]] = (self.facts.installed or {}).get("files", {})
        return files

    @property
    def sglang(self) -> str:
        """The installed version. Raises DriftError if there is none."""
        package = self.facts.packages.get(PACKAGE)
        if package is None:
            raise self.drift(
                f"SGLang is not installed in the venv of {self.facts.python}",
                f"correct `python:` of {self.name} in hosts.yaml",
            )
        return package.version

    def release(self, run: str) -> Release | None:
        """What the host recorded of a run that installed, or tried to."""
        return next((r for r in self.facts.releases if r.run == run), None)

    @property
    def held(self) -> Release | None:
        """The live release, if it waits for a person."""
        release = self.release(self.live)
        return release if release and release.verdict == "held" else None

    def file(self, ref: str) -> FileState:
        """What is at `ref`. Raises DriftError if the host said nothing: then the plan cannot be made."""
        if ref not in self.facts.files:
            raise self.drift(f"the host did not say what {ref} is")
        return self.facts.files[ref]

    def installed_file(self, path: str) -> FileState:
        """What is at the path of a file that was installed."""
        return self.facts.installed_files.get(path, FileState(path, "absent"))

    def drift(self, message: str, next_command: str = "") -> DriftError:
        """Why the host as it is cannot be planned for."""
        return DriftError(
            message, stage="plan", host=self.name, state=NOTHING_DONE, next_command=next_command
        )
