"""What a unit's settings put in the place of the host's files. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_BINDS = ("BindPaths", "BindReadOnlyPaths", "MountImages")
_COVERS = ("TemporaryFileSystem", "InaccessiblePaths")
# Setting -> what it covers. Extensions are laid over the folders that they hold files for.
_FIXED = {
    "RootDirectory": ("/",),
    "RootImage": ("/",),
    "ExtensionImages": ("/usr", "/opt"),
    "ExtensionDirectories": ("/usr", "/opt"),
    "PrivateTmp": ("/tmp", "/var/tmp"),
    "ProtectHome": ("/home", "/root", "/run/user"),
}
_NOTHING = ("", "no", "/", "read-only")
SHOWN = [*_FIXED, *_BINDS, *_COVERS]


def mounts(shown: Mapping[str, str]) -> dict[str, str]:
    """Place -> `Setting=value` by which a unit sees something else there; "" where a bind shows the same.

    shown: the settings as `systemctl show` prints them.
    """
    found: dict[str, str] = {}
    for name, places in _FIXED.items():
        value = shown.get(name, "")
        if value not in _NOTHING:
            found |= dict.fromkeys(places, f"{name}={value}")
    for name in _COVERS:
        for word in shown.get(name, "").split():
            found[word.lstrip("-+").partition(":")[0]] = f"{name}={word}"
    for name in _BINDS:
        for word in shown.get(name, "").split():
            source, _, rest = word.lstrip("-+").partition(":")
            place = rest.partition(":")[0] or source
            found[place] = "" if place == source and "/" not in found else f"{name}={word}"
    return found
