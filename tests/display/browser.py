"""A headless chromium that a test talks to over two pipes: no port, no driver, no profile that stays."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gangrun.runs.times import steady_now

PATIENCE_S = 120.0


class Browser:
    """One page; ``complaints`` are what its console said."""

    def __init__(self, to: int, source: int) -> None:
        self._to, self._source = to, source
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        self._loaded = False

    def open(self, page: Path) -> None:
        """Show a file and wait until it has loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Log", "Runtime"):
            self.ask(f"{part}.enable")
        self._loaded = False
        self.ask("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._hear()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            told = self._hear()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return dict(told["result"])

    def value_of(self, expression: str) -> Any:
        """What a line of JavaScript comes to."""
        told = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])

    def _hear(self) -> dict[str, Any]:
        give_up_at = steady_now() + PATIENCE_S
        while b"\0" not in self._rest:
            left_s = give_up_at - steady_now()
            assert left_s > 0, "the browser does not answer"
            if select.select([self._source], [], [], left_s)[0]:
                read = os.read(self._source, 1 << 20)
                assert read, "the browser has ended"
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        match told.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Log.entryAdded":
                self.complaints.append(told["params"]["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]))
            case _:
                pass
        return told


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser whose files lie in ``folder``; it ends with the block."""
    (reads, to), (source, writes) = os.pipe(), os.pipe()
    its_ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 50) for fd in (reads, writes)]  # free of 3 and 4, which it wants
    os.close(reads)
    os.close(writes)
    words = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={folder}", "--remote-debugging-pipe", "--window-size=1200,900",
    ]  # fmt: skip
    child = subprocess.Popen(
        ["bash", "-c", 'exec "$@" 3<&{} 4>&{}'.format(*its_ends), "bash", *words],
        pass_fds=its_ends, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for end in its_ends:
        os.close(end)
    try:
        yield Browser(to, source)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(to)
        os.close(source)
