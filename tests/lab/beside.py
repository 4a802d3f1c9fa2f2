"""Units beside sglang.service on a lab host: made, started, asked, taken away again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from tests.lab.hosts import Host, wait_for

UNITS = "/etc/systemd/system"
SLEEP = "/bin/sleep infinity"


def service(unit: str, run: str = SLEEP, more: str = "") -> str:
    """The text of a service with these lines in [Unit]."""
    return f"[Unit]\n{unit}\n[Service]\nExecStart={run}\n{more}\n"


class Beside:
    """Units by file name. `up` are started in this order."""

    def __init__(self, host: Host, texts: dict[str, str], up: Iterable[str]) -> None:
        self.host, self.texts, self.up = host, texts, list(up)
        for name, text in texts.items():
            path = host.path(f"{UNITS}/{name}")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        host.run("systemctl daemon-reload")
        if self.up:
            host.run(f"systemctl start {shlex.join(self.up)}")
        self.settle()

    def states(self) -> dict[str, str]:
        """Unit -> ActiveState."""
        names = [name for name in self.texts if "/" not in name]
        if not names:
            return {}
        said = self.host.run(f"systemctl show -p ActiveState --value {shlex.join(names)}").stdout.split()
        return dict(zip(names, said, strict=True))

    def settle(self) -> None:
        """Wait until all is as it is to be."""
        wait_for(lambda: self.as_wanted() == "", "the units beside the service to be as they were")

    def as_wanted(self) -> str:
        """What is not up (or, of those never started, not down); "" when all is as it was made."""
        wrong = [f"{n}: {s}" for n, s in self.states().items() if (s == "active") != (n in self.up)]
        return ", ".join(wrong)

    def remove(self) -> None:
        names = [name for name in self.texts if "/" not in name]
        # The service is stopped first: not by one of these, and not again by what depends on it.
        starters = [name for name in names if name.endswith((".socket", ".timer", ".path"))]
        if names:
            self.host.run(f"systemctl stop {shlex.join([*starters, *names])}", check=False)
        for name in self.texts:
            self.host.path(f"{UNITS}/{name}").unlink(missing_ok=True)
            folder = self.host.path(f"{UNITS}/{name}").parent
            if "/" in name and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        self.host.run("systemctl daemon-reload; systemctl reset-failed; systemctl start sglang")


Make = Callable[..., Beside]
