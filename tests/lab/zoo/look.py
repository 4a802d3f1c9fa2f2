"""What a host is, and how it differs from what it was. Nothing of the product is asked.

Systemd, the kernel, the files are, and each server, which tells of its own process.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.hosts import Host
from tests.lab.tree import State, difference, state
from tests.lab.zoo.draft import Draft

TOPS = ("etc", "opt", "srv", "home", "root", "models", "var/lib", "mnt")
# The product's own state, and what a running system writes by itself.
NOT_LOOKED_AT = re.compile(
    r"(var/lib/(ddtree-deploy|systemd|dbus|private/ddtree-deploy)|(root|home/\w+)/\.local|srv/state)(/|$)"
    r"|\.log$|\.bash_history$"
)
# Only a start makes these, or they are a mark of the product's.
VOLATILE = re.compile(
    r"INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|MEMORY_PRESSURE_|LISTEN_|DDTREE|NOTIFY_SOCKET|_$"
)
OURS = re.compile(rb"runner\.pyz")
BYSTANDER = re.compile(r"tmux|-?bash *$|.*forward\.py|/bin/sleep inf|sshd: /|.*sleep\(1e6\)|.*--port 30001")
SERVED_S = 20.0  # seconds until a server that was started is expected to answer
SETTLE_S = 20.0
# Units that come and go with logins and runs.
PASSING = re.compile(r"(session-|user|ssh@|systemd-|ddtree-|run-|init\.scope|dbus|modprobe)")


@dataclass
class World:
    """A host as a value. `runs`: unit -> its invocation; it is another one after each start."""

    files: State
    units: dict[str, str]  # active ones -> "active/running"
    runs: dict[str, str]
    ports: set[str]
    servers: dict[int, dict[str, Any]]  # port -> what it tells of itself; absent where nothing answers
    bystanders: dict[tuple[int, int], str]  # (pid, start) -> command: processes that are nobody's to end
    left: list[str] = field(default_factory=list)  # of the product, which should not be there between runs


def look(host: Host, draft: Draft, *, served: bool = True) -> World:
    """Look at a host that is on. `served`: wait some time for the service to answer."""
    _settle(host)
    servers = {}
    for port in sorted({draft.real_port, *draft.others}):
        answer = ask(host, port, draft.key, SERVED_S + draft.slow if served else 2.0)
        if answer:
            servers[port] = answer
    _jobs_done(host)
    units, runs = _units(host)
    others = _bystanders(host, draft)
    return World(_files(host, draft), units, runs, _ports(host), servers, others, _left(host))


def ask(host: Host, port: int, key: str, seconds: float) -> dict[str, Any]:
    """What the server of a port tells of itself; empty where none answers in time."""
    end = time.monotonic() + seconds
    while True:
        try:
            with host.inside():
                status, text = _get(port, "/fake", key)
                if status == 200:
                    answer: dict[str, Any] = json.loads(text)
                    answer["open"] = _get(port, "/fake", "")[0] == 200
                    answer["generates"] = _generates(port, key)
                    return answer
        except (OSError, ValueError, http.client.HTTPException):
            pass
        if time.monotonic() > end:
            return {}
        time.sleep(0.05)


def _get(port: int, path: str, key: str, body: str | None = None) -> tuple[int, bytes]:
    there = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        there.request("POST" if body else "GET", path, body, headers)
        answer = there.getresponse()
        return answer.status, answer.read()
    finally:
        there.close()


def _generates(port: int, key: str) -> bool:
    body = {"text": "one two", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    status, text = _get(port, "/generate", key, json.dumps(body))
    return status == 200 and bool(json.loads(text).get("text"))


def _settle(host: Host) -> None:
    """Until no run of the product is at work."""
    end = time.monotonic() + SETTLE_S
    while any(_running(host)) and time.monotonic() < end:
        time.sleep(0.05)


def _running(host: Host) -> Iterable[str]:
    for pid in host.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if OURS.search(words):
            yield words.replace(b"\0", b" ").decode(errors="replace")[:160]


def _bystanders(host: Host, draft: Draft) -> dict[tuple[int, int], str]:
    found = {}
    theirs = [f"/{name}" for name in (draft.unit, draft.fragment_name, *draft.dependents)]
    for pid in host.pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            group = Path(f"/proc/{pid}/cgroup").read_text().strip()
            start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        except OSError:
            continue
        if BYSTANDER.match(command) and not any(name in group for name in theirs):
            found[pid, start] = command
    return found


def _jobs_done(host: Host) -> None:
    end = time.monotonic() + SETTLE_S
    while host.run("systemctl list-jobs --no-legend", check=False).stdout.strip() and time.monotonic() < end:
        time.sleep(0.05)


def _units(host: Host) -> tuple[dict[str, str], dict[str, str]]:
    wanted = "-p Id -p ActiveState -p SubState -p InvocationID -p NeedDaemonReload"
    shown = host.run(f"systemctl show '*' {wanted}").stdout
    units, runs = {}, {}
    for block in shown.split("\n\n"):
        told = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name, active = told.get("Id", ""), told.get("ActiveState", "")
        kind = name.rsplit(".", 1)[-1]
        if kind not in ("service", "socket", "target", "path", "timer") or PASSING.match(name):
            continue
        if active != "inactive":
            unread = ", not read again" if told.get("NeedDaemonReload") == "yes" else ""
            units[name] = f"{active}/{told.get('SubState', '')}{unread}"
            runs[name] = told.get("InvocationID", "")
    return units, runs


def _files(host: Host, draft: Draft) -> State:
    found: State = {}
    for top in TOPS:
        if (host.root / top).is_dir():
            found |= {f"{top}/{name}": entry for name, entry in state(host.root / top).items()}
    return {name: entry for name, entry in found.items() if not NOT_LOOKED_AT.search(name)}


def _ports(host: Host) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.pid1}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                address, port = words[1].rsplit(":", 1)
                found.add(f"{address}:{int(port, 16)}")
    return found


def _left(host: Host) -> list[str]:
    # `ddtree-NAME-DIGEST.service` is an adopted service that was started again, and runs on.
    seek = "find /tmp /var/tmp /run -maxdepth 3 -xdev -iname '*ddtree*' | grep -v 'ddtree-[^d].*service$'"
    seek += "; systemctl list-units --no-legend --plain 'ddtree-deploy-*' | cut -d' ' -f1"
    found = host.run(seek, check=False).stdout.split()
    return [*found, *_running(host)]


# How two looks differ


def same(
    before: World, after: World, draft: Draft, *, untouched: bool = False, booted: bool = False
) -> list[str]:
    """Every way in which the host is not as before. `untouched`: nothing may even have been restarted.

    `booted`: everything was.
    """
    lines = difference(before.files, after.files)
    lines += around(before, after, draft, booted=booted)
    for port in before.servers.keys() & after.servers.keys():
        lines += process_differs(before.servers[port], after.servers[port], draft)
        if before.servers[port]["imported"] != after.servers[port]["imported"]:
            lines.append(
                f"the server of port {port} imported {_code(after.servers[port])}, "
                f"before {_code(before.servers[port])}"
            )
    if untouched:
        lines += [
            f"restarted: {name}"
            for name in sorted(before.runs.keys() & after.runs.keys())
            if before.runs[name] != after.runs[name]
        ]
        lines += [
            f"another process serves port {port}"
            for port in before.servers.keys() & after.servers.keys()
            if before.servers[port]["pid"] != after.servers[port]["pid"]
        ]
    return lines


def around(before: World, after: World, draft: Draft, *, booted: bool = False) -> list[str]:
    """All else: units, ports, other servers; what was only restarted with the service counts as the same."""
    lines = []
    for name in sorted((before.units.keys() | after.units.keys()) - draft.restless):
        then, now = before.units.get(name, "inactive"), after.units.get(name, "inactive")
        if then != now:
            lines.append(f"{name} is {now}, was {then}")
        mine = booted or name in {draft.fragment_name, draft.unit, *draft.dependents}
        if not mine and then == now and before.runs.get(name) != after.runs.get(name) and "@" not in name:
            lines.append(f"{name} was restarted")
    gone, new = before.ports - after.ports, after.ports - before.ports
    lines += [f"nobody listens on {port}" for port in sorted(gone)]
    lines += [f"somebody listens on {port}" for port in sorted(new)]
    lines += [f"no server answers on port {port}" for port in before.servers.keys() - after.servers.keys()]
    ended = {} if booted else {k: v for k, v in before.bystanders.items() if k not in after.bystanders}
    lines += [f"ended: process {pid} ({command})" for (pid, _), command in sorted(ended.items())]
    lines += [f"left: {name}" for name in after.left if name not in before.left]
    for port, answer in after.servers.items():
        then_open = before.servers.get(port, answer)["open"]
        if answer["open"] != then_open:
            lines.append(f"port {port} answers without a key: {answer['open']}, before {then_open}")
        if not answer["generates"]:
            lines.append(f"the server of port {port} does not generate")
    return lines


def process_differs(
    before: dict[str, Any], after: dict[str, Any], draft: Draft, *, command: bool = True
) -> list[str]:
    """How the server's process is another one than before: user, folder, environment, limits, ..."""
    then, now = before["process"], after["process"]
    loose = {"cgroup", "stdout", "environ", "cmdline"} if draft.kind != "systemd" else {"environ", "cmdline"}
    lines = [
        f"its {key} is {now[key]}, was {then[key]}"
        for key in then
        if key not in loose and then[key] != now[key]
    ]
    if command and then["cmdline"] != now["cmdline"]:
        lines.append(f"its command is {now['cmdline']}, was {then['cmdline']}")
    env = draft.launch.get("env", {}) if not command else {}
    for name in sorted(then["environ"].keys() | now["environ"].keys()):
        old, new = then["environ"].get(name), now["environ"].get(name)
        if old != new and not VOLATILE.match(name) and name not in env:
            lines.append(f"its variable {name} is {new!r}, was {old!r}")
    return lines


def _code(answer: dict[str, Any]) -> str:
    said = {
        name.rsplit(".", 1)[-1]: m["says"] for name, m in answer["imported"].items() if m["says"] is not None
    }
    return str(said)
