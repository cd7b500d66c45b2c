"""A headless Chromium, driven through its DevTools pipe: no package is needed, only the browser."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser: what SPIKEZIP_CHROMIUM names, or one on the path."""
    return os.environ.get("SPIKEZIP_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page. What it logs as an error, throws, or asks the network for is kept in `problems` and `requests`."""

    def __init__(self, reading: int, writing: int, watched: bool = True) -> None:
        self._reading, self._writing = reading, writing
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network") if watched else ("Page",):
            self.call(f"{domain}.enable")

    def call(self, method: str, timeout: float = 60, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come in between are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while True:
            answer = self._next(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(
        self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, fragment: str = "", before: str = ""
    ) -> None:
        """Load a file, with a script to run before its own, and wait until that says that all charts are drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width, height)
        self.call("Page.navigate", url="about:blank")
        added = self.call("Page.addScriptToEvaluateOnNewDocument", source=before)["identifier"]
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait("document.documentElement?.dataset.ready === 'yes'")
        self.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added)

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str, timeout: float = 30) -> None:
        end = time.monotonic() + timeout
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition} did not come true; {self.problems}")
            time.sleep(0.05)

    def press(self, key: str, text: str = "") -> None:
        """A key, pressed and released as by a hand."""
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, " ": 32}
        shared = {"key": key, "windowsVirtualKeyCode": codes[key], "code": "Space" if key == " " else key}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text or (" " if key == " " else ""), **shared)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def screenshot(self, path: Path, clip: dict[str, float] | None = None) -> None:
        """The page as a PNG: all of it, or the part that is given as x, y, width and height."""
        part = clip or self.call("Page.getLayoutMetrics")["cssContentSize"]
        options = {"captureBeyondViewport": True, "clip": {**part, "scale": 1}}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))

    def print(self, path: Path) -> None:
        """The page as a PDF, on A4."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", **paper)["data"]))

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._reading, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.problems.append(str(said["exceptionDetails"].get("exception", {}).get("description", said)))
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(part.get("value", part)) for part in said["args"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.problems.append(said["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])


@contextmanager
def browsing(profile: Path, watched: bool = True) -> Iterator[Page]:
    """A browser with a new profile, closed at the end of the block.

    A page that is not watched notes no problems and no requests, and is as fast as without us.
    """
    program = find()
    assert program is not None
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    # The browser reads commands from file descriptor 3 and answers on 4.
    command = f'exec "$0" "$@" 3<&{to_browser} 4>&{to_us}'
    process = subprocess.Popen(
        ["bash", "-c", command, program, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(to_browser, to_us),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(to_us)
    try:
        yield Page(from_browser, from_us, watched)
    finally:
        os.close(from_us)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)
