"""Chromium without a window, driven over its debugging pipe; a page in it with a size and keys."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import IO, Any

import pytest

from tests.support.patience import PATIENCE

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
DESKTOP, PHONE = (1200, 900), (390, 844)


class Tab:
    """One page."""

    def __init__(self, asked: IO[bytes], answers: IO[bytes]) -> None:
        self._asked, self._answers = asked, answers
        self._number, self._session = 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **values: Any) -> Any:
        """Do something of the DevTools protocol."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": values, **session}
        self._asked.write(json.dumps(message).encode() + b"\0")
        self._asked.flush()
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> Any:
        content = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            content += byte
        return json.loads(content)

    def open(self, url: str, size: tuple[int, int]) -> None:
        """Load a page, whatever its policy says of our scripts, and wait for it."""
        width, height = size
        self.call("Page.setBypassCSP", enabled=True)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self.call("Page.navigate", url=url)
        while self.run("document.readyState !== 'complete' || location.href === 'about:blank'"):
            pass

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press a key and let go of it."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def picture(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """Start Chromium; skips the test where there is none."""
    program = which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed")
    (asks, asked), (answers, answered) = os.pipe(), os.pipe()
    command = ["bash", "-c", f'exec 3<&{asks} 4>&{answered}; exec "$@"', "-", program, *FLAGS]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={profile}"],
        pass_fds=(asks, answered),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(asks)
    os.close(answered)
    with os.fdopen(asked, "wb") as to, os.fdopen(answers, "rb") as back:
        try:
            yield Tab(to, back)
        finally:
            process.terminate()
            process.wait(PATIENCE)
