"""How often to look at what may take milliseconds or minutes."""

from __future__ import annotations


def pause(waited: float, least: float, most: float) -> float:
    """Seconds until the next look: a tenth of those that went by, within `least` and `most`."""
    return min(most, max(least, waited / 10))
