"""SSH: the only package that imports fabric and paramiko.

with connect(host) as link:
    done = link.run(link.command(host.python, "-V"), timeout=20)
"""

from ddtree_deploy.ssh import become
from ddtree_deploy.ssh.dial import connect, offered_key
from ddtree_deploy.ssh.errors import host_key_error, transport_error
from ddtree_deploy.ssh.host import SshHost, known_hosts_files
from ddtree_deploy.ssh.link import Link
from ddtree_deploy.ssh.stream import Finished, LinkLost, Stream, StreamEnded, Traffic, Unbegun

__all__ = [
    "Finished",
    "Link",
    "LinkLost",
    "SshHost",
    "Stream",
    "StreamEnded",
    "Traffic",
    "Unbegun",
    "become",
    "connect",
    "host_key_error",
    "known_hosts_files",
    "offered_key",
    "transport_error",
]
