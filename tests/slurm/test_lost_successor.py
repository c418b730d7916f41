"""All nodes of the next job die before anything of it has run: nobody is left who could ask for another."""

from __future__ import annotations

from tests.slurm.cluster import Cluster
from tests.slurm.harness import GANGRUN, TINY, Run, attempts_that_stepped
from tests.waiting import until

HELD = '"$real" --hold "$@"'
TWENTY_MORE = "if attempt: steps = start + 20"


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
    words = f"job {second} ended (NODE_FAIL) before it began, as a node of it failed; nothing runs"
    assert status["reason"].startswith(f"{words}; gangrun resume {run.id} goes on")
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
