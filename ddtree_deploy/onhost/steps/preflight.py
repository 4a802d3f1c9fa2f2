"""Look again, under the lock: is the host still what the plan was made for, and can it take the change?"""

from __future__ import annotations

from ..context import Context


def do(ctx: Context) -> str:
    from ..preflight import examine

    return examine(ctx)
