"""The lab is what it says: real hosts, real faults."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import faults, registry
from tests.lab.hosts import Host, Lab, wait_for
from tests.lab.image import Image
from tests.lab.wan import wan

pytestmark = pytest.mark.lab
AddHosts = Callable[..., list[Host]]


def test_two_hosts_boot_with_systemd_as_pid_1_and_serve(add_hosts: AddHosts) -> None:
    for host in add_hosts(2):
        assert host.ssh("uname -n; cat /proc/1/comm; systemctl is-active sglang").stdout.split() == [
            host.name,
            "systemd",
            "active",
        ]
        wait_for(host.generates, "tokens")
        assert host.run("systemctl --failed --no-legend").stdout == ""


def test_an_unknown_or_changed_host_key_is_refused(lab: Lab, add_hosts: AddHosts) -> None:
    one, two = add_hosts(2)
    lines = lab.known_hosts.read_text()
    keys = dict(line.split(" ", 1) for line in lines.splitlines())
    keys[one.address] = keys[two.address]
    try:
        lab.known_hosts.write_text("".join(f"{name} {key}\n" for name, key in keys.items()))
        refused = one.ssh("true", check=False)
        assert refused.returncode == 255 and "IDENTIFICATION HAS CHANGED" in refused.stderr
        lab.known_hosts.write_text("")
        assert one.ssh("true", check=False).returncode == 255
    finally:
        lab.known_hosts.write_text(lines)
    assert one.ssh("true").returncode == 0


def test_a_restart_is_a_new_process(host: Host) -> None:
    before = host.unit()["MainPID"]
    host.ssh("systemctl restart sglang")
    after = host.unit()
    assert after["ActiveState"] == "active" and after["MainPID"] not in ("0", before)
    assert not any("LISTEN" in line and before in line for line in host.run("ss -ltnp").stdout.splitlines())


def test_a_crash_loop_fails_although_the_restart_returned_0(host: Host) -> None:
    host.mood(exit_at_once=3)
    assert host.ssh("systemctl restart sglang", check=False).returncode == 0
    wait_for(lambda: int(host.unit()["NRestarts"]) >= 1, "systemd to try again")


def test_a_reboot_comes_back_with_another_boot_id_and_the_same_files(host: Host) -> None:
    before = host.boot_id()
    host.ssh("echo kept > /var/lib/kept; echo lost > /run/lost; sync")
    host.reboot()
    assert host.boot_id() != before
    assert host.ssh("cat /var/lib/kept; ls /run/lost", check=False).stdout == "kept\n"
    wait_for(host.generates, "tokens")


def test_a_power_cut_ends_everything_at_once(host: Host) -> None:
    before = host.boot_id()
    session = subprocess.Popen(
        [*host.lab.ssh_command(), "-o", "ServerAliveInterval=1", host.address, "cat"], stdin=-1
    )
    wait_for(lambda: any(True for _ in host.pids("user.slice")), "the session")
    with faults.power_cut(host):
        assert not host.answers(timeout=0.5) and not list(host.pids())
        assert not host.generates()
        assert session.wait(60) == 255
    assert host.boot_id() != before


def test_a_frozen_host_is_noticed_by_a_deadline_and_goes_on(host: Host) -> None:
    pid = host.unit()["MainPID"]
    with faults.frozen(host):
        with host.lab.inside():
            socket.create_connection((host.address, 22), 5).close()  # the kernel answers
        assert not host.answers(timeout=0.5)
    assert host.answers() and host.unit()["MainPID"] == pid


def test_a_stopped_sshd_leaves_the_service_alone(host: Host) -> None:
    with faults.sshd_stopped(host):
        assert not host.answers(timeout=0.5) and host.generates()
    assert host.answers()


def test_killing_the_sessions_sshd_ends_the_connection_not_what_was_detached(host: Host) -> None:
    command = "systemd-run -q --unit=detached sleep 1000; echo begun; exec sleep 1000"
    session = subprocess.Popen(
        [*host.lab.ssh_command(), host.address, command], stdout=subprocess.PIPE, text=True
    )
    assert session.stdout is not None and session.stdout.readline() == "begun\n"
    assert faults.cut_sessions(host)
    assert session.wait(60) == 255
    assert host.run("systemctl is-active detached").stdout == "active\n"


def test_a_full_disk_gives_enospc_half_way_and_space_comes_back(add_hosts: AddHosts) -> None:
    (host,) = add_hosts(1, disk_mb=48)
    with faults.full_disk(host, leave=64 * 1024):
        done = host.ssh("dd if=/dev/zero of=/var/lib/big bs=4k count=100", check=False)
        assert "No space left on device" in done.stderr
        assert 0 < host.path("/var/lib/big").stat().st_size <= 64 * 1024
    host.ssh("dd if=/dev/zero of=/var/lib/big bs=4k count=100")
    with pytest.raises(ValueError, match="own disk"), faults.full_disk(add_hosts(1, boot=False)[0]):
        pass


def test_a_small_disk_runs_out_of_bytes_and_of_inodes(host: Host) -> None:
    host.ssh("mkdir -m 700 /srv/state; echo old > /srv/state/old")
    with faults.small_disk(host, "/srv/state", size="100k", inodes=4):
        assert (
            host.ssh("cd /srv/state; cat old; stat -c %a .; touch a b c d e", check=False).stdout
            == "old\n700\n"
        )
        assert "No space left" in host.ssh("touch /srv/state/z", check=False).stderr
    assert host.ssh("ls /srv/state").stdout == "old\n"


def test_a_read_only_venv_and_an_immutable_file(host: Host) -> None:
    venv = "/opt/sglang/venv"
    with faults.read_only(host, venv):
        assert "Read-only file system" in host.ssh(f"touch {venv}/x", check=False).stderr
        assert host.generates()
    with faults.immutable(host, f"{venv}/pyvenv.cfg"):
        assert "not permitted" in host.ssh(f"mv {venv}/pyvenv.cfg {venv}/y", check=False).stderr
    host.ssh(f"touch {venv}/x; rm {venv}/x")


def _ssh_cat(host: Host) -> subprocess.Popen[str]:
    session = subprocess.Popen(
        [*host.lab.ssh_command(), "-o", "ServerAliveInterval=0", host.address, "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _echo(session, "one\n")
    return session


def _echo(session: subprocess.Popen[str], text: str) -> None:
    assert session.stdin is not None and session.stdout is not None
    session.stdin.write(text)
    session.stdin.flush()
    assert session.stdout.readline() == text


def test_a_session_survives_a_short_cut_and_loss(host: Host) -> None:
    session = _ssh_cat(host)
    with faults.cut(host):
        assert not host.answers(timeout=0.5)
    _echo(session, "two\n")
    with faults.loss(host, 1.0):
        assert not host.answers(timeout=0.5)
    _echo(session, "three\n")
    with faults.loss(host, 0.2):
        _echo(session, "four\n")
    assert session.stdin is not None
    session.stdin.close()
    assert session.wait(60) == 0


def test_a_reset_ends_a_session(host: Host) -> None:
    session = _ssh_cat(host)
    with faults.reset(host):
        assert session.stdin is not None
        session.stdin.write("two\n")
        session.stdin.close()
        assert session.wait(60) == 255
        with host.lab.inside(), pytest.raises(ConnectionRefusedError):
            socket.create_connection((host.address, 22), 5)


def _connect_ms(host: Host) -> float:
    with host.lab.inside():
        start = time.monotonic()
        socket.create_connection((host.address, 22), 60).close()
        return (time.monotonic() - start) * 1e3


def test_the_wan_delays_cuts_and_limits(lab: Lab, host: Host) -> None:
    with wan(lab) as line:
        direct = min(_connect_ms(host) for _ in range(5))
        line.set(delay_ms=20)
        assert min(_connect_ms(host) for _ in range(3)) >= 40
        assert direct < 40
        line.set(cut=True)
        assert not host.answers(timeout=0.5)
        line.set(rate=100_000)
        start = time.monotonic()
        host.ssh("cat > /dev/null", stdin=os.urandom(200_000))
        assert time.monotonic() - start >= 1.5
        line.set()
        host.ssh("true")
    assert host.answers()


def test_the_controller_can_be_killed_while_its_command_goes_on(host: Host) -> None:
    command = "exec sh -c 'trap \"\" HUP; echo begun; sleep 1000'"
    controller = subprocess.Popen(
        [*host.lab.ssh_command(), host.address, command],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert controller.stdout is not None and controller.stdout.readline() == "begun\n"
    assert faults.kill_controller(controller) == -signal.SIGKILL
    assert host.run("pgrep -f 'sleep 1000'").stdout


def test_a_service_that_is_not_enabled_does_not_start(add_hosts: AddHosts) -> None:
    (host,) = add_hosts(1, Image(enabled=False))
    assert host.unit()["ActiveState"] == "inactive" and not host.generates()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_test_run_leaves_nothing_that_the_next_does_not_sweep(
    tmp_path: Path, sig: signal.Signals
) -> None:
    script = (
        "import sys, pathlib, signal\n"
        "from tests.lab.hosts import Lab\n"
        "lab = Lab(pathlib.Path(sys.argv[1]))\n"
        "host = lab.host(disk_mb=32)\n"
        "print(lab.record.lab, host.cgroup, host.root, flush=True)\n"
        "signal.pause()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    name, cgroup, root = child.stdout.readline().split()
    child.send_signal(sig)
    child.wait(60)
    # The keeper sees its stdin end and switches the host off; the rest waits for the sweeper.
    wait_for(lambda: "populated 0" in Path(cgroup, "cgroup.events").read_text(), "the host to go off")
    assert name in registry.sweep()
    assert not Path(cgroup).exists() and not Path(root).exists() and not list(tmp_path.iterdir())
    assert not [n for n in Path("/run/netns").iterdir() if n.name.startswith(name)]


def test_enospc_is_what_python_sees(add_hosts: AddHosts) -> None:
    (host,) = add_hosts(1, disk_mb=32)
    probe = (
        "import sys\ntry: open('/opt/x', 'wb').write(bytes(1 << 20))\nexcept OSError as e: sys.exit(e.errno)"
    )
    with faults.full_disk(host, leave=4096):
        assert host.run(f'/opt/sglang/venv/bin/python -c "{probe}"', check=False).returncode == errno.ENOSPC
