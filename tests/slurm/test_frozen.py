"""The run directory's file system is frozen under a live job: whoever writes there waits, deaf even to SIGKILL."""

from __future__ import annotations

import time

from gangrun.adapters.fs.run_dir import RunPaths
from tests.faults.disk import FreezableDisk
from tests.slurm.cluster import Cluster
from tests.slurm.harness import Run
from tests.waiting import until

FENCE_AFTER_S = 15  # as the harness submits


def test_a_gang_trains_on_while_its_run_directory_is_frozen_for_longer_than_a_lease(
    cluster: Cluster, run: Run, disk: FreezableDisk
) -> None:
    """The logs of warden, agent and supervisor lie there too, and each agent has something to say meanwhile."""
    told = run.step(2, 1, "--runs-dir", str(disk.folder), steps=100_000)
    run.wait_for_step(5)
    disk.freeze()
    cluster.user_run(["scancel", "--signal", "USR1", told["job"]])
    began, seen = time.monotonic(), 0

    def steps_on() -> bool:
        return len(run.rows()) > seen

    while time.monotonic() < began + 1.7 * FENCE_AFTER_S:
        seen = len(run.rows())
        until(steps_on, 3, "the ranks step on")
    disk.thaw()
    seen = len(run.rows())
    until(steps_on, 3, "the ranks step on")
    status = run.wait("what the supervisor found", lambda seen: "answers again" in seen["reason"], 20)
    assert len(status["attempts"]) == 1
    assert {row.attempt for row in run.rows()} == {0}
    log = RunPaths(run.root).process_log(run.host_of(0))
    assert "SIGUSR1 came to this node" in log.read_text(), "said in the freeze, written after it"
    run.gangrun("cancel", run.id, "-y", "--runs-dir", str(disk.folder))
    cluster.assert_clean(20)
