"""``gangrun health`` on other nodes: through srun, of a run, and in pairs over a network that is broken on purpose."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

import pytest

from tests.slurm import reach
from tests.slurm.cluster import Cluster
from tests.slurm.harness import GANGRUN, Run
from tests.waiting import until


def health(run: Run, *words: str, code: int, within_s: float = 60.0, **more: Any) -> dict[str, Any]:
    done = run.cluster.user_run(
        [*GANGRUN, "health", "--json", *words], cwd=run.folder, check=False, within_s=within_s, **more
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def words_of(told: dict[str, Any]) -> dict[str, str]:
    return {one["node"]: one["verdict"] for one in told["nodes"]}


def test_nodes_are_asked_where_they_are_and_the_worst_comes_first(run: Run, cluster: Cluster) -> None:
    for node in ("n1", "n3"):
        cluster.user_run(["mkdir", "/tmp/here"], host=node)
    told = health(run, "--nodes", "n[1-3]", "--path", "/tmp/here", code=1)
    assert {node: word for node, word in words_of(told).items() if word == "fail"} == {"n2": "fail"}
    done = cluster.user_run([*GANGRUN, "health", "--nodes", "n[1-9]"], cwd=run.folder, check=False)
    assert (done.returncode, "Slurm has no node n[7-9]" in done.stderr) == (2, True), done.stderr
    # inside an allocation it is a step beside all others; of a job that is elsewhere nothing is asked
    call, out = f"{' '.join(GANGRUN)} health --nodes", f">> {run.folder}/inside 2>&1"
    script = f"{call} n2 --path /tmp/here {out}; echo code $? {out}; {call} n4 {out}"
    (run.folder / "inside").touch()
    (run.folder / "inside").chmod(0o666)
    cluster.wait_job(
        cluster.submit(script, "-w", "n[1-2]", "-N2", "-o", "/dev/null"), "COMPLETED", "FAILED", deadline_s=60
    )
    inside = (run.folder / "inside").read_text()
    words = "/tmp/here: the directory cannot be written: No such file or directory"
    assert f"fail     n2\n         fail  {words}" in inside
    assert "\ncode 1\n" in inside
    assert "has no node n4" in inside


def test_of_a_run_its_nodes_are_told(run: Run) -> None:
    run.step(2, 1, steps=9999)
    run.wait_for_step(1)
    told = health(run, run.id, code=0)
    assert set(words_of(told)) == set(run.status()["nodes"])
    assert all(one["checks"] for one in told["nodes"]), "they were asked now"
    run.gangrun("cancel", run.id)


def test_in_pairs_the_slow_and_the_broken_node_are_named(run: Run, cluster: Cluster) -> None:
    """n2 behind a link of 4 Mb/s; n5 is cut from its peers, and only from them."""
    cluster.room.throttle("n2", "4mbit")
    peers = [f"n{k}" for k in (1, 2, 3, 4, 6)]
    for peer in peers:
        cluster.room.run("n5", "ip", "route", "add", "blackhole", f"{cluster.room.hosts[peer].address}/32")
    try:
        told = health(run, "--network", "--nodes", "n[1-6]", code=1, within_s=180.0)
    finally:
        for peer in peers:
            cluster.room.run("n5", "ip", "route", "del", "blackhole", f"{cluster.room.hosts[peer].address}/32")
    assert {node for node, word in words_of(told).items() if word == "fail"} == {"n2", "n5"}, told
    said = {one["node"]: one["wrong"][0]["sentence"] for one in told["nodes"] if one["wrong"]}
    assert "the network of n2 is slow" in said["n2"]
    assert "the network of n5 does not get through" in said["n5"]


@pytest.mark.slow
def test_the_printed_lines_test_devices_and_pairs(run: Run, cluster: Cluster) -> None:
    """As cron and Slurm would start them: nothing of the shell that printed them, in the user's home."""
    tools, home = run.folder / "bin", run.folder / "home"
    tools.mkdir(mode=0o755)
    home.mkdir()
    home.chmod(0o777)
    for name in ("crontab", "scrontab"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    path = f"PATH={tools}:{os.environ['PATH']}"
    call = ["env", path, f"HOME={home}", *GANGRUN, "health", "--schedule", "03:30", "--nodes", "n[1-2]"]
    told = cluster.user_run([*call, "--path", "/tmp"], cwd=run.folder)
    assert "scrontab is not enabled" in told.stderr and "#SCRON" not in told.stdout
    cluster.reconfigure(ScronParameters="enable")
    head, crontab, other, *scrontab = cluster.user_run([*call, "--path", "/tmp"], cwd=run.folder).stdout.splitlines()
    assert (head, other) == ("# crontab -e, on this host:", "# scrontab -e, on any host of this cluster:")
    assert crontab.startswith("30 3 * * * ") and scrontab[-1].startswith("30 3 * * * ")
    bare = ["env", "-i", f"HOME={home}", "PATH=/usr/bin:/bin", "/bin/sh", "-c"]
    done = cluster.user_run([*bare, crontab[11:]], cwd=home, check=False, within_s=200.0)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    gone = cluster.user_run(
        [*bare, crontab[11:].replace("--path=/tmp", "--path=/tmp/gone")], cwd=home, check=False, within_s=200.0
    )
    assert (gone.returncode, "/tmp/gone: the directory cannot be written" in gone.stdout) == (1, True), gone.stdout
    options = [line.replace("#SCRON ", "") for line in scrontab[:-1]]
    job = cluster.submit(scrontab[-1][11:], *(word for line in options for word in shlex.split(line)))
    cluster.wait_job(job, "COMPLETED", "FAILED", deadline_s=300)
    log = home / "gangrun-health.log"
    assert (cluster.job(job)["JobState"], log.read_text()) == ("COMPLETED", "")


def test_the_prolog_keeps_a_job_from_a_sick_node(cluster: Cluster) -> None:
    """As an administrator sets it up: the node is drained with the sentence, and the job waits for another."""
    folder = cluster.folder("prolog")
    program, prolog = folder / "gangrun", folder / "health-prolog.sh"
    wrapper = f'#!/bin/bash\nexec {" ".join(GANGRUN)} "$@" --path /tmp/there\n'
    template = (reach.ROOT / "slurm-templates" / prolog.name).read_text()
    for path, text in ((program, wrapper), (prolog, template.replace("/opt/gangrun/bin/gangrun", str(program)))):
        path.write_text(text)
        path.chmod(0o755)
    cluster.user_run(["mkdir", "/tmp/there"], host="n2")
    cluster.reconfigure(Prolog=str(prolog))
    sick, well = (cluster.submit("true", "-w", node, "-o", "/dev/null") for node in ("n1", "n2"))
    cluster.wait_job(well, "COMPLETED", deadline_s=60)
    until(lambda: "drain" in cluster.nodes()["n1"], 60, cluster.told)
    said = cluster.tool("scontrol", "show", "node", "n1", "--oneliner")
    assert "Reason=gangrun: storage_answers: /tmp/there: the directory cannot be written" in said
    assert cluster.job(sick)["JobState"] != "COMPLETED"
