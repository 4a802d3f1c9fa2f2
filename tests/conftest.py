"""For all tests: hypothesis measures no time, since the machine may be busy."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):  # SGLang venvs, where a part of the payload tests runs, have none
    from hypothesis import HealthCheck, settings

    settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("project")
