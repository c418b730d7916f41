"""The server of figures beside a run's owner: a port that is taken, where that is told, and who ends the server."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import read_metrics_fault, write_spec
from gangrun.entry import metrics
from gangrun.launch.sidecars import Sidecars
from gangrun.wire.spec import MetricsSpec
from tests.command_line import Call
from tests.runs.stories import running
from tests.waiting import until


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def test_a_port_that_is_taken_is_told_in_status_and_served_once_it_is_free(runs: Path, gangrun: Call) -> None:
    story, told = running(runs), list[str]()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        spec = msgspec.structs.replace(story.spec, metrics=MetricsSpec(port))
        story.paths.spec.unlink()
        write_spec(Disk(), story.paths, spec)
        sidecars = Sidecars.of(spec, story.paths, os.environ, told.append)
        until(lambda: read_metrics_fault(Disk(), story.paths), 30.0, "the fault is noted")
        (note,) = gangrun("status", "train", "--json").json["notes"]
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in note and "tried again" in note
    assert told[0].startswith(f"figures for Prometheus: http://127.0.0.1:{port}/metrics on ")
    until(lambda: not read_metrics_fault(Disk(), story.paths), 30.0, "the port is free now")
    assert 'gangrun_run_state{run="' in scraped(port)
    assert sidecars.metrics is not None and sidecars.pids == (sidecars.metrics.pid,)
    sidecars.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        scraped(port)
    assert gangrun("status", "train", "--json").json["notes"] == []


def test_an_owner_that_dies_takes_the_server_with_it(runs: Path) -> None:
    story = running(runs)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = msgspec.structs.replace(story.spec, metrics=MetricsSpec(port))
    story.paths.spec.unlink()
    write_spec(Disk(), story.paths, spec)
    server = Sidecars.of(spec, story.paths, os.environ, lambda sentence: None).metrics
    assert server is not None and server._child.stdin is not None
    server._child.stdin.close()  # as the kernel does
    assert server._child.wait(60) == 0


def test_a_client_that_says_nothing_is_left(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ANSWERS_WITHIN_S", 0.1)
    with metrics.figures_served(running(runs).paths, "127.0.0.1", 0) as url:
        port = urlsplit(url).port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
            assert silent.recv(1) == b""
        assert "gangrun_run_state" in scraped(port)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--metrics-port", "0"], "--metrics-port: '0' is not a port: a whole number from 1 to 65535"),
        (["--metrics-port", "9464", "--metrics-address", "203.0.113.7"], "cannot listen on 203.0.113.7:9464: "),
        (["--metrics-port", "9464", "--metrics-address", "häää..x"], "cannot listen on häää..x:9464: "),
    ],
)
def test_where_nobody_can_listen_is_refused_before_anything_starts(
    runs: Path, gangrun: Call, words: list[str], told: str
) -> None:
    said = gangrun("run", *words, "true")
    assert said.code == 2 and told in said.err and not list(runs.iterdir())
