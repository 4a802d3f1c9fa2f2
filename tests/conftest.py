"""For all tests: hypothesis measures no time, since the machine may be busy."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):  # the venvs of SGLang, where a part of the payload's tests runs, have no hypothesis
    from hypothesis import settings

    settings.register_profile("project", deadline=None)
    settings.load_profile("project")
