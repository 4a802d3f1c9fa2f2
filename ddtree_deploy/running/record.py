"""What the controller remembers: `.ddtree-deploy/` beside hosts.yaml.

    runs/RUN/plan.json       the plan as sent, without its secrets
    runs/RUN/facts.json      what the host was, before anything was touched
    runs/RUN/journal.jsonl   the host's journal, as far as it was seen here
    runs/RUN/summary.json    the outcome: exit code, state, figures, execs and bytes
    last.json                the hosts and runs of the last rollout, for `rollback` without a target

A convenience, never the truth: that is the journal on the host.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ddtree_deploy.errors import ContactLost, InputError
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.onhost.wire.masking import masked
from ddtree_deploy.onhost.wire.protocol import Plan, to_dict

FOLDER = ".ddtree-deploy"
CONTACT_LOST = ContactLost.exit_code


@dataclass(frozen=True)
class Last:
    """The last rollout. `runs` maps host name to run id, in the order in which they were done."""

    time: str
    target: str
    runs: dict[str, str]


class RunRecord:
    """The folder of one run on one host."""

    def __init__(self, folder: Path, *, resumed: bool = False) -> None:
        self.folder = folder
        self._journal: IO[str] | None = None
        # Who started the run may still be writing: a second journal takes the first one's place once whole.
        self._file = folder / (f".journal.{os.getpid()}" if resumed else "journal.jsonl")
        self._resumed = resumed

    def plan(self, plan: Plan) -> None:
        """Keep the plan; names of secrets stay, their values do not."""
        data = to_dict(plan)
        data["secrets"] = dict.fromkeys(plan.secrets, "***")
        if plan.service is not None:
            data["service"]["launch"] = to_dict(masked(plan.service.launch))
        _write(self.folder / "plan.json", data)

    def facts(self, facts: Facts) -> None:
        """Keep what the host said that it is."""
        _write(self.folder / "facts.json", asdict(facts))

    def event(self, event: dict[str, Any]) -> None:
        """Append one event of the host's journal."""
        if self._journal is None:
            self._journal = self._file.open("a", encoding="utf-8")
        self._journal.write(json.dumps(event, separators=(",", ":")) + "\n")
        self._journal.flush()

    def abandon(self) -> None:
        """No more is written: what there is stays, as of a run whose end was not seen."""
        with contextlib.suppress(OSError):
            if self._journal is not None:
                self._journal.close()
        if self._resumed:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)

    def summary(self, data: dict[str, Any]) -> None:
        """Write the outcome and close the journal. Of a resumed run only if its end was seen now."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._resumed and data["exit_code"] == CONTACT_LOST:
            self._file.unlink(missing_ok=True)
            return
        if self._resumed and self._file.exists():
            self._file.replace(self.folder / "journal.jsonl")
        _write(self.folder / "summary.json", data)


class Record:
    """The record that belongs to one hosts.yaml."""

    def __init__(self, hosts_file: Path) -> None:
        self.folder = hosts_file.resolve().parent / FOLDER

    def run(self, run: str) -> RunRecord:
        """The record of a run, made if it is new."""
        folder = self._made() / "runs" / run
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return RunRecord(folder)

    def newest(self, host: str) -> str:
        """The last run that was recorded here for a host, whatever became of it; "" where there is none."""
        for folder in sorted((self.folder / "runs").glob("*"), reverse=True):
            try:
                if json.loads((folder / "plan.json").read_text(encoding="utf-8"))["host"] == host:
                    return folder.name
            except (OSError, ValueError, TypeError, KeyError):
                continue  # a damaged record; `history` names it
        return ""

    def resume(self, run: str) -> RunRecord | None:
        """The record of a run whose end was not seen here, to be completed; None for any other run."""
        folder = self.folder / "runs" / run
        try:
            seen = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["exit_code"]
        except (OSError, ValueError, TypeError, KeyError):
            seen = CONTACT_LOST
        if not (folder / "plan.json").exists() or seen != CONTACT_LOST:
            return None
        return RunRecord(folder, resumed=True)

    def set_last(self, last: Last) -> None:
        """Remember the hosts of this rollout."""
        self._made()
        _write(self.folder / "last.json", asdict(last))

    def last(self) -> Last:
        """The last rollout. Raises InputError when there was none from here, or its record is damaged."""
        file = self.folder / "last.json"
        try:
            return Last(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError(
                "no rollout was made from here yet, so there is no last one to roll back",
                file=file,
                next_command="ddtree-deploy rollback TARGET",
            ) from None
        except (ValueError, TypeError) as error:
            raise InputError(
                f"cannot be read ({error})", file=file, next_command="ddtree-deploy rollback TARGET"
            ) from error

    def _made(self) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        return self.folder


def _write(path: Path, data: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        temporary.chmod(0o600)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
