"""TCP ports on loopback for tests: no two tests on this machine share one, in whatever test run they are."""

from __future__ import annotations

import itertools
import os
import socket

# Below those that the kernel gives to outgoing connections: between the end of a server and the start of its
# successor such a connection would take the port.
RANGE = range(20000, 29000)
_ports = itertools.cycle((*RANGE[os.getpid() % len(RANGE) :], *RANGE[: os.getpid() % len(RANGE)]))
_claims: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody listens on, and that no other test gets until this process ends."""
    for port in itertools.islice(_ports, len(RANGE)):
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                claim.bind(f"\0ddtree-test-port-{port}")  # an abstract name: gone with this process
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port
    raise RuntimeError(f"no free port in {RANGE}")
