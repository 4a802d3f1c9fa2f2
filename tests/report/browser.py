"""Headless Chromium over its debugging pipe (file descriptors 3 and 4): no port, no driver, standard
library only."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CANDIDATES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 120.0


def executable() -> str:
    """The browser's path; empty when none is installed."""
    return next((found for name in CANDIDATES if (found := shutil.which(name))), "")


class Page:
    """One tab. `complaints` collects console errors, exceptions and every request beside the page itself."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read, self._write = read_fd, write_fd
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []

    def attach(self) -> None:
        """Open a tab and listen to what it says."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == self._number:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                return dict(got["result"])

    def open(self, file: Path, *, width: int, height: int, dark: bool, phone: bool) -> None:
        """Show a file at a window size, in light or dark, and wait until it has loaded."""
        self.complaints.clear()
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not self._loaded:
            self._receive()

    def value(self, expression: str) -> Any:
        """Evaluate JavaScript in the page. (The page itself has none.)"""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in got:
            raise RuntimeError(str(got["exceptionDetails"]))
        return got["result"].get("value")

    def screenshot(self, top: float, width: float, height: float) -> bytes:
        """PNG of a part of the page, from `top` CSS pixels on."""
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        got = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(got["data"])

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._read, selectors.EVENT_READ)
            while b"\0" not in self._buffer:
                if not waiting.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError("the browser does not answer")
                more = os.read(self._read, 1 << 20)
                if not more:
                    raise RuntimeError("the browser has ended")
                self._buffer += more
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {params['exceptionDetails'].get('text')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"console: {params['args']}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"log: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if params.get("type") != "Document" and not url.startswith("data:"):
                self.complaints.append(f"request: {url[:200]}")


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A headless browser with a profile of its own; ended when the block is left."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    # The child expects its ends as 3 and 4, which may be taken here: a shell moves them.
    script = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
    argv = [
        "/bin/bash", "-c", script, executable(), "--headless=new", "--remote-debugging-pipe",
        "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={profile}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        "about:blank",
    ]  # fmt: skip
    with (profile.parent / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            argv, pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(to_read)
    os.close(from_write)
    try:
        page = Page(from_read, to_write)
        page.attach()
        yield page
        page._session = None
        with contextlib.suppress(RuntimeError, TimeoutError, OSError):
            page.call("Browser.close")
    finally:
        os.close(to_write)
        os.close(from_read)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
