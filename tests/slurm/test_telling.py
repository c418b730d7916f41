"""A submitted run is told by its batch job: the addresses reach it through the run directory alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.slurm import reach
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.waiting import until

TOKEN, PORT, METRICS_PORT = "t0ken-that-nobody-may-see", 18733, 18734
SERVICE = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[2], "ab") as file:
            file.write(body.replace(b"\\n", b" ") + b"\\n")
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SCRAPE = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=30).read().decode())
"""


def options(run: Run) -> list[str]:
    """A service on the job's first node, which lives as long as the batch script."""
    path = f"export PATH={Path(reach.PYTHON).parent}:$PATH"
    service = f"{path}; python {run.script(SERVICE, 'service.py')} {PORT} {run.folder / 'heard'} >/dev/null 2>&1 &"
    return ["--notify", f"json://127.0.0.1:{PORT}/{TOKEN}", "--setup", service]


def messages(run: Run) -> list[dict[str, str]]:
    heard = run.folder / "heard"
    return [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []


def test_a_batch_script_that_stops_before_gangrun_began_has_people_told(cluster: Cluster, run: Run) -> None:
    told = run.step(1, 1, *options(run), "--setup", "module load 'no such'")
    cluster.wait_job(told["job"], "FAILED")
    (one,) = messages(run)
    assert one["title"] == "train failed and needs you"
    assert one["message"].startswith("the setup line [module load 'no such'] failed (exit code ")


def test_a_submitted_run_is_told_by_its_batch_job(cluster: Cluster, run: Run) -> None:
    run.step(1, 2, *options(run), "--metrics-port", str(METRICS_PORT), stays=True)

    def titles() -> list[str]:
        return [one["title"].partition(" after")[0] for one in messages(run)]

    run.wait_for_step(3)
    until(lambda: titles() == ["train started"], 60, lambda: f"the start is told: {titles()}\n{run.told()}")
    assert TOKEN not in cluster.tool("scontrol", "show", "job")
    ranks = run.ranks()
    os.kill(ranks[1][1], signal.SIGKILL)
    run.wait_for_step(3, attempt=1)
    figures = cluster.user_run([reach.PYTHON, "-c", SCRAPE, str(METRICS_PORT)], host=ranks[0][0]).stdout
    assert f'gangrun_ranks{{run="{run.id}"}} 2' in figures
    run.end()
    until(lambda: len(titles()) == 3, 60, lambda: f"all is told: {titles()}\n{run.told()}")
    assert titles() == ["train started", "train recovered", "train succeeded"]
    holders = [path.name for path in run.root.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert holders == ["notify.json"]
