"""keeper.py ROOT CGROUP NAMESPACE NAME: the mains switch of one host, in a mount namespace of its own.

stdin:  `boot` switches on. End of file: switch off, and end: a test run that dies takes its hosts with it.
stdout: `ready`, `on`, `off STATUS`, `rebooting`.

The power is cut from outside, by cgroup.kill. A guest that asks for a reboot is started again.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

REBOOT = 133  # the status of systemd-nspawn for it


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def prepare(root: str, namespace: str) -> None:
    """Mounts that only this process and its guest see."""
    net = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    mount("--make-rslave", "/")
    mount("--bind", root, root)
    mount("--bind", "/usr", f"{root}/usr")
    mount("-o", "remount,bind,ro", f"{root}/usr")
    mount("-t", "tmpfs", "none", "/run")  # systemd-nspawn refuses a /run on a disk
    Path("/run/net").touch()
    mount("--bind", f"/proc/{os.getpid()}/fd/{net}", "/run/net")
    os.close(net)


def boot(root: str, group: Path, name: str) -> subprocess.Popen[bytes]:
    group.mkdir(exist_ok=True)
    nspawn = ["systemd-nspawn", "--quiet", f"--directory={root}", "--boot", f"--machine={name}"]
    nspawn += ["--register=no", "--keep-unit", "--network-namespace-path=/run/net", "--resolv-conf=off"]
    nspawn += ["--timezone=off", "--console=pipe", "--link-journal=no", "--"]
    nspawn += ["--show-status=no"]
    join = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
    return subprocess.Popen(
        ["sh", "-c", join, "sh", str(group), *nspawn],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        env={"PATH": os.environ["PATH"], "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
    )


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    root, group, namespace, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    prepare(root, namespace)
    say("ready")
    guest: subprocess.Popen[bytes] | None = None
    alive = -1
    while True:
        waiting, _, _ = select.select([0] + ([alive] if guest else []), [], [])
        if guest and alive in waiting:
            status = guest.wait()
            os.close(alive)
            say("rebooting" if status == REBOOT else f"off {status}")
            guest = None
            if status == REBOOT:
                guest = boot(root, group, name)
                alive = os.pidfd_open(guest.pid)
                say("on")
        if 0 in waiting:
            word = os.read(0, 100)
            if not word:
                break
            if not guest:
                guest = boot(root, group, name)
                alive = os.pidfd_open(guest.pid)
                say("on")
    if guest:
        (group / "cgroup.kill").write_text("1")
        guest.wait()


if __name__ == "__main__":
    main()
