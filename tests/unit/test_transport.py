"""Answers that come before anybody waits for them, and one that never comes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_deploy.ssh import transport
from ddtree_deploy.ssh.library import paramiko
from ddtree_deploy.ssh.transport import AgentSilent, _Agents, _Handler


def handler(**state: Any) -> _Handler:
    made = _Handler.__new__(_Handler)
    made.transport = SimpleNamespace(auth_timeout=60, is_active=lambda: True, get_exception=lambda: None)
    made.authenticated, made.username = False, "root"
    vars(made).update(state)
    return made


def test_a_yes_that_came_before_it_was_waited_for() -> None:
    assert handler(authenticated=True).wait_for_response(threading.Event()) == []


def test_a_no_that_came_before_it_was_waited_for() -> None:
    with pytest.raises(paramiko.AuthenticationException, match="failed"):
        handler(username=None).wait_for_response(threading.Event())


def test_an_agent_that_does_not_sign_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SIGN_S", 0.1)
    done = threading.Event()
    mute: Any = SimpleNamespace(sign_ssh_data=lambda *args: done.wait(60), get_name=lambda: "ssh-ed25519")
    key = _Agents(mute)
    with pytest.raises(AgentSilent, match="did not sign within"):
        key.sign_ssh_data(b"", "ssh-ed25519")
    done.set()
    assert key.get_name() == "ssh-ed25519"


def test_an_answer_that_is_still_to_come_is_waited_for() -> None:
    asked = handler(transport=SimpleNamespace(auth_timeout=0, is_active=lambda: True))
    with pytest.raises(paramiko.AuthenticationException, match="timeout"):
        asked.wait_for_response(threading.Event())
