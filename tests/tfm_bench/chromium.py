"""A headless Chromium, driven over the pipe of its DevTools protocol: no driver, no port, no package."""

import fcntl
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)
SECONDS = 60


class Tab:
    """One tab. events: what the browser reported so far, by method, in its order."""

    def __init__(self, commands: Any, reports: Any) -> None:
        self._commands, self._reports, self._session, self._count = commands, reports, {}, 0
        self.events: list[tuple[str, dict]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict:
        """Send a command and wait for its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params, **self._session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while "id" not in (report := self._read()):
            pass
        assert report["id"] == self._count
        assert "error" not in report, f"{method}: {report['error']}"
        return report["result"]

    def open(self, page: Path) -> None:
        """Load a file, without a network, and wait until all of it is there."""
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.call("Page.navigate", url=page.as_uri())
        while not self.of("Page.loadEventFired"):
            self._read()

    def resize(self, width: int, height: int = 900) -> None:
        """The size of the window in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, of a promise when it is kept."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press_enter(self) -> None:
        """Press and release Enter where the focus is."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **key)

    def of(self, *methods: str) -> list[dict]:
        """What was reported under these names."""
        return [params for method, params in self.events if method in methods]

    def complaints(self) -> list[dict]:
        """Errors and warnings of the console, of scripts and of the browser."""
        console = [
            call for call in self.of("Runtime.consoleAPICalled") if call["type"] in ("error", "warning", "assert")
        ]
        return [*console, *self.of("Runtime.exceptionThrown", "Log.entryAdded")]

    def _read(self) -> dict:
        text = bytearray()
        while (byte := self._reports.read(1)) != b"\0":
            assert byte, "Chromium ended"
            text += byte
        report = json.loads(text)
        if "method" in report:
            self.events.append((report["method"], report["params"]))
        return report


@contextmanager
def open_tab(profile: Path) -> Iterator[Tab]:
    """A tab of a new browser, which ends with the block, or after SECONDS."""
    assert CHROMIUM is not None
    (their_in, our_out), (our_in, their_out) = _high_pipe(), _high_pipe()
    # Chromium reads from file 3 and writes to file 4. Only bash takes redirections from files above 9.
    plugged = ["bash", "-c", f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}', CHROMIUM, *FLAGS]
    browser = subprocess.Popen(
        [*plugged, f"--user-data-dir={profile}"],
        pass_fds=(their_in, their_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    watchdog = threading.Timer(SECONDS, browser.kill)
    watchdog.start()
    try:
        with os.fdopen(our_out, "wb") as commands, os.fdopen(our_in, "rb") as reports:
            yield Tab(commands, reports)
    finally:
        watchdog.cancel()
        browser.kill()
        browser.wait()


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are no files that the child has use for."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return read, write
