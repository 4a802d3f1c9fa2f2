"""The one module that imports fabric and paramiko: the rest of this package takes their names from here."""

# ruff: noqa: E402
import sys
import types

import yaml

# invoke, which both are built on, imports unittest.mock for a class that its users' tests may take, and with
# it all of asyncio: a tenth of a command's start. It gets the name it asks for, nothing else does. Another
# twentieth is its own PyYAML, for configuration files that we do not let it read: it gets ours.
_LENT = "unittest.mock" not in sys.modules
if _LENT:
    sys.modules["unittest.mock"] = types.ModuleType("unittest.mock")
    sys.modules["unittest.mock"].__dict__["Mock"] = type("Mock", (), {})
sys.modules.setdefault("invoke.vendor.yaml", yaml)
try:
    import invoke  # noqa: F401
finally:
    if _LENT:
        del sys.modules["unittest.mock"]

import fabric  # type: ignore[import-untyped]
import paramiko
from paramiko import ssh_exception
from paramiko.auth_handler import AuthOnlyHandler
from paramiko.auth_strategy import AuthFailure
from paramiko.pkey import UnknownKeyType
from paramiko.transport import ServiceRequestingTransport

__all__ = [
    "AuthFailure",
    "AuthOnlyHandler",
    "ServiceRequestingTransport",
    "UnknownKeyType",
    "fabric",
    "paramiko",
    "ssh_exception",
]
