"""The launch of a unit: as systemd holds it, as it was before our drop-in, and as it is after the edits."""

from __future__ import annotations

import json
import os
import shutil
import socket

from ...wire import masking
from ...wire.masking import is_flag
from ...wire.protocol import Launch
from .. import base, command_line, proc
from ..base import ServiceError
from . import expansion, unitfile
from .manager import Command, Definition
from .same import Difference, Start, differences
from .unit import Unit


class UnitLaunch(Unit):
    """What a unit starts."""

    def _only(self, commands: list[Command]) -> Command:
        if len(commands) != 1:
            raise ServiceError(
                f"{self.unit}: it has {len(commands)} ExecStart= lines, and this tool edits exactly one"
            )
        return commands[0]

    def _argv(self, command: Command, own: list[str]) -> list[str]:
        """What the process gets, with `own` as `Environment=`."""
        defined = self._defined()
        try:
            return command.expanded(defined.environment(own), defined.version)
        except ServiceError as e:
            raise ServiceError(f"{self.unit}: {e}") from None

    def _loaded(self) -> Start:
        """What a start gives now. Raises ServiceError."""
        defined = self._defined()
        command = self._only(defined.commands)
        argv = self._argv(command, defined.own_environment)
        path = command.path if "/" in command.path else shutil.which(command.path) or command.path
        interpreter = command_line.script_words(path)
        pam = defined.properties.get("PAMName")  # what its modules set is theirs
        return Start(
            program=os.path.realpath(interpreter[0] if interpreter else path),
            argv=[*interpreter, path, *argv[1:]] if interpreter else argv,
            environment=None if pam else defined.environment(defined.own_environment),
            folder=os.path.realpath(defined.folder()),
            uid=defined.uid(command),
        )

    # ---- the edits ------------------------------------------------------------------------------------

    def _base(self) -> tuple[Command, list[str]]:
        """(ExecStart=, Environment=) without our drop-in. Raises ServiceError."""
        defined = self._defined()
        if str(self.drop_in) not in defined.drop_ins:
            return self._only(defined.commands), defined.own_environment
        texts = self._texts(ours=False)
        told = unitfile.replaced(self.drop_in.read_text(errors="surrogateescape"))
        if told:
            before = json.loads(told)
            if before["unit"] == base.digest(texts):
                return Command(*before["command"]), before["environment"]
        return self._read(texts, defined)  # changed since, or our drop-in is an older version's

    def _told(self, command: Command, own: list[str]) -> str:
        """`_base`, for the next time, when systemd holds our drop-in."""
        unit = base.digest(self._texts(ours=False))
        words = [command.path, command.argv, command.flags]
        return json.dumps({"unit": unit, "command": words, "environment": own})

    def _read(self, texts: list[str], defined: Definition) -> tuple[Command, list[str]]:
        """The same by our own reading of the unit's files."""
        known = self._specifiers(defined)
        try:
            prefix, words = unitfile.exec_start(texts)
            own = [unitfile.specified(word, known) for word in unitfile.environment(texts)]
        except unitfile.UnitError as e:
            raise ServiceError(f"{self.unit}: {e}") from e
        argv = [unitfile.specified(word, known) for word in words]
        flags = [flag for sign, flag in unitfile.PREFIXES.items() if sign in prefix]
        return Command(argv[0], argv, flags), own

    def _specifiers(self, defined: Definition) -> dict[str, str]:
        name = self.unit.rsplit(".", 1)[0]
        prefix, _, instance = name.partition("@")
        # As the system manager has them, whatever User= says.
        return {
            "n": self.unit, "N": name, "p": prefix, "P": prefix, "i": instance,
            "I": instance.replace("-", "/"), "u": "root", "h": "/root", "H": socket.gethostname(),
            "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log",
        }  # fmt: skip

    def _future(self) -> tuple[Command, list[str]]:
        """(ExecStart=, Environment=) after the edits. Raises ServiceError."""
        command, own = self._base()
        wanted = self.service.launch
        if not wanted.edits:
            return command, own
        self.require_editable(self._argv(command, own), "unit whose ExecStart= runs")
        own = [*own, *(f"{name}={value}" for name, value in wanted.env.items())]
        if wanted.command is not None:
            return Command(wanted.command[0], command_line.edit([], _escaped(wanted)), []), own
        verbatim = "no-env-expand" in command.flags
        env, version = self._defined().environment(own), self._defined().version

        def is_end(word: str) -> bool:
            """`--flag value $MORE`: a variable is a value only if it holds values, and no flags."""
            if verbatim or not word.startswith("$") or word.startswith(("$$", "${")):
                return is_flag(word)
            held = expansion.expand([word], env, version)
            return not held or any(map(is_flag, held))

        edited = command_line.edit(command.argv, wanted if verbatim else _escaped(wanted), is_end)
        return Command(command.path, edited, command.flags), own

    def _overruled(self, command: Command, own: list[str]) -> str:
        """What of our edits (`_future`) does not come through to the process; empty when all does."""
        defined, wanted = self._defined(), self.service.launch
        env = defined.environment(own)
        argv = command.expanded(env, defined.version)
        lost = next((name for name, value in wanted.env.items() if env.get(name) != value), "")
        if lost:
            return self._who_sets(lost, defined)
        for flag in [*wanted.set, *wanted.unset]:
            found = command_line.values_of(argv, flag)
            wrong = found is not None
            if flag in wanted.set:
                value = wanted.set[flag]
                wrong = found is None or (value is not None and found != [value])
            if wrong:
                again = [w for w in command.argv if f"--{flag}" in env.get(w.strip("${}"), "")]
                where = f" ({' '.join(again)})" if again else ""
                return f"a variable in the ExecStart= of {self.unit}{where} has --{flag}, too, and wins"
        return ""

    def _who_sets(self, name: str, defined: Definition) -> str:
        files = [path for path, values in defined.environment_files() if name in values]
        if files:
            return (
                f"launch.env sets {name}, but an EnvironmentFile= of {self.unit} sets it, too, and wins: "
                f"{files[-1]}"
            )
        return f"launch.env sets {name}, but UnsetEnvironment= of {self.unit} takes it away"

    # ---- what runs ------------------------------------------------------------------------------------

    def _differences(self, shown: dict[str, str]) -> list[str]:
        """What the main process has otherwise than a start would give it now, one line each, masked."""
        pid = int(shown.get("MainPID") or 0)
        argv = proc.argv(pid)
        if not argv or self._defined().properties.get("Type") == "forking":  # it is not what was executed
            return []
        now = self._loaded()
        if argv != now.argv and command_line.wrapper(now.argv):
            return []  # a shell has started what it likes
        try:
            program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        except OSError as e:
            raise ServiceError(f"process {pid} of {self.unit} cannot be looked at: {e.strerror}") from None
        process = Start(program, argv, proc.environ(pid), proc.cwd(pid), proc.uid(pid))
        return [self._line(one, pid) for one in differences(now, process)]

    def _line(self, one: Difference, pid: int) -> str:
        words = [value if isinstance(value, list) else [value] for value in (one.now, one.process)]
        now, has = (masking.shown(w, self.known_secrets()) for w in words)
        if masking.is_secret_name(one.what):
            now, has = masking.MASK, f"another {masking.MASK}"
        return f"{one.what}: {self.unit} now says {now}; process {pid} has {has}"


def _escaped(wanted: Launch) -> Launch:
    """systemd expands no variables in its words."""
    return Launch(
        command=None if wanted.command is None else [w.replace("$", "$$") for w in wanted.command],
        set={f: None if v is None else v.replace("$", "$$") for f, v in wanted.set.items()},
        unset=wanted.unset,
    )
