"""Building blocks for tests of inputs and plans: payload, playbook and the facts of a host, as data."""

from __future__ import annotations

import base64
import hashlib
import json
import textwrap
import zlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.onhost.wire.facts import Facts, Kept, LockFacts, Package, Release, ServiceFacts
from ddtree_deploy.onhost.wire.protocol import FileState, Launch, Plan, Service, to_dict
from ddtree_deploy.planning.assemble import RunOptions, facts_request

SITE = "/venv/lib/python3.11/site-packages"
PACKAGE = f"{SITE}/sglang"
NOW = datetime(2026, 11, 29, 17, 45, 1, tzinfo=timezone.utc)
OPTIONS = RunOptions.at(NOW, "ab12cd", "ada@laptop")
UPSTREAM = b"def schedule():\n    return 1\n"
PATCHED = b"def schedule():\n    return 2\n"
PATCH = b"""\
--- a/srt/sched.py
+++ b/srt/sched.py
@@ -1,2 +1,2 @@
 def schedule():
-    return 1
+    return 2
"""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write dedented files below `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(textwrap.dedent(content).encode() if isinstance(content, str) else content)
    return folder


PROMPTS = "".join(
    json.dumps({"conversations": [{"content": f"prompt {i}"}, {"content": "answer"}]}) + "\n"
    for i in range(32)
)

PLAYBOOK = """\
schema: 1
name: rollout
action: rollout
steps:
  - local
  - lock
  - preflight: {min_free: 1GiB}
  - backup
  - stage
  - compile
  - smoke
  - baseline: {tokens: 4, bench: {num_prompts: 8}}
  - stop
  - install
  - start
  - health
  - tokens
  - benchmark
  - unlock
"""

ROLLBACK = """\
schema: 1
name: rollback
action: rollback
steps: [lock, preflight, backup, stage, stop, install, start, health, unlock]
"""

PAYLOAD = f"""\
schema: 1
name: sglang-ddtree
version: 0.1.0
variants:
  - name: v23
    sglang: ["0.5.23"]
    files:
      - {{from: sglang_ddtree, to: "site:sglang_ddtree"}}
    overlays:
      - to: "sglang:srt/sched.py"
        patch: patches/sched.patch
        base: {sha(UPSTREAM)}
        result: {sha(PATCHED)}
    dist_info:
      name: sglang-ddtree
      entry_points: {{sglang.srt.plugins: {{ddtree: "sglang_ddtree.plugin:register"}}}}
checks:
  smoke: {{script: checks/smoke.py, expect: "ok 5", timeout: 5m}}
  parse_argv: {{script: checks/parse_argv.py, argv: true}}
"""

PAYLOAD_FILES: dict[str, str | bytes] = {
    "payload.yaml": PAYLOAD,
    "sglang_ddtree/__init__.py": b"",
    "sglang_ddtree/plugin.py": b"def register():\n    pass\n",
    "sglang_ddtree/kernels/tree.py": b"K = 1\n",
    "patches/sched.patch": PATCH,
    "checks/smoke.py": b"print('ok 5')\n",
    "checks/parse_argv.py": b"print('parsed')\n",
}

SERVICE = Service(
    name="sglang",
    kind="systemd",
    endpoint="http://127.0.0.1:30000",
    unit="sglang.service",
    launch=Launch(set={"speculative-algorithm": "DDTREE", "speculative-ddtree-budget": "32"}),
)
HOST = Host(name="ct129", address="10.1.230.172", python="/venv/bin/python3", service=SERVICE)


def path_of(ref: str) -> str:
    root, _, rel = ref.partition(":")
    return "/".join(filter(None, [PACKAGE if root == "sglang" else SITE, rel]))


class World:
    """A host as data: files by ref, installed release, kept bases. `facts` says what the facts exec would."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"sglang:srt/sched.py": UPSTREAM}
        self.links: dict[str, str] = {}
        self.installed: dict[str, Any] | None = None
        self.bases: dict[str, bytes] = {}
        self.backups: dict[str, dict[str, bytes | None]] = {}
        self.previous: dict[str, dict[str, Any] | None] = {}
        self.releases: list[Release] = []
        self.version = "0.5.23"

    def state(self, ref: str, contents: bool) -> FileState:
        path = path_of(ref)
        if ref in self.links:
            return FileState(path, "symlink", link=self.links[ref], mode=0o777)
        if ref not in self.files:
            inside = any(known.startswith(ref.rstrip("/") + "/") for known in self.files)
            return FileState(path, "dir", mode=0o755) if inside else FileState(path, "absent")
        data = self.files[ref]
        sent = base64.b64encode(zlib.compress(data)).decode() if contents else None
        return FileState(path, "file", sha(data), 0o644, 1, len(data), content_b64=sent)

    def facts(self, host: Host, payload: Payload | None, *, contents: bool = False, **more: Any) -> Facts:
        request = facts_request(host, payload, contents=contents)
        own = (self.installed or {}).get("files", {})
        touched = {**{p: e["ref"] for p, e in own.items()}, **(self.installed or {}).get("changed", {})}
        for line in self.kept():
            touched |= line.paths
        old = ("/venv/bin/python3", "-m", "sglang.launch_server", "--port", "30000")
        facts = Facts(
            protocol=1,
            hostname="ct129",
            user="root",
            uid=0,
            home="/root",
            os="Debian GNU/Linux 12",
            kernel="6.1",
            boot_id="b",
            python="/venv/bin/python3",
            python_version=[3, 11, 4],
            site=SITE,
            site_key="k",
            site_dir="/var/lib/ddtree-deploy/sites/k",
            state_free_bytes=10**12,
            site_free_bytes=10**12,
            packages={"sglang": Package(self.version, PACKAGE)},
            files={ref: self.state(ref, contents) for ref in request.refs},
            installed=self.installed,
            installed_files={path: self.state(ref, contents) for path, ref in touched.items()},
            releases=list(self.releases),
            lock=LockFacts(),
            orphan=None,
            gpus=[],
            processes=[],
            service=ServiceFacts(
                "systemd",
                "active",
                command=list(old),
                new_command=[*old, "--speculative-algorithm", "DDTREE"],
            )
            if host.service
            else None,
            systemd=True,
            bases=sorted(self.bases),
            kept=self.kept(),
            base=self.kept() if self.kept() and not self.kept()[-1].previous else [],
            base_contents={
                digest: base64.b64encode(zlib.compress(data)).decode()
                for digest, data in (self.bases if contents else {}).items()
            },
        )
        return replace(facts, **more)

    def kept(self) -> list[Kept]:
        """The line of the live release, as far as backups go."""
        found, run = [], str((self.installed or {}).get("release", ""))
        while run in self.backups:
            before = str((self.previous[run] or {}).get("release", ""))
            found.append(Kept(run, before, {path_of(ref): ref for ref in self.backups[run]}))
            run = before
        return found

    def apply(self, plan: Plan, blobs: Mapping[str, bytes]) -> None:
        """Do on the data what the runner does with the targets of a plan; check the digests that it names."""
        backup: dict[str, bytes | None] = {}
        entries = dict((self.installed or {}).get("files", {}))
        for target in plan.targets:
            live = self.files.get(target.ref)
            assert target.before == (sha(live) if live is not None else ""), target
            backup[target.ref] = live
            if target.base_sha256 and live is not None and sha(live) == target.base_sha256:
                self.bases[target.base_sha256] = live
            kind, _, name = target.source.partition(":")
            wanted = self._wanted(kind, name, target.ref, target.base_sha256, blobs)
            if wanted is None:
                self.files.pop(target.ref, None)
            else:
                self.files[target.ref] = wanted
            if kind in ("blob", "patch"):
                assert wanted is not None and sha(wanted) == target.sha256
                entries[target.path] = {
                    "sha256": target.sha256,
                    "mode": target.mode,
                    "ref": target.ref,
                    "base_sha256": target.base_sha256,
                }
            else:
                entries.pop(target.path, None)
        self.backups[plan.run], self.previous[plan.run] = backup, self.installed
        was = (self.installed or {}).get("release", "")
        if plan.action == "rollback":
            self.installed = self.previous[plan.undoes]
        else:
            changed = {t.path: t.ref for t in plan.targets}
            launch = to_dict(plan.service.launch) if plan.service else None
            self.installed = {"release": plan.run, "files": entries, "changed": changed, "launch": launch}
        self.releases.append(
            Release(
                plan.run,
                plan.created,
                plan.who,
                plan.action,
                plan.payload_name,
                plan.payload_version,
                plan.variant,
                plan.release,
                "good",
                was,
            )
        )

    def _wanted(self, kind: str, name: str, ref: str, base: str, blobs: Mapping[str, bytes]) -> bytes | None:
        if kind == "blob":
            return blobs[f"blobs/{name}"]
        if kind == "patch":
            assert f"blobs/{name}" in blobs
            assert self.bases[base] == UPSTREAM
            return PATCHED
        if kind == "base":
            return self.bases[base]
        return self.backups[name][ref] if kind == "backup" else None
