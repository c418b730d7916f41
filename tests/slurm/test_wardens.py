"""Wardens and srun are killed while their nodes live: nobody is excluded, and the job goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from gangrun.node import processes
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped
from tests.waiting import stays, until

SRUN = r"^\S*srun "
LEAVES_A_CHILD = """
    if attempt == 0 and rank == 1:
        import subprocess
        subprocess.Popen(["sleep", "4242"], start_new_session=True)
"""


def goes_on(cluster: Cluster, run: Run, job: str, attempts: list[int]) -> None:
    """To the end, in the same job, with nobody excluded."""
    status = run.end()
    assert status["excluded"] == []
    assert "lease" not in run.explain(), "nobody waited for one"
    assert [one["job"] for one in status["attempts"]] == [job] * len(attempts), run.told()
    assert attempts_that_stepped(run.rows()) == attempts
    run.assert_undisturbed()
    assert cluster.wait_job(job, "COMPLETED", deadline_s=20)["ExitCode"] == "0:0"
    cluster.assert_clean(10)


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_killed_warden_is_started_again_on_its_node(cluster: Cluster, run: Run, leads: bool) -> None:
    """Its supervisor dies with it, if it had one. What a rank left behind is dead before the new agent speaks."""
    job = run.step(3, 1, steps=150, every=5, hook=LEAVES_A_CHILD, stays=True)["job"]
    run.wait_for_step(12)
    host = run.jobs()[0]["BatchHost"] if leads else run.host_of(1)
    child = cluster.processes_on(run.host_of(1), "sleep 4242")
    assert child
    os.kill(cluster.warden_on(host), signal.SIGKILL)
    run.wait_for_step(0, attempt=1)
    assert leads or not cluster.processes_on(host, "sleep 4242")
    goes_on(cluster, run, job, [0, 1])
    told = f"the agent on {host} was restarted: its warden was killed by SIGKILL (9); its ranks died with it"
    assert told in run.explain()


def end_srun(cluster: Cluster, run: Run, host: str) -> None:
    """And wait for the next one."""
    before = {*cluster.kill_on(host, SRUN)}
    until(lambda: {one.pid for one in cluster.processes_on(host, SRUN)} - before, 20, run.told)


def test_the_end_of_the_step_with_its_srun_is_started_again_in_the_same_job(cluster: Cluster, run: Run) -> None:
    """Of srun's two processes one ends the step if the other dies: all wardens are killed, the supervisor with them."""
    job = run.step(3, 1, steps=300, every=5, hook="pace = 0 if attempt else pace", stays=True)["job"]
    run.wait_for_step(12)
    both = {one.pid for one in cluster.processes_on(run.jobs()[0]["BatchHost"], SRUN)}
    (first,) = [pid for pid in both if (proc := processes.read_proc(pid)) and proc.parent not in both]
    killed_at = processes.wall_s()
    os.kill(first, signal.SIGKILL)
    again = run.wait_for_step(0, attempt=1, deadline_s=90)
    assert again.at - killed_at < 30, "nobody waited for a lease, or for a counter to stand still for a minute"
    goes_on(cluster, run, job, [0, 1])
    assert run.explain().count("its warden was killed or crashed; its ranks died with it") == 3


def steps_on(run: Run) -> Callable[[], bool]:
    """Has any rank made a step since the last look?"""
    seen = [len(run.rows())]

    def more() -> bool:
        before, seen[0] = seen[0], len(run.rows())
        return seen[0] > before

    return more


def test_a_killed_srun_costs_no_step_and_wardens_are_watched_all_the_same(cluster: Cluster, run: Run) -> None:
    """The second srun waits beside each warden. It takes the place of one that is killed, and of no other."""
    job = run.step(3, 1, steps=900, every=5, hook="pace = 0 if attempt else pace", stays=True)["job"]
    run.wait_for_step(12)
    host = run.jobs()[0]["BatchHost"]
    for _ in range(2):
        end_srun(cluster, run, host)
        for _ in range(3):
            until(steps_on(run), 3, run.told)
    victim = run.host_of(2)
    os.kill(cluster.warden_on(victim), signal.SIGKILL)
    run.wait_for_step(0, attempt=1)
    stays(lambda: bool(cluster.warden_on(victim)), 3, "one warden")
    goes_on(cluster, run, job, [0, 1])


@pytest.mark.parametrize("code", ["$?", "1"])
def test_an_srun_of_the_site_that_ends_with_a_code_costs_no_step(cluster: Cluster, run: Run, code: str) -> None:
    """It is a script around Slurm's, which is killed: the script ends with an exit code."""
    wrapper = run.script(f'#!/bin/bash\n/usr/bin/srun "$@"\nexit {code}\n', "srun")
    wrapper.chmod(0o755)
    path = f"{run.folder}:{cluster.environment()['PATH']}"
    job = run.step(3, 1, steps=300, every=5, stays=True, env={"PATH": path})["job"]
    run.wait_for_step(12)
    end_srun(cluster, run, run.jobs()[0]["BatchHost"])
    for _ in range(3):
        until(steps_on(run), 3, run.told)
    goes_on(cluster, run, job, [0])
