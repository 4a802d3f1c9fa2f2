"""The `.dist-info` folder that a wheel install would leave: entry points are found without pip on the host.

Source: the binary distribution format and "recording installed projects" of packaging.python.org.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Mapping


def folder_name(name: str, version: str) -> str:
    """`sglang_ddtree-0.1.0.dist-info`."""
    return f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"


def files(
    name: str,
    version: str,
    summary: str,
    entry_points: Mapping[str, Mapping[str, str]],
    installed: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Paths relative to site-packages -> content, for the five files of the folder.

    installed: what the distribution put into site-packages, by relative path; RECORD lists it with digests.
    """
    folder = folder_name(name, version)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if summary:
        metadata += f"Summary: {summary}\n"
    made = {
        f"{folder}/INSTALLER": b"ddtree-deploy\n",
        f"{folder}/METADATA": metadata.encode(),
        f"{folder}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: ddtree-deploy\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    if entry_points:
        made[f"{folder}/entry_points.txt"] = _entry_points(entry_points)
    made[f"{folder}/RECORD"] = _record({**installed, **made}, f"{folder}/RECORD")
    return made


def _entry_points(groups: Mapping[str, Mapping[str, str]]) -> bytes:
    blocks = []
    for group in sorted(groups):
        lines = [f"[{group}]", *(f"{key} = {groups[group][key]}" for key in sorted(groups[group]))]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks).encode()


def _record(content: Mapping[str, bytes], own: str) -> bytes:
    """CSV of path, `sha256=` urlsafe base64 without padding, size; RECORD itself without either."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for path in sorted([*content, own]):
        if path == own:
            writer.writerow([path, "", ""])
            continue
        raw = hashlib.sha256(content[path]).digest()
        encoded = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        writer.writerow([path, f"sha256={encoded}", len(content[path])])
    return text.getvalue().encode()
