"""Whatever is released, in whatever order, and pruned: what is kept leads back to before the first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_deploy.onhost.state import durable, layout, line, releases
from tests.onhost.test_parts import ENDED, add_run

UPSTREAM = {"u1": "upstream 1", "u2": "upstream 2"}
PATHS = ["u1", "u2", "a", "b", "c", "d"]
Backups = dict[str, dict[str, str]]


def release(site_dir: Path, run: str, live: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """Make `wanted` live, as `commit` records it; what each changed path was before (absent: no key)."""
    installed = releases.installed(site_dir) or {}
    after = {**UPSTREAM, **wanted}
    touched = {path: f"ref:{path}" for path in {*live, *after} if live.get(path) != after.get(path)}
    run_dir = add_run(site_dir, run, *ENDED)
    (run_dir / "backup" / layout.MANIFEST).write_text("[]")
    new = [path for path in touched if path not in live]
    row = {
        "run": run,
        "previous": installed.get("release", ""),
        "changed": touched,
        "new": new,
        "verdict": "good",
    }
    with (site_dir / releases.RELEASES).open("a") as file:
        file.write(json.dumps(row) + "\n")
    durable.write_json(
        site_dir / releases.INSTALLED, {"release": run, "files": {path: {} for path in wanted}}
    )
    before = {path: live[path] for path in touched if path in live}
    live.clear()
    live.update(after)
    return before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(
    wants=st.lists(
        st.dictionaries(st.sampled_from(PATHS), st.sampled_from(["x", "y", "z"]), min_size=1),
        min_size=1,
        max_size=14,
    )
)
def test_case_37_what_is_kept_leads_to_base_after_any_releases(
    tmp_path: Path, wants: list[dict[str, str]]
) -> None:
    shutil.rmtree(tmp_path / "site", ignore_errors=True)
    site_dir = tmp_path / "site"
    (site_dir / "runs").mkdir(parents=True)
    live = dict(UPSTREAM)
    backups: Backups = {}
    for number, wanted in enumerate(wants):
        run = f"r{number:02d}"
        backups[run] = release(site_dir, run, live, wanted)
        line.prune(site_dir, keep={run})
        near, base = line.leading_back(site_dir)
        assert len(near) >= min(number + 1, line.KEEP_BACKUPS)
        assert base and base[-1].run == "r00", "base is within reach"
        back = dict(live)
        for link in base:  # what an earlier backup has wins
            assert (site_dir / "runs" / link.run / "backup").is_dir()
            for path in link.paths:
                back.pop(path, None)
                back.update({path: backups[link.run][path]} if path in backups[link.run] else {})
        assert back == UPSTREAM


def test_case_37_old_backups_go_where_nothing_needs_them(tmp_path: Path) -> None:
    """As with payloads, each with a dist-info folder of its own version."""
    (tmp_path / "runs").mkdir()
    live = dict(UPSTREAM)
    for number in range(30):
        release(
            tmp_path, f"r{number:02d}", live, {"a": str(number), f"{number}.dist-info": "m", "u1": "ours"}
        )
        line.prune(tmp_path, keep={f"r{number:02d}"})
    kept = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert kept == ["r00", *(f"r{n}" for n in range(24, 30))]
