"""Hands on the figures of a run until it has ended: in a file for a textfile collector, or by HTTP.

``main`` is the process of ``--metrics-port``: a child of ``gangrun run`` or of the batch script, in a session of its
own. Nothing waits for it. A port that somebody else holds costs the run nothing: ``gangrun status`` says so, and the
port is tried again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths, note_metrics_fault, read_metrics_fault, read_spec
from gangrun.errors import UserError
from gangrun.launch.stop import wait_for_end
from gangrun.node import processes
from gangrun.node.speech import DEAF
from gangrun.runs.metrics import MetricsReader
from gangrun.runs.times import pause, steady_now, wall_now

KEPT_FOR_S = 5.0  # to add up the whole journal of a month takes a while
STAYS_FOR_S = 300.0  # after the run's end: the next scrapes are to see it
RETRY_AFTER_S = 5.0
ANSWERS_WITHIN_S = 10.0  # client and storage alike: each that waits holds a thread
UNUSABLE = (OSError, TypeError, ValueError)  # the latter: letters that no address has
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
        """OSError: the storage does not answer the request before this one."""
        if not self._lock.acquire(timeout=ANSWERS_WITHIN_S):
            raise TimeoutError
        try:
            if steady_now() >= self._until:
                self._text = self.reader.text(wall_now()).encode()
                self._until = steady_now() + KEPT_FOR_S
            return self._text
        finally:
            self._lock.release()


def url_of(address: str, port: int) -> str:
    """Where figures are read that are served there."""
    return f"http://{_in_url(address)}:{port}/metrics"


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _unusable(address: str, port: int, error: Exception) -> UserError:
    words = f"cannot listen on {_in_url(address)}:{port}: {getattr(error, 'strerror', None) or error}"
    return UserError("metrics", words, "take a free port, and an address of this host")


def refuse_unusable(address: str, port: int) -> None:
    """``UserError`` if nobody can listen there now."""
    with socket.socket(_family(address)) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
        except UNUSABLE as error:
            raise _unusable(address, port, error) from error


@contextlib.contextmanager
def figures_served(paths: RunPaths, address: str, port: int) -> Iterator[str]:
    """Answer scrapes in a thread of their own, at the URL that is yielded. ``UserError``: nobody can listen there."""
    kept = _Kept(MetricsReader(paths))

    class Handler(BaseHTTPRequestHandler):
        timeout = ANSWERS_WITHIN_S  # of a client that says nothing

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
        address_family = _family(address)

        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(self)  # HTTP's own asks a name server who this is, and may wait for long

    try:
        server = MetricsServer((address, port), Handler)
    except UNUSABLE as error:
        raise _unusable(address, port, error) from error
    with server:
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        yield url_of(address, server.server_address[1])


def serve(paths: RunPaths, address: str, port: int, say: Callable[[str], None]) -> None:
    """Answer scrapes until some minutes after the run's end."""
    with figures_served(paths, address, port) as url:
        say(f"{url} answers until the run has ended; Ctrl-C leaves")
        wait_for_end(paths, None)
        say(f"the run has ended; leaving in {STAYS_FOR_S / 60:g} min")
        pause(STAYS_FOR_S)


def owner_leaves(within_s: float | None) -> bool:
    """Has the owner left? Waits for it up to ``within_s``; None: until it has left."""
    return bool(select.select([0], (), (), within_s)[0])


def note(disk: Disk, paths: RunPaths, why: str) -> None:
    """What status is to say, if that is news; a disk that takes no note changes nothing."""
    if why != read_metrics_fault(disk, paths):
        with contextlib.suppress(OSError):
            note_metrics_fault(disk, paths, why)


def main(words: list[str]) -> int:
    """Until the owner has left."""
    parser = argparse.ArgumentParser(prog="gangrun-metrics-server")
    parser.add_argument("--run-dir", type=Path, required=True)
    paths, disk = RunPaths(parser.parse_args(words).run_dir), Disk()
    for number in DEAF:
        signal.signal(number, signal.SIG_IGN)
    asked = read_spec(disk, paths).metrics
    assert asked.port is not None
    while True:
        try:
            with figures_served(paths, asked.address, asked.port):
                note(disk, paths, "")
                owner_leaves(None)
                return 0
        except UserError as error:
            note(disk, paths, f"{processes.host_name()} {error.message}")
        if owner_leaves(RETRY_AFTER_S):
            return 0
