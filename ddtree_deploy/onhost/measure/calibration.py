"""How much restarts of an unchanged service differ on this host: measured by `calibrate`, kept there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..judge.agreement import identity_differences
from ..judge.stats import RestartSpread
from ..state import durable, layout

FILE = "calibration.json"
FORMAT = 1


@dataclass(frozen=True)
class Known:
    """The spread to reckon with (sd None: unknown), and where it comes from. assumed: by the playbook."""

    sd: float | None
    restarts: int
    source: str
    assumed: bool = False

    @property
    def spread(self) -> RestartSpread | None:
        return None if self.sd is None else RestartSpread(self.sd, self.restarts)


def save(site_dir: Path, identity: dict[str, str], spread: RestartSpread, more: dict[str, Any]) -> None:
    """Keep a measured spread with what it belongs to."""
    data = {"format": FORMAT, "identity": identity, "sd": spread.sd, "restarts": spread.restarts, **more}
    durable.write_json(site_dir / FILE, data)


def load(site_dir: Path, identity: dict[str, str], assumed: float | None) -> Known:
    """What is known of this host. A written assumption goes before a calibration that does not fit, not
    before one that does."""
    data = layout.read_json(site_dir / FILE)
    problem = "this host was never calibrated"
    if isinstance(data, dict) and data.get("format") == FORMAT:
        different = identity_differences(data["identity"], identity)
        sd, restarts = data.get("sd"), data.get("restarts")
        if not different and isinstance(sd, float) and math.isfinite(sd) and isinstance(restarts, int):
            when = f"measured over {restarts} restarts, {data.get('recorded', 'time unknown')}"
            return Known(sd, restarts, when)
        problem = f"the calibration is of another state of this host ({'; '.join(different) or 'damaged'})"
    if assumed is not None:
        return Known(assumed, 0, f"assumed in the playbook; {problem}", assumed=True)
    return Known(None, 0, problem)
