"""A successor that Slurm ended before anything of it ran: what whoever looks is told of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import mark_cancelled
from tests.command_line import Call
from tests.runs.slurm_stories import job, leaving
from tests.runs.test_slurm_queue import status
from tests.slurm_parts.pretend_tools import PretendTools


@pytest.mark.parametrize("last", ["COMPLETED", "COMPLETING"])
@pytest.mark.parametrize(
    ("state", "why"), [("NODE_FAIL", "a node of it failed"), ("BOOT_FAIL", "a node of it did not boot")]
)
def test_a_successor_whose_nodes_died_before_it_began_is_a_failure_and_resume_the_way_out(
    runs: Path, gangrun: Call, tools: PretendTools, state: str, why: str, last: str
) -> None:
    """Slurm waits for a dead node of the job before it, which does no more than that."""
    story = leaving(runs)
    job(tools, story, 12, last, nodes="n1" if last == "COMPLETING" else "")
    job(tools, story, 13, state, "NodeDown", seq=1, nodes="n2")
    found = status(gangrun)
    assert (found["state"], found["failure"], found["exit_code"], found["abandoned"]) == ("FAILED", "node", 1, False)
    words = f"job 13 ended ({state}) before it began, as {why}; nothing runs; gangrun resume {story.run} goes on"
    assert found["reason"].startswith(words)
    said = gangrun("wait")
    assert (said.code, words in " ".join(said.out.split())) == (1, True)
    assert words in " ".join(gangrun("explain").out.split())
    assert gangrun("status", "--all", "--json").json["runs"][0]["reason"] == found["reason"]


def test_a_lost_successor_does_not_hide_that_the_job_before_it_still_runs_or_was_cancelled(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = leaving(runs)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    job(tools, story, 13, "NODE_FAIL", seq=1)
    assert (status(gangrun)["state"], status(gangrun)["exit_code"]) == ("PENDING", None)
    job(tools, story, 12, "COMPLETING", nodes="n1")
    job(tools, story, 13, "CANCELLED", seq=1)
    assert status(gangrun)["state"] == "CANCELLED"
    job(tools, story, 13, "TIMEOUT", seq=1)
    found = status(gangrun)
    assert (found["state"], found["abandoned"]) == ("PENDING", True)
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    job(tools, story, 13, "NODE_FAIL", seq=1)
    assert status(gangrun)["state"] == "CANCELLED"
