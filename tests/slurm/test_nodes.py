"""Ranks, nodes and links break under a run on a real cluster, one way and both: what is said of it, what Slurm does."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.harness import GANGRUN, TINY, TRAINS, Run, attempts_that_stepped
from tests.waiting import until

TWENTY_MORE = "if attempt: steps = start + 20"
WAITED = """
import msgspec  # an installed module, which a standby imports beforehand
if attempt: steps = start + 20
if b"GANGRUN_STANDBY_FDS" in open("/proc/self/environ", "rb").read():
    (saves.parent / f"rank-{rank}-of-attempt-{attempt}-waited").touch()
"""


def test_a_killed_rank_is_started_again_in_the_same_job(cluster: Cluster, run: Run) -> None:
    """Its newest checkpoint is torn, too: the one before it is taken, and that is said."""
    killed = """
        def hook(step):
            if (step, rank, attempt) == (12, 0, 0):
                payload = saves / "step-10" / "__0_0.distcp"
                payload.write_bytes(payload.read_bytes()[:700])
                os.kill(os.getpid(), signal.SIGKILL)
    """
    told = run.step(2, 2, steps=25, every=5, hook=killed)
    after = cluster.submit("true", f"--dependency=afterok:{told['job']}")
    status = run.end()
    assert status["restarts"] == 1
    assert [one["resumed_from_step"] for one in status["attempts"]] == [None, 5]
    assert [one["job"] for one in status["attempts"]] == [told["job"]] * 2
    assert attempts_that_stepped(run.rows()) == [0, 1]
    run.assert_undisturbed()
    assert status["excluded"] == []
    assert "passed over: step 10: " in run.explain()
    assert cluster.wait_job(told["job"], "COMPLETED")["ExitCode"] == "0:0"
    assert [(job["JobId"], job["Restarts"]) for job in run.jobs()] == [(told["job"], "0")]
    cluster.wait_job(after, "COMPLETED", deadline_s=20)
    cluster.assert_clean(10)


def test_a_bug_fails_the_run_and_its_job(cluster: Cluster, run: Run) -> None:
    bug = """
        def hook(step):
            if step == 7 and rank == 1: raise ValueError("shapes do not match")
    """
    told = run.step(2, 1, steps=40, hook=bug)
    status = run.end("FAILED")
    assert "ValueError: shapes do not match" in status["reason"]
    assert status["excluded"] == []
    assert cluster.wait_job(told["job"], "FAILED")["ExitCode"] == "1:0"
    assert len(run.jobs()) == 1
    cluster.assert_clean(10)


@pytest.mark.timeout(600)
def test_batch_host_and_spare(cluster: Cluster, run: Run) -> None:
    """Two runs at once: one loses the host of its batch script and its supervisor, the other has a spare, which keeps a
    standby like the nodes with ranks.
    """
    spared = Run(cluster, "with a spare")
    spared.step(2, 1, "--spares", "1", "-w", "n[4-6]", steps=9999, every=5, hook=WAITED)
    run.step(3, 1, "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE)
    for one in (run, spared):
        one.wait_for_step(12)
    (first,), (only,) = run.jobs(), spared.jobs()
    spared.wait("standbys on all nodes", lambda status: (status["standbys"] or {}).get("nodes") == "n[4-6]", 90)
    cluster.power_off(first["BatchHost"])
    lost = next(host for host, _ in spared.ranks().values() if host != only["BatchHost"])
    cluster.power_off(lost)
    status = spared.end()
    assert [one["job"] for one in status["attempts"]] == [only["JobId"]] * 2
    assert [one["node"] for one in status["excluded"]] == [lost]
    assert len(spared.jobs()) == 1
    assert len([*spared.steps.glob("rank-*-of-attempt-1-waited")]) == 2, "both ranks of the second attempt were warm"
    status = run.end()
    second = run.jobs()[1]
    assert second["ExcNodeList"] == first["BatchHost"]
    for one in (run, spared):
        assert one.status()["attempts"][1]["resumed_from_step"] >= 10
        assert attempts_that_stepped(one.rows()) == [0, 1]
        one.assert_undisturbed()
    cluster.declare_down(lost, first["BatchHost"])
    for job in (only, second):
        assert cluster.wait_job(job["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.assert_clean(20)


HELD = '"$real" --hold "$@"'


def test_a_successor_whose_nodes_die_before_it_begins_is_told_and_resume_goes_on(cluster: Cluster, run: Run) -> None:
    run.step(2, 1, steps=9999, every=5, hook=TWENTY_MORE)
    run.wait_for_step(12)
    cluster.order("sbatch", HELD, times=1)
    (first,) = run.jobs()
    lost = next(host for host, _ in run.ranks().values() if host != first["BatchHost"])
    cluster.power_off(lost)
    second = until(lambda: run.jobs()[1:], 60, run.told)[0]["JobId"]
    run.wait("word that it waits", lambda status: status["state"] == "PENDING")
    for dead in ("n5", "n6"):
        cluster.power_off(dead)
    cluster.tool("scontrol", "update", f"JobId={second}", "ReqNodeList=n[5-6]")
    cluster.tool("scontrol", "release", second)
    cluster.wait_job(second, "RUNNING")
    cluster.declare_down("n5", "n6")
    cluster.wait_job(second, "NODE_FAIL")
    status = run.end("FAILED")
    assert (status["failure"], status["abandoned"]) == ("node", False)
    words = f"job {second} ended (NODE_FAIL) before it began, as a node of it failed; nothing runs now"
    assert status["reason"].startswith(f"{words}; gangrun resume {run.id} continues the run")
    told = cluster.user_run([*GANGRUN, "wait", run.id], cwd=run.folder, check=False)
    assert (told.returncode, words in told.stdout) == (1, True)
    assert words.removeprefix(f"job {second} ") in run.explain()
    cluster.declare_down(lost)
    cluster.wait_job(first["JobId"], "FAILED")
    run.gangrun("resume", run.id, env={"HOOK": TWENTY_MORE, "TINY": str(TINY), "MAY_END": ""})
    status = run.end()
    assert [job["JobId"] for job in run.jobs()][:2] == [first["JobId"], second]
    assert [one["job"] for one in status["attempts"]] == [first["JobId"], run.jobs()[2]["JobId"]]
    assert status["attempts"][1]["resumed_from_step"] >= 10
    assert attempts_that_stepped(run.rows()) == [0, 1]
    run.assert_undisturbed()
    cluster.assert_clean(20)


def test_a_run_that_lost_all_its_processes_resumes_from_the_step_that_is_asked_for(cluster: Cluster, run: Run) -> None:
    run.step(2, 1, "-w", "n[1-2]", steps=9999, every=5, hook=TWENTY_MORE)
    run.wait_for_step(16)
    (first,) = run.jobs()
    for name in ("n2", "n1"):
        cluster.kill_on(name, "")
    cluster.wait_job(first["JobId"], "FAILED")
    run.wait("that nobody is left", lambda status: bool(status["abandoned"]))
    run.gangrun("resume", run.id, "--resume", "5", env={"HOOK": TWENTY_MORE, "TINY": str(TINY), "MAY_END": ""})
    status = run.end(deadline_s=150)
    assert [one["resumed_from_step"] for one in status["attempts"]] == [None, 5]
    assert [one["job"] for one in status["attempts"]] == [job["JobId"] for job in run.jobs()]
    cluster.assert_clean(20)


def test_a_good_node_that_slurm_counts_as_down_for_a_moment_is_not_excluded(cluster: Cluster, run: Run) -> None:
    """Slurm kills what runs there and takes the node out of the job; a second later the node is idle again."""
    run.step(3, 1, "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE)
    run.wait_for_step(12)
    (first,) = run.jobs()
    taken = next(host for host, _ in run.ranks().values() if host != first["BatchHost"])
    cluster.declare_down(taken)
    status = run.end()
    assert status["excluded"] == []
    assert f"not excluded, as Slurm took {taken} out of job {first['JobId']}" in run.explain()
    assert [job["ExcNodeList"] for job in run.jobs()] == ["(null)", "(null)"]
    assert status["attempts"][1]["resumed_from_step"] >= 10
    assert attempts_that_stepped(run.rows()) == [0, 1]
    run.assert_undisturbed()
    cluster.assert_clean(20)


def test_the_power_of_a_node_goes_and_comes_back_in_one_job(cluster: Cluster, run: Run) -> None:
    """The run goes on with fewer nodes and grows again. A node that boots before Slurm misses it ends the whole step:
    Slurm finds a task missing, and srun kills the others. So the last attempt begins after a second failure.
    """
    more = "if attempt and world == 3: steps = start + 20"
    told = run.step(3, 1, "--min-nodes", "2", "--grow-every", "1s", steps=9999, every=5, hook=more)
    run.wait_for_step(12)
    (job,) = run.jobs()
    lost = next(host for host, _ in run.ranks().values() if host != job["BatchHost"])
    cluster.power_off(lost)
    run.wait_for_step(0, attempt=1)
    cluster.power_on(lost)
    status = run.end(deadline_s=150)
    first, smaller, *_, last = status["attempts"]
    assert [len(one["nodes"]) for one in (first, smaller, last)] == [3, 2, 3]
    assert lost not in smaller["nodes"] and lost in last["nodes"]
    assert status["excluded"] == []
    assert f"{lost} is heard again and passed its checks, so it is used again" in run.explain()
    assert attempts_that_stepped(run.rows())[:2] == [0, 1]
    run.assert_undisturbed()
    assert [one["JobId"] for one in run.jobs()] == [told["job"]]
    assert cluster.wait_job(told["job"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.assert_clean(20)


LEASE_ENDS_WITHIN_S = 15 * 1.01 + 1 + 0.25  # of a node's last word: --fence-after, its drift, a kill, a warden's wake


@pytest.mark.timeout(600)
def test_a_supervisor_that_nobody_hears_and_a_node_that_hears_nobody(cluster: Cluster, run: Run) -> None:
    """Two runs at once: one has a spare. Ranks meet on the shared disk, so no cut stops a gang by itself."""
    spared = Run(cluster, "one way, with a spare")
    spared.step(2, 1, "--spares", "1", "-w", "n[4-6]", steps=9999, every=5, hook=TWENTY_MORE)
    run.step(3, 1, "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE)
    for one in (run, spared):
        one.wait_for_step(12)
    (first,), (only,) = run.jobs(), spared.jobs()
    leader = first["BatchHost"]
    other = next(host for host, _ in spared.ranks().values() if host != only["BatchHost"])
    cluster.cut_one_way(leader, "out")
    cluster.cut_one_way(other, "in")
    until(
        lambda: not [one for lost in (leader, other) for one in cluster.processes_on(lost, TRAINS)],
        LEASE_ENDS_WITHIN_S + 5, lambda: f"dead ranks on {leader} and {other}\n{run.told()}\n{spared.told()}",
    )  # fmt: skip
    for one, lost in ((spared, other), (run, leader)):
        one.wait_for_step(0, attempt=1)
        cluster.heal(lost)
    for one, lost in ((spared, other), (run, leader)):
        status = one.end()
        assert [found["node"] for found in status["excluded"]] == [lost]
        assert attempts_that_stepped(one.rows()) == [0, 1]
        one.assert_undisturbed()
        assert lost not in status["attempts"][1]["nodes"]
        assert status["attempts"][1]["resumed_from_step"] >= 10
    assert [found["job"] for found in spared.status()["attempts"]] == [only["JobId"]] * 2
    _, second = run.jobs()
    assert second["ExcNodeList"] == leader
    for job in (only, second):
        assert cluster.wait_job(job["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.declare_down(leader)
    cluster.wait_job(first["JobId"], "CANCELLED")
    cluster.assert_clean(60)
