"""A real run that is told to a real service and followed by another process, while ranks and supervisors are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.faults.inject import gangrun
from tests.local.harness import Box
from tests.waiting import until

TOKEN = "t0ken-that-nobody-may-see"


class Service:
    """Takes what apprise posts; ``answers`` is the status of each answer."""

    def __init__(self, answers: int = 200) -> None:
        self.heard: list[dict[str, Any]] = []
        self.answers = answers
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(service.answers)
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server.server_address[1]}/{TOKEN}"

    @property
    def titles(self) -> list[str]:
        return [one["title"] for one in self.heard]


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


def follower(box: Box, *options: str) -> subprocess.Popen[str]:
    command = ["events", "--follow", "--json", "--runs-dir", str(box.runs), *options]
    return subprocess.Popen(
        [*gangrun(box.environment), *command], cwd=box.work, env=box.environment, text=True, stdout=subprocess.PIPE
    )


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def test_a_recovery_is_told_once_and_events_go_on_over_supervisors(box: Box, service: Service) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    box.step(2, "--notify", service.url, "--metrics-port", str(port), steps=400, pace=0.02)
    box.stepping()
    assert box.process is not None
    assert TOKEN.encode() not in Path(f"/proc/{box.process.pid}/cmdline").read_bytes()
    events = follower(box)
    os.kill(box.one("entry.supervisor"), signal.SIGKILL)
    box.until_status("another supervisor", lambda seen: seen["supervisor"]["term"] >= 2, 60.0)
    os.kill(box.pid_of(1), signal.SIGKILL)
    box.wait_for_step(5, attempt=1, deadline_s=60.0)
    box.until(lambda: any("recovered" in title for title in service.titles), "the recovery is told")
    box.until(lambda: re.search(r"gangrun_recoveries_total{.*} 1", scraped(port)), "the recovery is counted")
    assert box.end() == 0
    told = [one.partition(" after")[0] for one in service.titles]
    assert told == ["train started", "train recovered", "train succeeded"]
    recovered = service.heard[1]["message"]
    assert "rank 1" in recovered and "SIGKILL" in recovered and "how: restart in place" in recovered
    assert f"[{box.run_dir().name} recovered-0]" in recovered

    out, _ = events.communicate(timeout=60)
    assert events.returncode == 0
    live = [json.loads(line) for line in out.splitlines()]
    later = box.gangrun("events", "--json", "--runs-dir", str(box.runs)).stdout.splitlines()
    assert live == [json.loads(line) for line in later]
    assert {one["term"] for one in live} >= {1, 2} and live[-1]["kind"] == "RunEnded"
    assert nobody_else_holds_the_token(box) and "notification" not in str(box.status()["notes"])


def nobody_else_holds_the_token(box: Box) -> bool:
    holders = [
        path.relative_to(box.run_dir())
        for path in box.run_dir().rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]
    kept = box.run_dir() / ".gangrun/keys/notify.json"
    printed = box.out.read_text() + box.err.read_text()
    return (
        holders == [Path(".gangrun/keys/notify.json")]
        and stat.S_IMODE(kept.stat().st_mode) == 0o600
        and TOKEN not in printed
    )


def test_a_service_that_refuses_costs_the_run_nothing_and_status_says_so(box: Box, service: Service) -> None:
    service.answers = 500
    box.step(1, "--notify", service.url, steps=10, pace=0.01)
    assert box.end() == 0
    (note,) = (note for note in box.status()["notes"] if "could not be sent" in note)
    assert note.startswith("2 notifications could not be sent: service 1 (json) did not take") and TOKEN not in note


def test_an_owner_that_is_killed_is_told_by_its_notifier(box: Box, service: Service) -> None:
    box.environment["GANGRUN_NOTIFY"] = service.url
    box.step(2, "--notify-on", "attention", steps=400)
    box.stepping()
    assert box.process is not None
    box.process.kill()
    until(lambda: service.heard, 60.0, "somebody is told")
    until(lambda: not box.left(), 30.0, lambda: f"no process stays {box.left()}")
    (one,) = service.heard
    assert one["title"] == "train failed and needs you" and one["type"] == "failure"
    assert one["message"].startswith("the process that ran it died, and no supervisor had ended the run")
