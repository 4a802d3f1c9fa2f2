"""Follow a run to its verdict: heartbeats both ways, reconnects from the last offset, interrupts in order.

The runner on the host does not need us. What is lost here is only sight of it, and that is said.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddtree_deploy.errors import ContactLost, DeployError, TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.protocol import HEARTBEAT_S
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.running.remote import explain_exec, parse_event
from ddtree_deploy.running.sight import Sight
from ddtree_deploy.ssh import Link, LinkLost, Stream, StreamEnded, transport_error
from ddtree_deploy.text import safe, size

POLL_S = 0.2
Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Patience:
    """Bounds, in seconds. A dead host is noticed after `silence_s`: four heartbeats that did not come."""

    silence_s: float = 20.0
    first_answer_s: float = 60.0
    reconnect_s: float = 180.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 15.0


class _Ended(Exception):
    """The follower on the host ended without the run's verdict."""

    def __init__(self, rc: int, err: bytes) -> None:
        super().__init__(rc)
        self.rc = rc
        self.err = err


@dataclass
class Follower:
    """Follows one run. `emit` gets the events of its journal, and ours about the connection."""

    host: Host
    run_dir: str
    python: str  # the interpreter that runs the runner: absolute, from the facts
    connect: Callable[[], Link]
    emit: Emit
    interrupts: Interrupts
    patience: Patience = field(default_factory=Patience)
    sight: Sight = field(default_factory=Sight)
    offset: int = 0  # bytes of whole journal lines seen
    _heard: bool = False  # a line of the follower on the host: it writes one before it starts a runner
    _told: bool = False  # the host has our interrupt
    _down_until: float = 0.0  # the host said that it goes down; until then its silence is no surprise

    def launch(self, link: Link, stream: Stream, cargo: bytes) -> dict[str, Any]:
        """Send the cargo, which starts the runner, and follow it. Returns its `end` event.

        stream: the process that gave the facts over this link.

        Until the last byte is sent the host starts nothing; a signal before that raises KeyboardInterrupt.

        Raises:
            TransportError, GateFailed, InputError: nothing was started.
            ContactLost: it runs, and we cannot or shall not see it.
        """
        try:
            stream.send(cargo[:-1])
        except LinkLost as error:
            rc = stream.exit_status(5.0) if link.alive else None
            if rc is None:
                raise transport_error(self.host, "launch", f"{error}; nothing was started") from error
            return self._follow(link, stream, launching=True)  # it has ended by itself, and perhaps said why
        self.interrupts.hold()
        self.sight.begin()
        with contextlib.suppress(LinkLost):  # it may have arrived; who follows finds out
            stream.send(cargo[-1:])
        self.emit({"e": "sent", "bytes": len(cargo), "text": f"{size(len(cargo))}: plan and payload"})
        return self._follow(link, stream, launching=True)

    def attach(self, link: Link) -> dict[str, Any]:
        """Follow a run that was started before, from `offset`. Returns and raises as `launch`; GateFailed,
        InputError: there is nothing to be followed that way."""
        self.interrupts.hold()
        self.sight.begin()
        return self._follow(link, self._open(link))

    def _open(self, link: Link) -> Stream:
        runner = f"{self.run_dir}/runner.pyz"
        command = link.command(self.python, "-I", "-S", runner, "follow", self.run_dir, str(self.offset))
        return link.stream(command, stage="follow")

    def _follow(self, link: Link, stream: Stream, *, launching: bool = False) -> dict[str, Any]:
        ended_at = -1
        try:
            while True:
                try:
                    return self._watch(stream)
                except _Ended as ended:
                    if not self._heard:
                        if launching:  # else: who follows has not found it; whether it goes on is not known
                            self.sight.end()
                        raise explain_exec(
                            self.host, "launch", ended.rc, b"", ended.err, begun=True
                        ) from None
                    why = self._why_ended(ended, again=self.offset == ended_at)
                    ended_at = self.offset
                except (LinkLost, TransportError) as lost:
                    why = str(lost)
                self.emit(
                    {"e": "disconnected", "reason": why, "text": f"{why}; the run goes on, reconnecting"}
                )
                link.close()
                launching = False
                link, stream = self._reconnect(why)
                self.emit({"e": "reconnected", "offset": self.offset, "text": f"from byte {self.offset}"})
        finally:
            link.close()

    def _why_ended(self, ended: _Ended, *, again: bool) -> str:
        """The reason to try once more: a follower also ends when it had not heard from us, or at a reboot."""
        if self._down_until:
            if time.monotonic() > self._down_until:
                raise self._contact_lost("the host went down, and does not go on yet", "follow") from None
            return "the host goes down"
        if again:
            raise self._no_verdict(ended) from None
        return f"the follower on the host ended with exit status {ended.rc}"

    def _watch(self, stream: Stream) -> dict[str, Any]:
        heard = beat = time.monotonic()
        # At first, what was sent may still be on its way through a slow line.
        silence = max(self.patience.silence_s, self.patience.first_answer_s)
        if self._told:
            stream.send(b"interrupt\n")  # the follower that had it may be gone
        while True:
            self._pass_interrupt(stream)
            try:
                line = stream.line(POLL_S)
            except StreamEnded:
                rc = stream.exit_status()
                if rc is None:
                    raise LinkLost("the connection ended") from None
                raise _Ended(rc, stream.stderr) from None
            now = time.monotonic()
            if line is not None:
                heard, silence = now, self.patience.silence_s
                event = parse_event(line)
                self._heard = self._heard or event is not None
                if event is None:
                    self.emit({"e": "noise", "text": safe(line.decode(errors="replace"))})
                elif event["e"] != "hb":
                    if "n" in event:  # of the journal; what the follower itself says has no number
                        self.offset += len(line) + 1
                        down = event["e"] == "deferred"
                        self._down_until = now + self.patience.reconnect_s if down else 0.0
                    self.emit(event)
                    # `lost`: the runner died; it carries what an `end` carries.
                    if event["e"] in ("end", "lost"):
                        return event
            if now - heard > silence:
                raise LinkLost(f"nothing heard from the host for {silence:.0f} s")
            if now - beat >= HEARTBEAT_S:
                stream.send(b"hb\n")
                beat = now

    def _pass_interrupt(self, stream: Stream) -> None:
        if self.interrupts.count >= 2:
            raise self._contact_lost("interrupted twice: the host was left to it", "interrupt")
        if self.interrupts.count == 1 and not self._told:
            self._told = True
            self.emit({"e": "interrupt", "text": "asked the host to undo; once more leaves it to the host"})
            stream.send(b"interrupt\n")

    def _reconnect(self, why: str) -> tuple[Link, Stream]:
        limit = time.monotonic() + self.patience.reconnect_s
        pause = self.patience.first_pause_s
        if self._down_until:  # its sshd may answer to the last; what it would tell is told already
            self._wait(pause)
        while True:
            try:
                link = self.connect()
                try:
                    return link, self._open(link)
                except BaseException:
                    link.close()
                    raise
            except DeployError as error:
                if time.monotonic() + pause > limit:
                    raise self._contact_lost(
                        f"contact lost: {why}; then {error.message}", "follow"
                    ) from error
            self._wait(pause)
            pause = min(pause * 2, self.patience.longest_pause_s)

    def _wait(self, seconds: float) -> None:
        wake = time.monotonic() + seconds
        while time.monotonic() < wake:
            if self.interrupts.count >= 2:
                raise self._contact_lost("interrupted while contact was lost", "interrupt")
            time.sleep(POLL_S)

    def _contact_lost(self, message: str, stage: str) -> ContactLost:
        return ContactLost(
            message,
            stage=stage,
            host=self.host.name,
            state="the host goes on by itself to its verdict",
            next_command=f"ddtree-deploy attach {self.host.name}",
        )

    def _no_verdict(self, ended: _Ended) -> ContactLost:
        lines = ended.err.decode(errors="replace").strip().splitlines()
        said = f" ({safe(lines[-1], 300)})" if lines else ""
        return ContactLost(
            f"the follower on the host ended twice without a verdict{said}",
            stage="follow",
            host=self.host.name,
            state="whether the run goes on is not known; the next rollout or rollback recovers it if not",
            next_command=f"ddtree-deploy status {self.host.name}",
        )
