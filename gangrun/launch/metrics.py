"""Hands on the figures of a run until it has ended: in a file for a textfile collector, or by HTTP."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.errors import UserError
from gangrun.launch.stop import wait_for_end
from gangrun.runs.metrics import MetricsReader
from gangrun.runs.times import pause, steady_now, wall_now

KEPT_FOR_S = 5.0  # to add up the whole journal of a month takes a while
STAYS_FOR_S = 300.0  # after the run's end: the next scrapes are to see it
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def write_textfile(paths: RunPaths, target: Path, every_s: float | None) -> None:
    """Write the figures, whole or not at all; again and again until the run has ended if ``every_s`` is given."""
    reader, disk = MetricsReader(paths), Disk()
    due_at = steady_now()

    def write() -> None:
        text = reader.text(wall_now()).encode()
        try:
            # the collector is another user, and takes only names that end in .prom
            disk.replace(target, text, target.with_name(f".{target.name}.{os.getpid()}.tmp"), 0o644)
        except OSError as error:
            words = f"cannot write {target}: {error.strerror or error}"
            raise UserError("metrics", words, "--textfile needs a directory in which you may write") from error

    def write_if_due() -> None:
        nonlocal due_at
        if steady_now() >= due_at:
            write()
            due_at = steady_now() + (every_s or 0.0)

    if every_s is not None:
        wait_for_end(paths, None, write_if_due)
    write()


@dataclass(slots=True)
class _Kept:
    """The newest text, made anew when it is too old; one request at a time makes it."""

    reader: MetricsReader
    _text: bytes = b""
    _until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def text(self) -> bytes:
        with self._lock:
            if steady_now() >= self._until:
                self._text = self.reader.text(wall_now()).encode()
                self._until = steady_now() + KEPT_FOR_S
            return self._text


def serve(paths: RunPaths, address: str, port: int, say: Callable[[str], None]) -> None:
    """Answer scrapes until some minutes after the run's end."""
    kept = _Kept(MetricsReader(paths))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            try:
                text = kept.text()
            except (OSError, UserError) as error:
                self.send_error(503, f"the run cannot be read now ({type(error).__name__})")
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words: object) -> None:
            pass

    class MetricsServer(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    host = f"[{address}]" if ":" in address else address
    try:
        server = MetricsServer((address, port), Handler)
    except OSError as error:
        words = f"cannot listen on {host}:{port}: {error.strerror or error}"
        hint = "--port 0 takes any free port; --address must be an address of this host"
        raise UserError("metrics", words, hint) from error
    with server:
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        say(f"http://{host}:{server.server_address[1]}/metrics answers until the run has ended; Ctrl-C leaves")
        wait_for_end(paths, None)
        say(f"the run has ended; leaving in {STAYS_FOR_S / 60:g} min")
        pause(STAYS_FOR_S)
