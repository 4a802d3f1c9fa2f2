"""Look again, under the lock: is the host still what the plan was made for, and can it take the change?"""

from __future__ import annotations

from ..context import Context
from ..preflight import examine


def do(ctx: Context) -> str:
    return examine(ctx)
