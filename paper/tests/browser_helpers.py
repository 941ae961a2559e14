"""Drive a headless Chromium through the DevTools protocol, as JSON over two pipes."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # which root may not use
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)
# Chromium reads commands from file 3 and answers on file 4. Both pipes are moved above 10 first.
START = """
import fcntl, os, sys
a, b = (fcntl.fcntl(int(file), fcntl.F_DUPFD, 10) for file in sys.argv[1:3])
os.dup2(a, 3)
os.dup2(b, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """Return the path of a browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab: `send` DevTools commands, `run` JavaScript; `errors` collects what went wrong."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = commands, answers
        self.number, self.rest = 0, b""
        self.session: str | None = None
        self.errors: list[str] = []
        self.loaded = False
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(
        self, page: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        """Load a file or an address in a window of this size, and wait until it is loaded."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.loaded = False
        self.send("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self.loaded:
            self._receive()

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, or of its promise."""
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key; the focused element receives it."""
        code, text = {"Enter": (13, "\r"), " ": (32, " ")}[key]
        fields = {"key": key, "windowsVirtualKeyCode": code, "text": text}
        self.send("Input.dispatchKeyEvent", type="keyDown", **fields)
        self.send("Input.dispatchKeyEvent", type="keyUp", **fields)

    def move(self, x: float, y: float) -> None:
        """Move the pointer to a pixel of the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def pdf(self) -> bytes:
        answer = self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            piece = os.read(self.answers, 1 << 16)
            if not piece:
                raise RuntimeError("the browser has died")
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        self._note(found.get("method", ""), found.get("params", {}))
        return found

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning"):
            self.errors.append(str(event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True


@contextmanager
def page(browser: str) -> Iterator[Page]:
    """Start a browser with one tab; it ends with the block."""
    read_command, commands = os.pipe()
    answers, write_answer = os.pipe()
    start = [sys.executable, "-c", START, str(read_command), str(write_answer)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [*start, browser, *OPTIONS, f"--user-data-dir={profile}"],
            pass_fds=(read_command, write_answer),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_command)
        os.close(write_answer)
        try:
            yield Page(commands, answers)
        finally:
            os.close(commands)
            process.terminate()
            process.wait()
            os.close(answers)
