"""Who vouches for a payload: an SSH signature of its digest, checked against the host's own list of signers.

The list is the host's policy, and no controller can go around it: where it is there, a payload without a good
signature is refused. Its format is that of `ssh-keygen -Y` (ALLOWED SIGNERS in its manual): NAME KEYTYPE KEY.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..wire.protocol import SIGNATURE_NAMESPACE, Plan, signed_message

SYSTEM = Path("/etc/ddtree-deploy/allowed_signers")
NAME = "allowed_signers"  # in the state folder: the list of a user who is not root
VERIFY_S = 30.0


class NotSigned(ValueError):
    """The signature is missing, or is not one that this host takes."""


def check(plan: Plan, run_dir: Path, state_dir: Path) -> str:
    """The name of the signer; "" where this host asks for none. Raises NotSigned, OSError."""
    lists = [path for path in (SYSTEM, state_dir / NAME) if path.exists()]
    if not lists or plan.action != "rollout":  # a rollback brings back what the host has kept itself
        return ""
    required = lists[0]
    if not plan.signature:
        raise NotSigned(f"the payload is not signed, and {required} asks for it (sign_with: in hosts.yaml)")
    file = run_dir / "payload.sig"
    file.write_text(plan.signature)
    found = _keygen(["find-principals", "-s", str(file), "-f", str(required)], b"")
    signer = found.stdout.decode(errors="replace").split("\n")[0].strip()
    if found.returncode or not signer:
        raise NotSigned(f"the payload is signed with a key that is not in {required}")
    words = ["verify", "-f", str(required), "-I", signer, "-n", SIGNATURE_NAMESPACE, "-s", str(file)]
    done = _keygen(words, signed_message(plan.payload_digest))
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:]
        raise NotSigned(f"the signature of {signer} is not of this payload ({''.join(said)})")
    return signer


def _keygen(words: list[str], text: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", *words], input=text, capture_output=True, timeout=VERIFY_S, check=False
        )
    except FileNotFoundError:
        raise NotSigned("signatures are asked for, and this host has no ssh-keygen to check them") from None
    except subprocess.TimeoutExpired:
        raise NotSigned(f"ssh-keygen did not check the signature within {VERIFY_S:.0f} s") from None
