"""Services that run other code than hosts.yaml says, or that somebody else answers for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.controller import Result
from tests.lab.fake_venv import VENV, site_packages
from tests.lab.gated import Gated
from tests.lab.hosts import wait_for
from tests.lab.image import COMMAND

from .test_on_good_hosts import entry, main_pid

pytestmark = pytest.mark.lab
UNITS = "/etc/systemd/system"
ODD = f"{UNITS}/sglang.service.d/odd.conf"
OLD = "/opt/sglang/venv-old"
FRONT = """
import socket, threading
def pump(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
with socket.create_server(("127.0.0.1", 30080)) as s:
    while True:
        a, b = s.accept()[0], socket.create_connection(("127.0.0.1", 30000))
        for pair in ((a, b), (b, a)):
            threading.Thread(target=pump, args=pair, daemon=True).start()
"""


def restart(deployment: Gated) -> None:
    deployment.host.run("systemctl daemon-reload; systemctl restart sglang")
    wait_for(deployment.host.generates, "tokens")
    deployment.before = deployment.look()


@pytest.fixture
def odd(deployment: Gated) -> Iterator[Gated]:
    """A deployment whose unit is made odd by the test, by a drop-in; put right again."""
    deployment.host.run(f"mkdir -p {UNITS}/sglang.service.d")
    yield deployment
    deployment.host.run(f"rm -rf {UNITS}/sglang.service.d")
    restart(deployment)


def unit(deployment: Gated, *lines: str, running: bool = True) -> None:
    """The drop-in, and a service that was started with it."""
    deployment.host.path(ODD).write_text("\n".join(["[Service]", *lines, ""]))
    if running:
        restart(deployment)
    else:
        deployment.host.run("systemctl daemon-reload; systemctl stop sglang")
        deployment.before = deployment.look()


def plan(deployment: Gated) -> Result:
    words = ["--payload", str(deployment.payload), "--playbook", str(deployment.folder / "rollout.yaml")]
    return deployment.controller.run("plan", deployment.host.name, *words)


def refused(deployment: Gated, *words: str, code: int = 6) -> None:
    """By plan and by a rollout, in these words, with nothing touched."""
    pid, look = main_pid(deployment), deployment.look()
    for done in (plan(deployment), deployment.rollout()):
        said = str(done.expect(code))
        assert [word for word in words if word not in said] == [], said
    assert (main_pid(deployment), deployment.look()) == (pid, look)


def copy_of_the_venv(deployment: Gated) -> str:
    """venv-old, whose interpreter finds its own packages; its site-packages."""
    deployment.host.run(f"rm -rf {OLD}; cp -a {VENV} {OLD}")
    return str(site_packages(deployment.host.root)).replace(str(deployment.host.root), "").replace(VENV, OLD)


@pytest.mark.parametrize("running", [True, False], ids=["up", "down"])
def test_case_31_a_unit_that_runs_another_venv_is_refused(odd: Gated, running: bool) -> None:
    site = copy_of_the_venv(odd)
    unit(odd, "ExecStart=", f"ExecStart={COMMAND.replace(VENV, OLD)}", running=running)
    refused(odd, f"site-packages is {site}, planned for ", f"sglang is {site}/sglang, planned for ")
    odd.host.run(f"rm -rf {OLD}")


def test_case_31_a_wrapper_is_told_by_the_process_that_serves(odd: Gated) -> None:
    site = copy_of_the_venv(odd)
    shell = f"{COMMAND.replace(VENV, OLD)} --speculative-ddtree-budget 16; exit 0"
    unit(odd, "ExecStart=", f"ExecStart=/bin/sh -c '{shell}'")
    entry(odd, service=odd.host.inventory()["service"])  # without edits of the launch, which it refuses
    refused(odd, f"sglang is {site}/sglang, planned for ")
    unit(odd, "ExecStart=", f"ExecStart=/bin/sh -c '{shell.replace(OLD, VENV)}'", running=False)
    said = str(plan(odd).expect(0))
    assert "which code the service imports is unknown" in said and "a shell (sh)" in said, said
    odd.host.run(f"rm -rf {OLD}")


@pytest.mark.parametrize(
    "lines",
    [
        ["WorkingDirectory=/srv/checkout"],
        ["WorkingDirectory=-/srv/checkout"],
        ["Environment=PYTHONPATH=/nowhere:/srv/checkout"],
    ],
    ids=["folder", "folder-optional", "path"],
)
def test_case_32_a_checkout_that_comes_before_the_venv_is_refused(odd: Gated, lines: list[str]) -> None:
    package = str(site_packages(odd.host.root) / "sglang").replace(str(odd.host.root), "")
    odd.host.run(f"mkdir -p /srv/checkout && cp -a {package} /srv/checkout/")
    unit(odd, *lines)
    refused(odd, f"sglang is /srv/checkout/sglang, planned for {package}")
    odd.host.run("rm -rf /srv/checkout")


def test_case_32_a_venv_that_is_mounted_over_for_the_service_is_refused(odd: Gated) -> None:
    copy_of_the_venv(odd)
    unit(odd, f"BindPaths={OLD}:{VENV}")
    refused(odd, f"is not the host's (BindPaths={OLD}:{VENV}")
    odd.host.run(f"rm -rf {OLD}")


def test_case_31_a_bytecode_cache_elsewhere_is_refused_for_the_users_service_too(odd: Gated) -> None:
    unit(odd, "User=sgl", "Environment=PYTHONPYCACHEPREFIX=/home/sgl/cache")
    refused(odd, "its bytecode is /home/sgl/cache, planned for beside the sources")


def test_case_32_what_changes_nothing_is_rolled_out(odd: Gated) -> None:
    """A working folder, a path and options of its own, and yet the venv's code."""
    odd.host.run("mkdir -p /srv/modules; touch /srv/modules/own.py")
    command = COMMAND.replace(f"{VENV}/bin/python -m", f"/usr/bin/env A=1 {VENV}/bin/python -u -X dev -m")
    unit(
        odd,
        "WorkingDirectory=~",
        "Environment=PYTHONPATH=/srv/modules PYTHONUNBUFFERED=1",
        "User=sgl",
        "ExecStart=",
        f"ExecStart={command}",
    )
    odd.rollout().expect(0)
    odd.rollback().expect(0)
    odd.host.run("rm -rf /srv/modules")


def test_case_31_the_process_is_asked_again_after_the_start(odd: Gated) -> None:
    """Between preflight and start the working folder turns into a checkout."""
    package = str(site_packages(odd.host.root) / "sglang").replace(str(odd.host.root), "")
    odd.host.run("mkdir -p /srv/work")
    unit(odd, "WorkingDirectory=/srv/work")
    odd.gate("install")
    running = odd.begin()
    odd.host.run(f"cp -a {package} /srv/work/")
    odd.open()
    done = running.finish().expect(1, "start")
    assert f"sglang is /srv/work/sglang, planned for {package}" in str(done), done
    odd.host.run("rm -rf /srv/work/sglang")


@pytest.fixture
def front(deployment: Gated) -> Iterator[Gated]:
    """front.service forwards 30080 to the service's 30000."""
    host = deployment.host
    host.path("/srv/front.py").write_text(FRONT)
    host.run("systemd-run -q --unit=front /usr/bin/python3 -I /srv/front.py")
    wait_for(lambda: host.run("ss -Hltn sport = 30080").stdout != "", "the proxy to listen")
    yield deployment
    host.run("systemctl stop front; rm -f /srv/front.py")


@pytest.mark.parametrize("kill", [False, True])
def test_case_26_a_proxy_at_the_endpoint_is_refused_and_never_signalled(front: Gated, kill: bool) -> None:
    service = front.host.inventory()["service"] | {"endpoint": "http://127.0.0.1:30080"}
    entry(front, service=service | {"stop": {"kill": kill}})
    proxy = front.host.unit("front.service")["MainPID"]
    refused(
        front,
        f"is process {proxy} (",
        "of unit front.service, no process of the service",
        code=2,
    )
    assert front.host.unit("front.service")["MainPID"] == proxy


def test_case_26_the_undo_of_a_stop_starts_the_old_service_beside_a_stranger(front: Gated) -> None:
    """It holds the very port: it is named, and lives on; when it is gone, `recover` ends the undo."""
    host = front.host
    front.gate("install")
    running = front.begin()
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 30000)); time.sleep(600)"
    host.run(f'systemd-run -q --unit=squatter /usr/bin/python3 -I -c "{code}"')
    wait_for(lambda: host.run("ss -Hltn sport = 30000").stdout != "", "the stranger to listen")
    squatter = host.unit("squatter.service")["MainPID"]
    front.host.mood(when={"DDTREE": {"exit_at_once": 3}})
    front.open()
    done = running.finish().expect(3)
    assert f"process {squatter} (" in str(done), done
    assert host.unit("squatter.service")["MainPID"] == squatter, "it is not ours to end"
    host.run("systemctl stop squatter")
    front.controller.run("recover", host.name).expect(0)
    wait_for(host.generates, "tokens")
    assert front.algorithm() == "DFLASH"
