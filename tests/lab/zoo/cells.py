"""All hosts of the zoo."""

from __future__ import annotations

from tests.lab.zoo import bred, named
from tests.lab.zoo.draft import Draft


def all_of(seed: int, count: int) -> list[Draft]:
    """Those written by hand, and `count` that the seed makes up."""
    return [*named.drafts(), *bred.drafts(seed, count)]
