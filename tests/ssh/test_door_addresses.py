"""Forms of one address: what OpenSSH's client files under one of them is found under all."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_deploy import ssh
from ddtree_deploy.errors import HostKeyError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.sandbox.sshd import SshServer
from ddtree_deploy.ssh import known_hosts
from tests.need import lacking
from tests.ssh.test_connect import own_line

pytestmark = pytest.mark.ssh

FORMS = ["::1", "0:0:0:0:0:0:0:1", "::0001", "0::0:1"]
FORMS_4 = ["127.0.0.1", "127.1", "::ffff:127.0.0.1", "::FFFF:7f00:1", "localhost", "LocalHost"]


@pytest.fixture(scope="module")
def v6(server: SshServer) -> Iterator[int]:
    """A port on ::1 that leads to the server."""
    loop = asyncio.new_event_loop()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(server.address, server.port)
        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    try:
        listener = loop.run_until_complete(asyncio.start_server(relay, "::1", 0))
    except OSError:
        loop.close()
        lacking("no IPv6 on loopback here", "SSHD")
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield listener.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def filed(server: SshServer, address: str, port: int, file: Path) -> None:
    """Have OpenSSH's client file the host."""
    argv = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
    argv += [
        "-o",
        f"UserKnownHostsFile={file}",
        "-o",
        "GlobalKnownHostsFile=none",
        "-o",
        "IdentitiesOnly=yes",
    ]
    argv += ["-i", str(server.identity), "-p", str(port), address, "true"]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("form", FORMS)
def test_case_48_what_openssh_files_under_one_form_of_an_ipv6_address_is_found_under_each(
    server: SshServer, host: Host, v6: int, tmp_path: Path, form: str
) -> None:
    filed(server, form, v6, tmp_path / "known")
    for other in [*FORMS, "[::1]"]:
        there = dataclasses.replace(host, address=other.strip("[]"), port=v6, known_hosts=tmp_path / "known")
        ssh.connect(there).close()
        assert known_hosts.host_name(other, v6) == f"[::1]:{v6}"


@pytest.mark.parametrize("form", FORMS_4)
def test_case_48_openssh_and_we_file_under_the_same_name(
    server: SshServer, host: Host, tmp_path: Path, form: str
) -> None:
    filed(server, form, server.port, tmp_path / "known")
    assert (tmp_path / "known").read_text().split()[0] == known_hosts.host_name(form, server.port)
    there = dataclasses.replace(host, address=form, known_hosts=tmp_path / "known")
    ssh.connect(there).close()


@pytest.mark.parametrize("form", FORMS)
def test_case_48_what_trust_writes_openssh_finds(
    server: SshServer, host: Host, v6: int, tmp_path: Path, form: str
) -> None:
    file = tmp_path / "known"
    there = dataclasses.replace(host, address=form, port=v6, known_hosts=file)
    with pytest.raises(HostKeyError, match=f"the host key of \\[::1\\]:{v6} is not known"):
        ssh.connect(there)
    kind, key = ssh.offered_key(there)
    known_hosts.accept(file, form, v6, kind, key)
    assert file.read_text() == f"[::1]:{v6} {own_line(host)}\n"
    before = file.read_text()
    filed(server, form, v6, file)
    assert file.read_text() == before
