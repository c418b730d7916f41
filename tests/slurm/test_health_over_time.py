"""What becomes of a node's hardware while no job of the run is there to see it, on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.slurm.scheduler import SlurmScheduler
from tests.health.looks import write
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.slurm.test_health import TWENTY_MORE, Gpus
from tests.slurm.test_scheduler import UsersTools
from tests.waiting import until

pytestmark = pytest.mark.compiler
EDAC = "sys/devices/system/edac/mc/mc0/"


def memory(gpus: Gpus, host: str, lost_count: int) -> None:
    """A host with a memory controller, in a boot of its own; readable by the user."""
    root = gpus.root / host
    files = {f"{EDAC}ue_count": f"{lost_count}\n", f"{EDAC}ce_count": "0\n"}
    write(root, {"proc/sys/kernel/random/boot_id": f"boot-of-{host}\n", **files})


def kept(run: Run, host: str) -> Path:
    return run.root / ".gangrun" / "health" / f"{host}.json"


@pytest.mark.timeout(240)
def test_memory_that_failed_between_two_jobs_is_seen_by_the_next(cluster: Cluster, run: Run) -> None:
    gpus = Gpus(run)
    for host in ("n1", "n2", "n3"):
        memory(gpus, host, 7)  # of a time before the run: says nothing
    run.step(2, 1, "--spares", "1", "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE, env=gpus.environment)
    run.wait_for_step(8)
    sick = run.host_of(0)
    file = kept(run, sick)
    until(lambda: file.exists() and "ue_count" in file.read_text(), 60, run.told)
    run.gangrun("cancel", run.id)
    (first,) = run.jobs()
    cluster.wait_job(first["JobId"], "COMPLETED", "CANCELLED", "FAILED", deadline_s=60)
    memory(gpus, sick, 9)
    run.gangrun("resume", run.id, env={**gpus.environment, "HOOK": TWENTY_MORE, "MAY_END": ""})
    status = run.end(deadline_s=120)
    assert [one["node"] for one in status["excluded"]] == [sick]
    assert {row.host for row in run.rows() if row.attempt} == {"n1", "n2", "n3"} - {sick}
    assert "mc0: uncorrected memory errors rose from 7 to 9 in" in run.explain()
    run.gangrun("nodes", "clear", sick)
    cluster.assert_clean(20)


def test_slurm_says_when_a_node_has_booted(cluster: Cluster) -> None:
    slurm, now = SlurmScheduler(UsersTools(cluster)), SystemClock().wall()
    assert slurm.booted_since({"n1": 0.0, "n2": now, "n9": 0.0, "n3": 0.0}) == (), "one is no node: nothing is known"
    assert slurm.booted_since({"n1": 0.0, "n2": now, "n3": 0.0}) == ("n1", "n3")
