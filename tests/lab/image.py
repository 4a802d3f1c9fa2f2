"""The root folder of a lab host: /usr is this machine's own, the rest is made here.

The root is a plain folder, so that hard links, renames and extended attributes behave as on a server's disk;
about 3 MB, copied for each host.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.fake_venv import VENV, make_venv

HERE = Path(__file__).parent
FAKE_SERVER = "/opt/sglang/fake_sglang.py"
MOOD = "/opt/sglang/mood.json"  # what the fake server is told to do
PORT = 30000
USER = "sgl"  # an ordinary user that owns nothing, for services that do not run as root

# What of this machine's /etc makes sense on a host. No keys, no package manager, no units.
ETC = """
    alternatives bash.bashrc dbus-1 debian_version default environment gai.conf group gshadow
    host.conf inputrc issue ld.so.cache ld.so.conf ld.so.conf.d locale.alias localtime login.defs
    networks nsswitch.conf os-release pam.conf pam.d passwd profile protocols python3 python3.11 rpc
    security services shells skel terminfo xattr.conf
""".split()  # noqa: SIM905

FOLDERS = """
    usr etc/ssh etc/systemd/system/multi-user.target.wants var/lib var/log var/tmp var/cache
    root/.ssh tmp run proc sys dev opt/sglang home/sgl/.ssh srv mnt
""".split()  # noqa: SIM905

# Units that cost time and mean nothing on a host without hardware; sglang and ssh are what is left.
MASKED = """
    console-getty.service getty.target systemd-binfmt.service systemd-firstboot.service
    systemd-machine-id-commit.service systemd-modules-load.service systemd-network-generator.service
    systemd-pcrphase-sysinit.service systemd-pcrphase.service systemd-random-seed.service
    systemd-remount-fs.service systemd-repart.service systemd-resolved.service
    systemd-sysctl.service systemd-sysusers.service systemd-tmpfiles-clean.timer
    systemd-update-utmp-runlevel.service systemd-update-utmp.service
    systemd-ask-password-console.path systemd-ask-password-wall.path kmod-static-nodes.service
    dev-hugepages.mount dev-mqueue.mount proc-sys-fs-binfmt_misc.automount
    sys-fs-fuse-connections.mount sys-kernel-config.mount sys-kernel-debug.mount
    sys-kernel-tracing.mount user@.service cryptsetup.target integritysetup.target
    veritysetup.target
""".split()  # noqa: SIM905

SSHD = """HostKey /etc/ssh/ssh_host_ed25519_key
UsePAM yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
PrintMotd no
PrintLastLog no
UseDNS no
"""

PAM_SSHD = """auth     required pam_permit.so
account  required pam_nologin.so
account  required pam_permit.so
session  required pam_limits.so
session  optional pam_systemd.so
"""

UNIT = """[Unit]
Description=SGLang server
After=network.target

[Service]
{user}ExecStart={command}
Restart=on-failure
RestartSec=1

[Install]
WantedBy=multi-user.target
"""

COMMAND = (
    f"{VENV}/bin/python -m sglang.launch_server --model-path /models/target --host 127.0.0.1 --port {PORT} "
    f"--speculative-algorithm DFLASH --speculative-draft-model-path /models/draft --fake-control {MOOD}"
)


@dataclass(frozen=True)
class Image:
    """What a host looks like. `command` is its unit's ExecStart; `files` are path -> text, written last."""

    command: str = COMMAND
    service: bool = True  # with sglang.service
    enabled: bool = True  # started at boot
    user: str = ""  # User= of the unit
    files: dict[str, str] = field(default_factory=dict)
    started: tuple[str, ...] = ()  # further units of these that are started at boot


def make_template(root: Path, authorized_key: str) -> None:
    """Make the part that all hosts share."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        link = Path("/", name)
        if link.is_symlink():
            (root / name).symlink_to(link.readlink())
    (root / "var/run").symlink_to("../run")
    etc = root / "etc"
    present = [f"/etc/./{name}" for name in ETC if Path("/etc", name).exists()]
    subprocess.run(
        ["cp", "--archive", "--parents", *(p[len("/etc/") :] for p in present), etc], check=True, cwd="/etc"
    )
    _users(root, authorized_key)
    (etc / "fstab").write_text("")
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    (etc / "machine-id").write_text("uninitialized\n")
    (etc / "ssh/sshd_config").write_text(SSHD)
    (etc / "pam.d/sshd").write_text(PAM_SSHD)
    _units(etc / "systemd/system")
    make_venv(root)
    server = root / FAKE_SERVER.lstrip("/")
    shutil.copy(HERE / "fake_sglang.py", server)
    subprocess.run(["/usr/bin/python3", "-m", "py_compile", server], check=True)
    for model in ("target", "draft"):
        (root / "models" / model).mkdir(parents=True)
        (root / "models" / model / "config.json").write_text('{"vocab_size": 32}\n')


def _users(root: Path, authorized_key: str) -> None:
    etc = root / "etc"
    with (etc / "passwd").open("a") as passwd, (etc / "group").open("a") as group:
        passwd.write(f"{USER}:x:990:990::/home/{USER}:/bin/bash\n")
        group.write(f"{USER}:x:990:\n")
    names = [line.split(":")[0] for line in (etc / "passwd").read_text().splitlines()]
    (etc / "shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in names))
    (etc / "shadow").chmod(0o600)
    for home, owner in (("root", 0), (f"home/{USER}", 990)):
        keys = root / home / ".ssh/authorized_keys"
        keys.write_text(authorized_key)
        for path, mode in ((keys, 0o600), (keys.parent, 0o700), (root / home, 0o700)):
            path.chmod(mode)
            shutil.chown(path, owner, owner)


def _units(units: Path) -> None:
    for name in MASKED:
        (units / name).symlink_to("/dev/null")
    generators = units.parent / "system-generators"
    generators.mkdir()
    for program in Path("/lib/systemd/system-generators").iterdir():  # they run at each daemon-reload
        (generators / program.name).symlink_to("/dev/null")
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    (units / "multi-user.target.wants/ssh.service").symlink_to("/lib/systemd/system/ssh.service")
    drop_in = (
        units / "ssh.service.d/lab.conf"
    )  # logins before systemd-user-sessions are greeted with a warning
    drop_in.parent.mkdir()
    drop_in.write_text("[Unit]\nAfter=systemd-user-sessions.service systemd-logind.service\n")


def personalize(root: Path, name: str, image: Image, machine_id: str) -> str:
    """Turn a copy of the template into one host; its public host key."""
    etc = root / "etc"
    (etc / "hostname").write_text(f"{name}\n")
    (etc / "machine-id").write_text(f"{machine_id}\n")
    with (etc / "hosts").open("a") as hosts:
        hosts.write(f"127.0.1.1 {name}\n")
    key = etc / "ssh/ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key], check=True)
    units = etc / "systemd/system"
    if image.service:
        user = f"User={image.user}\n" if image.user else ""
        (units / "sglang.service").write_text(UNIT.format(command=image.command, user=user))
        if image.enabled:
            (units / "multi-user.target.wants/sglang.service").symlink_to(
                "/etc/systemd/system/sglang.service"
            )
    for path, text in image.files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for unit in image.started:
        (units / "multi-user.target.wants" / unit).symlink_to(f"/etc/systemd/system/{unit}")
    return key.with_suffix(".pub").read_text()
