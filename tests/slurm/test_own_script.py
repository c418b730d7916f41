"""``gangrun run`` in a user's own sbatch script or salloc: it goes on where it can, and stops and tells where not."""

from __future__ import annotations

import json
import shlex
import signal

from tests.slurm.cluster import Cluster
from tests.slurm.harness import GANGRUN, SHORT, TINY, Run, attempts_that_stepped
from tests.slurm.test_preemption import comes_back
from tests.stepper import STEPPER
from tests.waiting import PATIENCE, until

SCRIPT = """#!/bin/bash
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:URG@60
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=own-%j.out
echo "the script runs on $SLURM_JOB_NODELIST"
ulimit -d 3000000
export TINY={tiny} MAY_END={may_end} HOOK='pace = 0 if attempt else pace'
exec {command}
"""


def test_a_lost_node_of_a_script_of_ones_own(cluster: Cluster, run: Run) -> None:
    words = [*GANGRUN, "run", *SHORT, "--nproc-per-node", "2", "--checkpoint-dir", run.saves_made()]
    words += [run.script(STEPPER), run.steps, "60", "0.05", "10"]
    own = run.folder / "own.sbatch"
    own.write_text(
        SCRIPT.format(
            tiny=shlex.quote(str(TINY)), may_end=shlex.quote(str(run.may_end)), command=shlex.join(map(str, words))
        )
    )
    job = cluster.user_run(["sbatch", "--parsable", own], cwd=run.folder).stdout.strip()
    said = run.folder / f"own-{job}.out"
    (run.root,) = until(lambda: [*run.folder.glob("gangrun_runs/*")], 60, lambda: f"a run\n{said.read_text()}")
    run.id = run.root.name
    run.wait_for_step(13)
    batch_host = cluster.job(job)["BatchHost"]
    (lost,) = {host for host, _ in run.ranks().values()} - {batch_host}
    cluster.power_off(lost)
    comes_back(cluster, job, batch_host, lost=lost)
    status = run.end()
    ended = cluster.wait_job(job, "COMPLETED")
    assert (ended["Restarts"], ended["ExitCode"], ended["ExcNodeList"]) == ("1", "0:0", lost)
    assert [*run.folder.glob("gangrun_runs/*")] == [run.root], said.read_text()
    assert said.read_text().count("the script runs on ") == 2
    assert [found["node"] for found in status["excluded"]] == [lost]
    assert [found["job"] for found in status["attempts"]] == [job] * 2
    assert lost not in status["attempts"][1]["nodes"]
    assert status["attempts"][1]["resumed_from_step"] >= 10
    assert attempts_that_stepped(run.rows()) == [0, 1]
    run.assert_undisturbed()
    assert "a process may have 3.1 GB of data (`ulimit -d`)" in run.explain()
    assert json.loads(run.gangrun("wait", run.id, "--json"))["exit_code"] == 0
    cluster.assert_clean(10)


FALLS = "def hook(step):\n    if step == 8 and rank == 1: os._exit(3 + attempt)"


def test_in_salloc_it_uses_all_nodes_and_ends_with_its_story(cluster: Cluster, run: Run) -> None:
    words = ["salloc", "-N", "2", *GANGRUN, "run", "--json", *SHORT, "--nproc-per-node", "1", "--max-restarts", "1"]
    told, said = run.folder / "told", run.folder / "said"
    env = {"TINY": str(TINY), "HOOK": FALLS, "MAY_END": ""}
    with told.open("wb") as out, said.open("wb") as err:
        salloc = cluster.popen(
            [*words, run.script(STEPPER), run.steps, "9999", "0.05", "0"],
            cwd=run.folder,
            env=env,
            stdout=out,
            stderr=err,
        )
        assert salloc.wait(120 * PATIENCE) == 1, said.read_text()
    status = json.loads(told.read_text())
    assert (status["state"], status["world"], status["failure"]) == ("FAILED", "slurm", "budget"), status["reason"]
    nodes = [sorted(one["nodes"]) for one in status["attempts"]]
    assert nodes == [nodes[0]] * 2 and len(nodes[0]) == 2, "in place, on all that is held"
    assert "rank 1" in status["reason"] and status["excluded"] == []
    assert attempts_that_stepped(run.rows()) == [0, 1]
    assert {row.host for row in run.rows()} == set(nodes[0])
    assert cluster.calls("sbatch") == []
    cluster.assert_clean(30)


SAVES_AT_TERM = """
def saves(*_):
    time.sleep(1)
    (folder / f"saved-{rank}").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, saves)
"""


def test_a_closed_terminal_in_salloc_cancels_once_and_the_ranks_save(cluster: Cluster, run: Run) -> None:
    """A shell may pass SIGHUP on more than once. Salloc would give its nodes up at once: it gets none."""
    words = ["salloc", "-N", "2", *GANGRUN, "run", "-q", *SHORT, "--nproc-per-node", "1"]
    said = run.folder / "said"
    with said.open("wb") as err:
        salloc = cluster.popen(
            [*words, run.script(STEPPER), run.steps, "9999", "0.05", "0"],
            cwd=run.folder, env={"TINY": str(TINY), "HOOK": SAVES_AT_TERM, "MAY_END": ""}, stdout=err, stderr=err,
        )  # fmt: skip
        (run.root,) = until(lambda: [*run.folder.glob("gangrun_runs/*")], 60, said.read_text)
        run.id = run.root.name
        run.wait_for_step(5)
        for _ in range(2):
            cluster.kill_on("login", r"^\S*python\S* .*gangrun run", signal.SIGHUP)
        status = run.end("CANCELLED")
        salloc.wait(60 * PATIENCE)
    assert "SIGHUP (the terminal was closed)" in status["reason"] and "killing all ranks" not in said.read_text(), (
        said.read_text()
    )
    assert {path.name for path in run.steps.glob("saved-*")} == {"saved-0", "saved-1"}, said.read_text()
    cluster.assert_clean(30)
