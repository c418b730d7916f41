"""Ranks, nodes and links break under a run on a real cluster: what gangrun says of it, and what Slurm does."""

from __future__ import annotations

import pytest

from tests.slurm import reach
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped
from tests.waiting import until

TWENTY_MORE = "if attempt: steps = start + 20"
TRAIN = reach.ROOT / "examples" / "ddp_minimal" / "train.py"


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
def test_a_lost_node_is_left_out_of_the_next_job_and_no_bit_of_the_weights_differs(cluster: Cluster, run: Run) -> None:
    """Slurm believes in the node for minutes; beside it, the same training undisturbed."""
    other = Run(cluster, "undisturbed")
    for one, step_s in ((run, "0.3"), (other, "0.05")):  # of the one there is time to lose a node
        saves = one.saves_made()
        one.submit("-N", "2", "--exclusive", "--checkpoint-dir", saves, TRAIN, "--steps", "24",
                   "--checkpoint-every", "6", "--step-time", step_s, "--checkpoint-dir", saves,
                   "--final", one.folder / "final")  # fmt: skip
    until(run.saved, 60, lambda: f"a checkpoint\n{run.told()}")
    (first,) = run.jobs()
    lost = next(host for host, _ in run.ranks().values() if host != first["BatchHost"])
    until(lambda: 12 in run.saved(), 60, lambda: f"the second one\n{run.told()}")
    cluster.power_off(lost)
    status = run.end()
    second = run.jobs()[1]
    assert second["ExcNodeList"] == lost
    assert [one["job"] for one in status["attempts"]] == [first["JobId"], second["JobId"]]
    assert status["attempts"][1]["resumed_from_step"] >= 12
    assert [one["node"] for one in status["excluded"]] == [lost]
    assert cluster.wait_job(second["JobId"], "COMPLETED")["ExitCode"] == "0:0"
    assert cluster.nodes()[lost].startswith("completing")  # nobody waited for Slurm to believe it
    assert other.end()["restarts"] == 0
    assert (run.folder / "final").read_bytes() == (other.folder / "final").read_bytes()
    cluster.declare_down(lost)
    assert cluster.wait_job(first["JobId"], "FAILED")["ExitCode"] == "75:0"
    cluster.assert_clean(10)


@pytest.mark.timeout(600)
def test_batch_host_and_spare(cluster: Cluster, run: Run) -> None:
    """Two runs at once: one loses the host of its batch script and its supervisor, the other has a spare."""
    spared = Run(cluster, "with a spare")
    spared.step(2, 1, "--spares", "1", "-w", "n[4-6]", steps=9999, every=5, hook=TWENTY_MORE)
    run.step(3, 1, "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE)
    for one in (run, spared):
        one.wait_for_step(12)
    (first,), (only,) = run.jobs(), spared.jobs()
    cluster.power_off(first["BatchHost"])
    lost = next(host for host, _ in spared.ranks().values() if host != only["BatchHost"])
    cluster.power_off(lost)
    status = spared.end()
    assert [one["job"] for one in status["attempts"]] == [only["JobId"]] * 2
    assert [one["node"] for one in status["excluded"]] == [lost]
    assert len(spared.jobs()) == 1
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
