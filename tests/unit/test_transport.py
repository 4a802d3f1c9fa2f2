"""An answer that comes before anybody waits for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_deploy.ssh.library import paramiko
from ddtree_deploy.ssh.transport import _Handler


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


def test_an_answer_that_is_still_to_come_is_waited_for() -> None:
    asked = handler(transport=SimpleNamespace(auth_timeout=0, is_active=lambda: True))
    with pytest.raises(paramiko.AuthenticationException, match="timeout"):
        asked.wait_for_response(threading.Event())
