"""For all tests: hypothesis measures no time, since the machine may be busy."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):  # SGLang venvs, where a part of the payload tests runs, have none
    from hypothesis import settings

    settings.register_profile("project", deadline=None)
    settings.load_profile("project")
