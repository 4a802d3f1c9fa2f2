"""Containers are named and refused; a host that is a container itself is none."""

from __future__ import annotations

import os

import pytest

from ddtree_deploy.onhost.service import container

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/docker/" + "a1" * 32, "docker a1a1a1a1a1a1"),
        ("/system.slice/docker-" + "b2" * 32 + ".scope", "docker b2b2b2b2b2b2"),
        ("/machine.slice/libpod-" + "c3" * 32 + ".scope", "podman c3c3c3c3c3c3"),
        ("/kubepods/besteffort/pod12/" + "d4" * 32, "kubernetes d4d4d4d4d4d4"),
        ("/kubepods.slice/x.slice/cri-containerd-" + "e5" * 32 + ".scope", "containerd e5e5e5e5e5e5"),
        ("/lxc.payload.box1/init.scope", "lxc box1"),
        ("/machine.slice/machine-deb.scope", "systemd-nspawn deb"),
        ("/system.slice/sglang.service", ""),
        ("/user.slice/user-0.slice/session-3.scope", ""),
        ("/", ""),
    ],
)  # fmt: skip
def test_names_from_cgroups(path: str, name: str) -> None:
    assert container.named([path]) == name


def test_our_own_world_is_no_container_whatever_the_cgroup_says() -> None:
    assert container.of(os.getpid()) == ""
