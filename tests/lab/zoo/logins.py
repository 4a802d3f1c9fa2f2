"""Traits of the login, of the system around it, and of services that no unit runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.lab.fake_venv import VENV
from tests.lab.zoo.draft import SGL, Draft, File, move_venv, own

HERE = Path(__file__).parent
AS_SGL = "setpriv --reuid sgl --regid sgl --init-groups env HOME=/home/sgl USER=sgl sh -c"


# Shells


def _shell(draft: Draft, shell: str, user: str = "root") -> None:
    def act(root: Path) -> None:
        passwd = root / "etc/passwd"
        lines = [f"{line.rpartition(':')[0]}:{shell}" if line.startswith(f"{user}:") else line
                 for line in passwd.read_text().splitlines()]  # fmt: skip
        passwd.write_text("\n".join(lines) + "\n")

    draft.acts.append(act)


def dash_login(draft: Draft) -> None:
    _shell(draft, "/bin/dash")


def no_login(draft: Draft) -> None:
    _shell(draft, "/usr/sbin/nologin")
    draft.refused.append("nologin|shell|account|not available|closed|answer")


def noisy_rc(draft: Draft) -> None:
    draft.file("/root/.bashrc", "echo Welcome to gpu-7\necho 'disk 93% full' >&2\nprintf 'no newline'\n")


def moving_rc(draft: Draft) -> None:
    """Changes folder, path, umask, and names of commands."""
    draft.files.append(File("/srv/work"))
    text = "cd /srv/work\numask 077\nexport PATH=/opt/none:/usr/bin TMPDIR=/nonexistent\n"
    text += "alias exec=echo python3=false\n"
    draft.file("/root/.bashrc", text)


def lost_path(draft: Draft) -> None:
    draft.file("/root/.bashrc", "PATH=/opt/none\n")
    draft.refused.append("systemctl|PATH")


def python_rc(draft: Draft) -> None:
    """An environment that would change what Python does."""
    draft.file("/srv/evil/sitecustomize.py", "raise SystemExit('never import me')\n")
    draft.file(
        "/root/.bashrc",
        "export PYTHONPATH=/srv/evil PYTHONHOME= PYTHONSTARTUP=/srv/evil/x PYTHONWARNINGS=error\n",
    )


def bytes_rc(draft: Draft) -> None:
    draft.file("/root/.bashrc", b"printf 'Gr\\374\\337e aus K\\366ln\\n'; printf 'auf stderr \\377\\n' >&2\n")


def low_limits_rc(draft: Draft) -> None:
    draft.file("/root/.bashrc", "ulimit -n 128\nulimit -c 0\nnice_value=5\n")


def umask_077(draft: Draft) -> None:
    """All that we write is closed, and the service has a user of its own."""
    draft.file("/root/.bashrc", "umask 077\n")
    draft.lines += ["User=sgl"]


def exiting_rc(draft: Draft) -> None:
    """Ends every shell that is not a person's."""
    draft.file("/root/.bashrc", "echo 'no scripts here'; exit 0\n")
    draft.refused.append("answer|login|shell|no scripts here|printed|said")


def strict_rc(draft: Draft) -> None:
    draft.file("/root/.bashrc", "set -eu\nset -o pipefail\n")


# sudo


def _sudo(draft: Draft, policy: str) -> None:
    def act(root: Path) -> None:
        folder = root / "opt/sudo"
        folder.mkdir()
        shutil.copy("/usr/bin/python3", folder / "python")
        (folder / "python").chmod(0o4755)
        shutil.copy(HERE / "fake_sudo.py", folder / "sudo")
        (folder / "sudo").chmod(0o755)
        (folder / "policy").write_text(policy + "\n")
        with (root / "etc/ssh/sshd_config").open("a") as config:
            config.write("SetEnv PATH=/opt/sudo:/usr/bin:/bin\n")

    draft.acts.append(act)
    draft.entry |= {"user": "sgl", "become": True}


def sudo(draft: Draft) -> None:
    _sudo(draft, "nopasswd")


def sudo_noisy(draft: Draft) -> None:
    _sudo(draft, "nopasswd")
    draft.file("/home/sgl/.bashrc", "echo Welcome; umask 077\n", owner=SGL)


def sudo_password(draft: Draft) -> None:
    _sudo(draft, "password hunter2")
    draft.refused.append("password")


def sudo_stranger(draft: Draft) -> None:
    _sudo(draft, "stranger")
    draft.refused.append("password|sudoers")


def sudo_tty(draft: Draft) -> None:
    _sudo(draft, "tty")
    draft.refused.append("must have a tty")


def sudo_command(draft: Draft) -> None:
    """Other commands are allowed to him."""
    _sudo(draft, "command")
    draft.refused.append("not allowed to execute")


def no_root(draft: Draft) -> None:
    draft.entry["user"] = "sgl"
    draft.refused.append("root|become|permission")


# System


def locale_c(draft: Draft) -> None:
    draft.file("/etc/default/locale", "LANG=C\nLC_ALL=C\n")
    draft.file("/etc/locale.conf", "LANG=C\n")
    draft.file("/root/.bashrc", "export LANG=C LC_ALL=POSIX\n")


def locale_odd(draft: Draft) -> None:
    draft.file("/etc/locale.conf", "LANG=tr_TR.ISO-8859-9\n")
    draft.file("/root/.bashrc", "export LC_ALL=tr_TR.ISO-8859-9 LANGUAGE=tr\n")


def noexec_tmp(draft: Draft) -> None:
    draft.live.append(
        "mount -o remount,noexec,nosuid,nodev /tmp; mount -t tmpfs -o noexec,mode=1777 tmpfs /var/tmp"
    )


def tiny_tmp(draft: Draft) -> None:
    draft.live.append(
        "mount -t tmpfs -o size=64k,mode=1777 tmpfs /tmp; dd if=/dev/zero of=/tmp/full bs=1k count=99 || true"
    )


def noexec_var(draft: Draft) -> None:
    draft.live.append("mount --bind /var /var && mount -o remount,bind,noexec,nosuid /var")


def small_disk(draft: Draft) -> None:
    draft.disk_mb = 96


def too_small_disk(draft: Draft) -> None:
    draft.disk_mb = 32
    draft.refused.append("MiB free|space")


def read_only_etc(draft: Draft) -> None:
    """An image-based system: /etc cannot be written."""
    draft.live.append("mount --bind /etc /etc && mount -o remount,bind,ro /etc")
    draft.refused.append("read-only|cannot be written|permission|/etc/systemd")


def read_only_state(draft: Draft) -> None:
    draft.live.append("mount --bind /var/lib /var/lib && mount -o remount,bind,ro /var/lib")
    draft.refused.append("read-only|cannot be written|state")


def own_state(draft: Draft) -> None:
    draft.entry["state_dir"] = "/srv/state/ddtree"


def loose_unit(draft: Draft) -> None:
    """A unit that is executable and open to all: systemd grumbles and goes on."""
    draft.acts.append(lambda root: None)
    draft.live.append("chmod 0777 /etc/systemd/system/sglang.service; systemctl daemon-reload")


def empty_drop_in_folder(draft: Draft) -> None:
    draft.files.append(File("/etc/systemd/system/sglang.service.d", mode=0o700))


# Services that no unit runs


def _by_hand(draft: Draft, start: str) -> None:
    draft.kind, draft.installed = "adopted", False
    draft.service["stop"] = {"drain": "2s", "limit": "20s"}
    draft.logins.append(start)


def nohup(draft: Draft) -> None:
    _by_hand(
        draft,
        f"cd /srv; umask 027; FOO='a b' nohup {draft.command} > /root/sgl.log 2>&1 < /dev/null & sleep 0.1",
    )


def setsid(draft: Draft) -> None:
    _by_hand(draft, f"setsid -f {draft.command} > /root/sgl.log 2>&1 < /dev/null")


def tmux(draft: Draft) -> None:
    _by_hand(draft, f"tmux new-session -d -s sgl '{draft.command}'")


def tmux_shell(draft: Draft) -> None:
    """Typed into a shell in tmux: the shell must stay."""
    _by_hand(
        draft, f"tmux new-session -d -s sgl bash; sleep 0.3; tmux send-keys -t sgl '{draft.command}' Enter"
    )


def nohup_script(draft: Draft) -> None:
    """A shell script that waits for the server."""
    draft.file("/root/run.sh", f"#!/bin/bash\ncd /srv\nexport NCCL_DEBUG=WARN\n{draft.command}\n", 0o755)
    _by_hand(draft, "nohup /root/run.sh > /root/sgl.log 2>&1 < /dev/null & sleep 0.1")


def nohup_user(draft: Draft) -> None:
    """Another user's, in that user's venv; started by root, in a folder that he cannot enter."""
    draft.acts.append(own(VENV, SGL))
    start = f"setsid -f {draft.command} > /tmp/sgl.log 2>&1 < /dev/null"
    _by_hand(draft, f'{AS_SGL} "{start}"')


def nohup_user_from_home(draft: Draft) -> None:
    nohup_user(draft)
    draft.logins = [f"cd /home/sgl; {login}" for login in draft.logins]


def user_alone(draft: Draft) -> None:
    """No root anywhere: the SSH user's own venv, server and state."""
    move_venv(draft, "/home/sgl/venv")
    draft.acts.append(own("/home/sgl/venv", SGL))
    draft.acts.append(own("/home/sgl", SGL))
    start = f"setsid -f {draft.command} > /tmp/sgl.log 2>&1 < /dev/null"
    _by_hand(
        draft,
        f'cd /home/sgl; {AS_SGL} "{start}"',
    )
    draft.entry["user"] = "sgl"


def adopted_unit(draft: Draft) -> None:
    """hosts.yaml says `adopted` of what a unit runs."""
    draft.kind = "adopted"
    draft.refused.append("systemd")
