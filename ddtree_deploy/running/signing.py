"""Sign what is rolled out, with the user's own SSH key (or the agent that holds it)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.protocol import SIGNATURE_NAMESPACE, signed_message

SIGN_S = 120.0  # somebody may have to type a passphrase, or to touch a key


def sign(host: Host, key: Path, digest: str) -> str:
    """The signature of a payload's digest. `key`: a private one, or a public one that the agent holds.

    Raises InputError naming `sign_with` when it cannot be made.
    """
    words = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(key), "-n", SIGNATURE_NAMESPACE]
    try:
        done = subprocess.run(
            words, input=signed_message(digest), capture_output=True, timeout=SIGN_S, check=False
        )
        problem = "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip()
    except FileNotFoundError:
        problem = "there is no ssh-keygen here"
    except subprocess.TimeoutExpired:
        problem = f"ssh-keygen took longer than {SIGN_S:.0f} s"
    if problem:
        raise host.error(f"the payload cannot be signed with {key}: {problem.splitlines()[-1]}", "sign_with")
    return done.stdout.decode()
