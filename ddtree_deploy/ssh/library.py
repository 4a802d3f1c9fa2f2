"""The one module that imports fabric and paramiko: the rest of this package takes their names from here."""

import fabric  # type: ignore[import-untyped]
import paramiko
from paramiko import ssh_exception
from paramiko.auth_strategy import AuthFailure
from paramiko.pkey import UnknownKeyType

__all__ = ["AuthFailure", "UnknownKeyType", "fabric", "paramiko", "ssh_exception"]
