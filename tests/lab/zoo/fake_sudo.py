#!/opt/sudo/python -IS
"""A sudo for hosts of a lab whose machine may have none. Its interpreter is a set-uid copy of Python.

/opt/sudo/policy: `nopasswd`, `password TEXT`, `stranger` (not in sudoers), `tty` (needs a terminal).
"""

import os
import sys


def main() -> None:
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    with open("/opt/sudo/policy") as file:  # noqa: PTH123
        policy, _, secret = file.read().strip().partition(" ")
    words = sys.argv[1:]
    flags = set()
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        flags.add(word)
        if word in ("-p", "-u"):
            words.pop(0)
    name = os.environ.get("USER", "sgl")
    if policy == "tty":
        sys.exit("sudo: sorry, you must have a tty to run sudo")
    if policy == "password":
        if "-n" in flags:
            sys.exit("sudo: a password is required")
        if sys.stdin.buffer.raw.readline().strip() != secret.encode():  # type: ignore[attr-defined]
            sys.exit("sudo: 1 incorrect password attempt")
    if policy == "stranger":
        sys.exit("sudo: a password is required" if "-n" in flags else f"{name} is not in the sudoers file.")
    if policy == "command":
        sys.exit(f"Sorry, user {name} is not allowed to execute '{' '.join(words)}' as root on zoo.")
    kept = {key: os.environ[key] for key in ("TERM", "LANG", "LC_ALL") if key in os.environ}
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        **kept,
    }
    env |= {"SHELL": "/bin/bash", "SUDO_USER": name, "SUDO_UID": "990"}
    os.initgroups("root", 0)
    os.umask(0o022)
    os.execvpe(words[0], words, env)


main()
