"""``--refill``: a node goes, no spare is left, and a one-node job brings another one to the same job of the run."""

from __future__ import annotations

from gangrun.core.nodeset import unfold
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run, attempts_that_stepped
from tests.waiting import until

TWENTY_MORE = "if attempt: steps = start + 20"
GLOBAL_BATCH = 12
# Each rank trains on its share of the global batch, and writes down on which samples.
SAMPLES = f"""
if attempt == 2: steps = start + 20
def hook(step):
    share = {GLOBAL_BATCH} // world
    first = {GLOBAL_BATCH} * step + share * rank
    with open(folder / f"samples-{{attempt}}-{{rank}}", "a", buffering=1) as log:
        log.write(" ".join(map(str, (step, *range(first, first + share)))) + "\\n")
"""
HELD = '"$real" --hold "$@"'


def refills(run: Run) -> list[dict[str, str]]:
    """Slurm's word of the run's refills."""
    return [job for job in run.jobs() if "+" in job["Comment"]]


def lose_a_node(cluster: Cluster, run: Run) -> str:
    """Power off a host of a rank that is not the batch script's."""
    (job,) = run.jobs()
    lost = next(host for host, _ in run.ranks().values() if host != job["BatchHost"])
    cluster.power_off(lost)
    return lost


def samples_trained_on(run: Run) -> list[int]:
    """Of the steps that count, which are those of the newest attempt that did them; sorted."""
    found: dict[int, dict[int, list[int]]] = {}  # step -> attempt -> samples
    for path in run.steps.glob("samples-*"):
        for line in path.read_text().splitlines():
            step, *samples = map(int, line.split())
            found.setdefault(step, {}).setdefault(int(path.name.split("-")[1]), []).extend(samples)
    return sorted(sample for attempts in found.values() for sample in attempts[max(attempts)])


def test_a_job_holds_its_nodes_until_a_refill_brings_another(cluster: Cluster, run: Run) -> None:
    told = run.step(3, 1, "--refill", "wait:5", "--time", "40", steps=9999, every=5, hook=TWENTY_MORE)
    run.wait_for_step(12)
    lost = lose_a_node(cluster, run)
    status = run.end(deadline_s=150)
    main, refill = run.jobs()
    assert [one["job"] for one in status["attempts"]] == [told["job"]] * 2
    assert [one["node"] for one in status["excluded"]] == [lost]
    before, after = (set(one["nodes"]) for one in status["attempts"])
    assert after - before == {refill["NodeList"]}
    assert status["attempts"][1]["resumed_from_step"] >= 10
    assert attempts_that_stepped(run.rows()) == [0, 1]
    run.assert_undisturbed()
    assert refill["JobName"] == f"{main['JobName']}-refill"
    assert refill["Comment"].strip() == f"gr:{run.id}:0+1"
    assert set(unfold(refill["ExcNodeList"])) == before
    assert "00:30:00" < refill["TimeLimit"] <= main["TimeLimit"] == "00:40:00"
    assert "asking the scheduler for 1 more node (refill 1)" in run.explain()
    cluster.declare_down(lost)
    assert cluster.wait_job(told["job"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.wait_job(refill["JobId"], "FAILED", "CANCELLED")
    cluster.assert_clean(30)


def test_scancel_of_a_refill_ends_the_refill_only(cluster: Cluster, run: Run) -> None:
    """The gang goes on smaller meanwhile. What a person has cancelled is not asked for again."""
    told = run.step(
        3,
        1,
        "--min-nodes",
        "2",
        "--refill",
        "spare",
        steps=9999,
        every=5,
        hook="if attempt: steps = start + 30",
        stays=True,
    )
    run.wait_for_step(12)
    lost = lose_a_node(cluster, run)
    (refill,) = until(lambda: refills(run), 60, run.told)
    run.wait("the refill's node", lambda status: [one["state"] for one in status["refills"]] == ["here"])
    run.wait_for_step(0, attempt=1)
    cluster.user_run(["scancel", refill["JobId"]])
    cluster.wait_job(refill["JobId"], "CANCELLED", deadline_s=60)
    run.wait("the word of it", lambda status: status["refills"] == [])
    status = run.end()
    assert [one["job"] for one in status["attempts"]] == [told["job"]] * 2
    assert [one["node"] for one in status["excluded"]] == [lost]
    assert [len(one["nodes"]) for one in status["attempts"]] == [3, 2]
    assert len(refills(run)) == 1
    cluster.declare_down(lost)
    assert cluster.wait_job(told["job"], "COMPLETED")["ExitCode"] == "0:0"
    cluster.assert_clean(30)


def test_a_run_shrinks_without_a_lost_node_and_grows_onto_a_refill(cluster: Cluster, run: Run) -> None:
    """No sample comes twice or never, and the weights are those of a run that nothing disturbed."""
    told = run.step(
        3, 1, "--min-nodes", "2", "--refill", "spare", "--grow-every", "1s", steps=9999, every=5, hook=SAMPLES,
    )  # fmt: skip
    run.wait_for_step(12)
    lost = lose_a_node(cluster, run)
    status = run.end(deadline_s=150)
    shrunk, grown = status["attempts"][1:]
    assert [one["outcome"] for one in status["attempts"]] == ["node silent", "grown", "succeeded"]
    assert {one["job"] for one in status["attempts"]} == {told["job"]}
    assert [len(one["nodes"]) for one in status["attempts"]] == [3, 2, 3]
    (refill,) = refills(run)
    assert set(grown["nodes"]) - set(shrunk["nodes"]) == {refill["NodeList"]}
    assert {row.host for row in run.rows() if row.attempt == 2} == set(grown["nodes"])
    assert samples_trained_on(run) == list(range(GLOBAL_BATCH * (max(row.step for row in run.rows()) + 1)))
    run.assert_undisturbed()
    assert "the run grows from 2 to 3 ranks" in run.explain()
    cluster.declare_down(lost)
    cluster.wait_job(told["job"], "COMPLETED")
    cluster.assert_clean(30)


def test_a_cancel_leaves_neither_the_job_nor_its_refills(cluster: Cluster, run: Run) -> None:
    """Two refills: one holds ranks, and the other waits in the queue, so all ranks are down."""
    told = run.step(3, 1, "--refill", "wait:5", steps=9999, every=5)
    run.wait_for_step(12)
    lost = [lose_a_node(cluster, run)]
    run.wait_for_step(0, attempt=1)
    (first,) = refills(run)
    cluster.order("sbatch", HELD, times=1)
    (job, _) = run.jobs()
    lost.append(next(host for host, _ in run.ranks().values() if host not in {job["BatchHost"], first["NodeList"]}))
    cluster.power_off(lost[1])
    second = until(lambda: refills(run)[1:], 60, run.told)[0]
    status = run.wait("the wait", lambda status: status["state"] == "WAITING" and "JobHeldUser" in str(status))
    assert [(one["job"], one["state"]) for one in status["refills"]] == [
        (first["JobId"], "here"),
        (second["JobId"], "queued"),
    ]
    cluster.declare_down(*lost)
    run.gangrun("cancel", run.id, within_s=150)
    assert run.status()["state"] == "CANCELLED"
    cluster.wait_job(second["JobId"], "CANCELLED")
    cluster.wait_job(told["job"], "FAILED", "CANCELLED")
    assert [
        row
        for row in cluster.squeue()
        if row["comment"].startswith(f"gr:{run.id}") and "COMPLETING" not in row["state"]
    ] == []
    cluster.assert_clean(60)
