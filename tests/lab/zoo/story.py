"""What a person does to a host, and whether each answer was true.

plan, rollout, a rollout that fails after the start, restart by hand, for some a reboot, rollback, restart.
It ends with *served as asked, all else as before* or *refused, true reason, untouched*; the rest is untrue.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.controller import Result
from tests.lab.hosts import Host
from tests.lab.matrix.commands import ForkingController
from tests.lab.payloads import OVERLAID, make_payload, write_playbooks
from tests.lab.tree import difference
from tests.lab.zoo.draft import KEY, KEY_ENV, UNITS, Draft
from tests.lab.zoo.look import World, around, look, process_differs, same

NAMES = "sglang.srt.speculative.dflash_info", "tiny_ddtree"
NO_GATES = dict.fromkeys(("baseline", "tokens", "acceptance", "benchmark", "soak"))
HEALTH = {"requests": 2, "need": 2, "max_new_tokens": 4, "deadline": "20s"}
VERSION, BAD = "1.0.0", "2.0.0"
BLOCK = 32
# What a release may change: its own files, and our drop-in.
PAYLOAD = re.compile(r"/(tiny_ddtree|tiny-[\d.]+\.dist-info)(/|$)|/" + re.escape(OVERLAID) + "$")
DROP_IN = re.compile(UNITS.lstrip("/") + r"/[^/]+\.service\.d(/zzzz-ddtree-deploy\.conf)?$")


class Untrue(Exception):
    """What was said is not what is."""


@dataclass
class Told:
    """How a cell went."""

    draft: Draft
    ended: str = ""  # served | refused
    problems: list[str] = field(default_factory=list)
    lab_failed: bool = False  # no verdict on the product: the host itself did not come up
    commands: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def truly(self) -> bool:
        return not self.problems

    def line(self) -> str:
        path = ", ".join(self.commands)
        ended = f"{self.ended or '?'} {self.seconds:.1f} s"
        return f"{'ok    ' if self.truly else 'UNTRUE'} {self.draft.title}: {path}: {ended}"


class Story:
    """One host, its user's folder, and what was seen so far."""

    def __init__(self, host: Host, draft: Draft, folder: Path, told: Told, sources: Path | None) -> None:
        self.host, self.draft, self.folder, self.told = host, draft, folder, told
        self.booted = False  # since the first look
        self.controller = ForkingController(folder, [host], sources)
        entry = host.inventory()
        service = {
            "kind": draft.kind,
            "endpoint": f"http://127.0.0.1:{draft.real_port}",
            "launch": {"set": {"speculative-algorithm": "DDTREE", "speculative-ddtree-budget": "24"}}
            | draft.launch,
            "stop": {"drain": "2s", "limit": "20s"},
            "start": {"stalled_after": "20s", "limit": "60s"},
        }
        if draft.kind == "systemd":
            service["unit"] = draft.unit
        if draft.key:
            service["api_key"] = {"env": KEY_ENV}
        entry["python"] = f"{draft.venv}/bin/python"
        entry["service"] = service | draft.service
        self.controller.write_hosts({host.name: entry | draft.entry})
        write_playbooks(folder, **NO_GATES, preflight={"min_free": "1MiB"}, health=HEALTH)
        self.good = make_payload(folder / "good", version=VERSION)
        self.bad = make_payload(folder / "bad", version=BAD, overlay='MOOD = {"fail_every": 2}\n')

    def tell(self, rng: random.Random) -> None:
        """All of it. Raises Untrue."""
        reboots = self.draft.reboots if self.draft.reboots is not None else rng.random() < 0.25
        before = look(self.host, self.draft)
        if self.draft.real_port not in before.servers:
            self.told.lab_failed = True
            raise Untrue(f"the lab: nothing serves before anything was done: {before.units}")
        if self._refused("plan", self._run("plan", self.good), before):
            return
        if rng.random() < 0.3 and not self.draft.put_back:  # the first release ever is a bad one
            done = self._run("rollout", self.bad)
            if self._refused("rollout", done, before):
                return
            self._expect(done, 1, before)
        done = self._run("rollout", self.good)
        if self._refused("rollout", done, before):
            return
        if self.draft.put_back and done.code:
            if done.code != 1 or not re.search(self.draft.put_back, _reason(done)):
                raise Untrue(f"exit 1 because of /{self.draft.put_back}/ was to be expected: {_reason(done)}")
            self._same("rollout 1", before)
            self.told.ended = f"put back: {_reason(done)}"
            return
        after = self._serves(done, before)
        self._expect(self._run("rollout", self.bad), 1, after)
        self._by_hand("a restart by hand", after)
        if reboots and self.draft.kind == "systemd" and not self.draft.live:
            self.host.reboot()
            self.told.commands.append("reboot")
            self.booted = True
            self._same("a reboot", after)
        self._back(rng, after, before)
        self._by_hand("a restart by hand after it", before)
        self.told.ended = "served"

    def _back(self, rng: random.Random, after: World, before: World) -> None:
        """After a rollout that failed, `rollback` alone goes to the base, or says that it did nothing."""
        if rng.random() < 0.2:
            done = self._run("rollback")
            if done.code == 0:
                return self._same("rollback 0", before)
            self._same(f"rollback {done.code}", after, untouched=True)
        done = self._run("rollback", more=("--to", "base"))
        if done.code != 0:
            raise Untrue(f"rollback to base: {_reason(done)}")
        self._same("rollback 0", before)

    # The commands

    def _run(self, command: str, payload: Path | None = None, more: tuple[str, ...] = ()) -> Result:
        words = [self.host.name, *more]
        if payload is not None:
            words += ["--payload", str(payload), "--playbook", str(self.folder / "rollout.yaml")]
        if command == "rollback":
            words += ["--playbook", str(self.folder / "rollback.yaml")]
        words += [] if command == "plan" else ["--yes"]
        done = self.controller.run(command, *words, env={KEY_ENV: KEY})
        self.told.log.append(str(done))
        which = " (bad)" if payload is self.bad else ""
        self.told.commands.append(f"{command}{which} {done.code}")
        for secret in self.draft.secrets:
            where = [f"what {command} says"] if secret in str(done) else []
            if where := where + self._written(secret):
                raise Untrue(f"a secret is in {', '.join(where)}")
        return done

    def _written(self, secret: str) -> list[str]:
        """Where it stands in the record here, and in what the host keeps to be read."""
        files = [f for f in (self.folder / ".ddtree-deploy").rglob("*") if f.is_file()]
        files += self.host.path("/var/lib/ddtree-deploy").glob("sites/*/runs/*/*.json*")
        return [file.name for file in files if secret.encode() in file.read_bytes()]

    def _by_hand(self, what: str, wanted: World) -> None:
        if self.draft.kind != "systemd":
            return
        self.host.run(f"systemctl restart '{self.draft.unit}'")
        self._same(what, wanted)

    # What must hold

    def _refused(self, command: str, done: Result, before: World) -> bool:
        """Whether it said no. Raises Untrue where that is not true, or the host was touched."""
        if done.code == 0 and self.draft.must_refuse and command == "rollout":
            raise Untrue(f"rollout 0, but /{'|'.join(self.draft.refused)}/ had to be refused")
        if done.code == 0 or any(e["e"] == "down" for e in done.events):
            return False
        reason = _reason(done)
        if not self.draft.refused:
            raise Untrue(f"{command} of a healthy plain host: {reason}")
        # 1 is what a preflight says of a host that it does not touch.
        if done.code not in ((2, 4, 6) if command == "plan" else (1, 2, 4, 6)):
            raise Untrue(f"{command}: not a refusal: {reason}")
        if not re.search("|".join(self.draft.refused), reason, re.I):
            raise Untrue(f"{command}: another reason than /{'|'.join(self.draft.refused)}/: {reason}")
        self._same(f"the refusal of {command}", before, untouched=True)
        self.told.ended = f"refused: {reason}"
        return True

    def _expect(self, done: Result, code: int, wanted: World) -> None:
        """A rollout that had to fail at a gate, and leave what was there before."""
        if done.code != code:
            raise Untrue(f"the bad rollout: exit {code} expected: {_reason(done)}")
        self._same(f"exit {code}", wanted)
        outcome = [e for e in done.events if e["e"] == "outcome"]
        if outcome and outcome[0]["step"] != "health":
            raise Untrue(f"the bad rollout fails at `health`, not: {_reason(done)}")

    def _same(self, what: str, wanted: World, *, untouched: bool = False) -> None:
        seen = look(self.host, self.draft)
        lines = same(wanted, seen, self.draft, untouched=untouched, booted=self.booted)
        if lines:
            raise Untrue(f"after {what}: " + "; ".join(lines[:6]))

    def _serves(self, done: Result, before: World) -> World:
        """The good release serves as it was asked, and all else is as before."""
        after = look(self.host, self.draft)
        if done.code == 1:
            lines = same(before, after, self.draft)
            raise Untrue(f"rollout: {_reason(done)} (the host: {'; '.join(lines[:5]) or 'as before'})")
        lines = around(before, after, self.draft)
        server = after.servers.get(self.draft.real_port)
        if server:
            lines += self._code(server, before.servers[self.draft.real_port])
            lines += self._command(server, before.servers[self.draft.real_port])
            lines += process_differs(before.servers[self.draft.real_port], server, self.draft, command=False)
        changed = difference(before.files, after.files)
        lines += [line for line in changed if not self._is_ours(line.split(": ")[1])]
        if done.code != 0:
            raise Untrue(
                f"rollout: {_reason(done)}; found: {'; '.join(lines[:5]) or 'the new release serves'}"
            )
        if lines:
            raise Untrue("rollout 0, but " + "; ".join(lines[:6]))
        return after

    @staticmethod
    def _is_ours(path: str) -> bool:
        return bool(PAYLOAD.search(f"/{path}") or DROP_IN.search(path))

    def _code(self, server: dict[str, Any], old: dict[str, Any]) -> list[str]:
        lines = []
        got = {name: server["imported"].get(name, {}) for name in NAMES}
        overlay = (self.good / "overlay/dflash_info.py").read_bytes()
        if (
            got[NAMES[0]].get("says") != BLOCK
            or got[NAMES[0]].get("sha256") != hashlib.sha256(overlay).hexdigest()
        ):
            lines.append(f"the server has imported {got[NAMES[0]]}, not the release's")
        if got[NAMES[1]].get("says") != VERSION:
            lines.append(f"the server has imported {got[NAMES[1]] or 'no'} tiny_ddtree, not {VERSION}")
        for name, was in old["imported"].items():
            now = server["imported"].get(name)
            if name != NAMES[0] and now != was:
                lines.append(f"{name} is {now}, was {was}")
        if got[NAMES[0]].get("file") != old["imported"][NAMES[0]]["file"]:
            lines.append(f"{NAMES[0]} comes from {got[NAMES[0]].get('file')}, before from elsewhere")
        return lines

    def _command(self, server: dict[str, Any], old: dict[str, Any]) -> list[str]:
        """The server's own view of its flags; and of the rest of its command nothing has changed."""
        lines = []
        wanted = {"speculative_algorithm": "DDTREE", "speculative_ddtree_budget": 24}
        for name, value in wanted.items():
            if server["args"][name] != value:
                lines.append(f"{name} is {server['args'][name]!r} in the server, asked was {value!r}")
        flags = [name.replace("_", "-") for name in wanted]
        then, now = (_without(a["process"]["cmdline"], flags) for a in (old, server))
        if then != now:
            lines.append(f"its command is {now} (without ours), was {then}")
        for name, value in self.draft.launch.get("env", {}).items():
            if server["process"]["environ"].get(name) != value:
                lines.append(
                    f"its variable {name} is {server['process']['environ'].get(name)!r}, asked was {value!r}"
                )
        return lines


def _without(argv: list[str], flags: list[str]) -> list[str]:
    kept, skip = [], False
    for word in argv:
        if any(word.startswith(f"--{flag}=") for flag in flags):
            skip = False
        elif word.startswith("--"):
            skip = word[2:] in flags
            kept += [] if skip else [word]
        elif not skip:
            kept.append(word)
    return kept


def _reason(done: Result) -> str:
    """Its exit code and what it said, for people and for the cell's regular expression."""
    said = [
        f"{e.get('step', '')}: {e.get('reason', '')}" for e in done.events if e["e"] in ("outcome", "error")
    ]
    return " ".join([f"exit {done.code}:", *said[-1:], *([] if said else [done.stderr.strip()[-300:]])])


def tell(host: Host, draft: Draft, folder: Path, seed: int, sources: Path | None) -> Told:
    """The story of one cell. Never raises for what the product does."""
    told = Told(draft)
    begun = time.monotonic()
    try:
        Story(host, draft, folder, told, sources).tell(random.Random(f"{seed} {draft.name}"))
    except Untrue as error:
        told.problems.append(str(error))
    except Exception as error:
        told.problems.append(f"the lab: {type(error).__name__}: {error}"[:1500])
        told.lab_failed = True
    told.seconds = time.monotonic() - begun
    return told
