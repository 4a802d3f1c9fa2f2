"""Following a run: offsets, losses, silence, interrupts. The link is a script, the bounds are short."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ddtree_deploy.errors import ContactLost, DeployError, GateFailed, TransportError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.running.follow import Follower, Patience
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.ssh import LinkLost, StreamEnded, Traffic

HOST = Host("ct1", "10.0.0.1", "/v/bin/python")
QUICK = Patience(silence_s=0.3, first_answer_s=0.3, reconnect_s=0.3, first_pause_s=0.01, longest_pause_s=0.05)
END = {"n": 9, "e": "end", "verdict": "pass", "exit": 0, "state": "new release serving"}
SILENT = object()
LOST = object()


def line(**event: Any) -> bytes:
    return json.dumps(event).encode()


class FakeStream:
    """Gives its script: lines, SILENT (nothing more comes), LOST; then the exit status."""

    def __init__(self, *script: Any, rc: int | None = None, err: bytes = b"") -> None:
        self.script = list(script)
        self.rc = rc
        self.stderr = err
        self.sent: list[bytes] = []
        self.on_send: Callable[[bytes], None] = lambda data: None

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        self.on_send(data)

    def line(self, timeout: float) -> bytes | None:
        if not self.script:
            raise StreamEnded
        if self.script[0] is SILENT:
            return None
        if callable(self.script[0]):
            return self.script.pop(0)()
        if self.script[0] is LOST:
            raise LinkLost("the connection ended")
        return self.script.pop(0)

    def exit_status(self, timeout: float = 10.0) -> int | None:
        return self.rc


class FakeLink:
    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self.traffic = Traffic()
        self.alive = True
        self.commands: list[str] = []

    def command(self, python: str, *args: str) -> str:
        return " ".join([python, *args])

    def stream(self, command: str, *, stage: str = "") -> FakeStream:
        self.commands.append(command)
        return self._stream

    def close(self) -> None:
        self.alive = False


class Watch:
    """A follower over a first link and further ones for its reconnects."""

    def __init__(self, *streams: FakeStream, patience: Patience = QUICK) -> None:
        self.links = [FakeLink(stream) for stream in streams]
        self.waiting = list(self.links[1:])
        self.events: list[dict[str, Any]] = []
        self.interrupts = Interrupts()
        self.follower = Follower(
            host=HOST,
            run_dir="/s/runs/r1",
            python="/v/bin/python",
            connect=self._dial,  # type: ignore[arg-type]
            emit=self.events.append,
            interrupts=self.interrupts,
            patience=patience,
        )

    def _dial(self) -> FakeLink:
        if not self.waiting:
            raise TransportError("connection refused")
        return self.waiting.pop(0)

    def launch(self) -> dict[str, Any]:
        link = self.links[0]
        return self.follower.launch(link, link.stream(""), b"cargo")  # type: ignore[arg-type]

    def kinds(self) -> list[str]:
        return [event["e"] for event in self.events]


def test_a_run_is_followed_to_its_end() -> None:
    watch = Watch(FakeStream(line(n=1, e="run"), line(e="hb"), line(**END)))
    assert watch.launch() == END
    assert watch.kinds() == ["sent", "run", "end"]
    assert b"".join(watch.links[0]._stream.sent) == b"cargo"


def test_after_a_loss_it_goes_on_from_the_byte_after_the_last_whole_line() -> None:
    first = line(n=1, e="run")
    watch = Watch(
        FakeStream(first, line(e="hb"), b"Welcome to ct1!", LOST),
        FakeStream(line(**END)),
    )
    assert watch.launch() == END
    (command,) = watch.links[1].commands
    assert command.endswith(f"runner.pyz follow /s/runs/r1 {len(first) + 1}")
    assert watch.kinds() == ["sent", "run", "noise", "disconnected", "reconnected", "end"]


def test_an_unknown_exit_status_is_a_loss_not_an_end() -> None:
    watch = Watch(FakeStream(line(n=1, e="run"), rc=None), FakeStream(line(**END)))
    assert watch.launch() == END


def test_a_silent_host_is_given_up_and_called_again() -> None:
    watch = Watch(FakeStream(line(n=1, e="run"), SILENT), FakeStream(line(**END)))
    assert watch.launch() == END
    (lost,) = [e for e in watch.events if e["e"] == "disconnected"]
    assert "nothing heard from the host" in lost["reason"]


def test_when_the_host_does_not_come_back_contact_is_lost_and_the_next_command_is_named() -> None:
    watch = Watch(FakeStream(line(n=1, e="run"), LOST))
    with pytest.raises(ContactLost) as caught:
        watch.launch()
    assert caught.value.exit_code == 8
    assert (
        "goes on by itself" in caught.value.render() and "ddtree-deploy attach ct1" in caught.value.render()
    )


def test_a_launch_that_failed_on_the_host_says_why_and_is_not_tried_again() -> None:
    watch = Watch(FakeStream(rc=1, err=b"OSError: No space left on device\n"), FakeStream(line(**END)))
    with pytest.raises(GateFailed, match="No space left"):
        watch.launch()
    assert watch.links[1].commands == []


def test_a_runner_that_died_is_reported_as_the_host_says_it() -> None:
    lost = {"e": "lost", "verdict": "fail", "exit": 3, "state": "needs a person", "step": "install"}
    watch = Watch(FakeStream(line(n=1, e="run"), line(**lost)))
    assert watch.launch() == lost


def test_a_follower_that_ends_twice_without_news_has_said_nothing_of_the_run() -> None:
    watch = Watch(FakeStream(line(n=1, e="run"), rc=8), FakeStream(rc=8, err=b"odd\n"))
    with pytest.raises(ContactLost, match="odd") as caught:
        watch.launch()
    assert "whether the run goes on is not known" in caught.value.render()


def test_a_launch_of_which_no_word_was_heard_has_started_nothing_and_one_that_spoke_may_have() -> None:
    for heard in (False, True):
        watch = Watch(FakeStream(*[line(e="hb")] * heard, rc=1, err=b"killed\n"), FakeStream(line(**END)))
        if heard:
            assert watch.launch() == END
        else:
            with pytest.raises(GateFailed, match="killed"):
                watch.launch()
            assert not watch.follower.sight.open


def test_a_last_byte_that_may_have_arrived_is_asked_for() -> None:
    stream = FakeStream()
    watch = Watch(stream, FakeStream(line(n=1, e="run"), line(**END)))

    def broken(data: bytes) -> None:
        if len(data) == 1:
            raise LinkLost("the connection ended while sending")

    stream.on_send = broken
    assert watch.launch() == END


def test_a_run_that_is_not_found_after_a_loss_is_not_said_to_be_over() -> None:
    watch = Watch(FakeStream(LOST), FakeStream(rc=2, err=b"can't open file 'runner.pyz'\n"))
    outcome = watch.follower.sight.settle("ct1", "rollout", watch.interrupts, watch.launch)  # type: ignore[arg-type]
    assert (outcome.exit_code, outcome.step) == (8, "launch") and "runner.pyz" in outcome.reason


def test_a_launch_that_ended_by_itself_while_it_was_sent_is_listened_to() -> None:
    said = {"e": "end", "exit": 2, "verdict": "fail", "state": "nothing was changed", "reason": "the plan"}
    stream = FakeStream(line(**said), rc=2)
    watch = Watch(stream)

    def broken(data: bytes) -> None:
        raise LinkLost("the connection ended while sending (channel closed)")

    stream.on_send = broken
    assert watch.launch() == said


def test_a_line_that_no_parser_takes_is_noise() -> None:
    watch = Watch(FakeStream(b"[" * 100_000, line(n=1, e="run"), line(**END)))
    assert watch.launch() == END
    assert watch.kinds() == ["sent", "noise", "run", "end"]


def test_an_interrupt_is_passed_on_once_and_the_host_s_verdict_awaited() -> None:
    stopped = END | {"verdict": "interrupted", "exit": 130, "state": "as before"}
    stream = FakeStream(line(n=1, e="run"), lambda: None, line(n=2, e="undo"), line(**stopped))
    watch = Watch(stream)
    stream.script[1] = lambda: watch.interrupts._caught(2, None)
    assert watch.launch()["exit"] == 130
    assert stream.sent.count(b"interrupt\n") == 1


def test_an_interrupt_is_told_again_to_the_follower_after_a_reconnect() -> None:
    first = FakeStream(line(n=1, e="run"), lambda: None, lambda: None, LOST)
    second = FakeStream(line(**END))
    watch = Watch(first, second)
    first.script[1] = lambda: watch.interrupts._caught(2, None)
    watch.launch()
    assert first.sent.count(b"interrupt\n") == 1 and second.sent == [b"interrupt\n"]


def test_a_second_interrupt_leaves_the_host_to_it() -> None:
    stream = FakeStream(line(n=1, e="run"), lambda: None, lambda: None, SILENT)
    watch = Watch(stream)
    stream.script[1] = stream.script[2] = lambda: watch.interrupts._caught(15, None)
    with pytest.raises(ContactLost, match="interrupted twice"):
        watch.launch()


def test_a_second_interrupt_also_ends_the_wait_for_a_lost_host() -> None:
    patience = Patience(reconnect_s=600, first_pause_s=300, longest_pause_s=300)
    stream = FakeStream(line(n=1, e="run"), LOST)
    watch = Watch(stream, patience=patience)
    watch.interrupts.count = 1

    def dial() -> Any:
        watch.interrupts._caught(2, None)
        raise TransportError("connection refused")

    watch.follower.connect = dial
    with pytest.raises(ContactLost, match="interrupted while contact was lost"):
        watch.launch()


def test_a_signal_before_the_last_byte_starts_nothing() -> None:
    stream = FakeStream()
    watch = Watch(stream)

    def signalled(data: bytes) -> None:
        watch.interrupts._caught(2, None)

    stream.on_send = signalled
    with pytest.raises(KeyboardInterrupt):
        watch.launch()
    assert b"".join(stream.sent) == b"carg"


def test_a_connection_that_ends_while_sending_has_started_nothing() -> None:
    stream = FakeStream()
    watch = Watch(stream)

    def broken(data: bytes) -> None:
        watch.links[0].alive = False
        raise LinkLost("the host took nothing")

    stream.on_send = broken
    with pytest.raises(DeployError) as caught:
        watch.launch()
    assert caught.value.exit_code == 4 and "nothing was touched" in caught.value.render()


def test_heartbeats_are_sent_while_the_host_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtree_deploy.running.follow.HEARTBEAT_S", 0.0)
    stream = FakeStream(line(n=1, e="run"), lambda: None, lambda: None, line(**END))
    Watch(stream).launch()
    assert stream.sent.count(b"hb\n") >= 3
