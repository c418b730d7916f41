"""Jobs that ended before a supervisor could write: what Slurm, accounting, or the job's number alone still tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangrun.adapters.fs.job_claims import note_job_id
from gangrun.runs.slurm_queue import RunJob, ended_words
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.slurm_stories import NAME, job, leaving, submitted
from tests.runs.test_slurm_queue import status
from tests.slurm_parts.pretend_tools import PretendTools


def no_longer_known(story: Builder, seq: int, number: int) -> None:
    """It was submitted a while ago; MinJobAge is over."""
    note_job_id(story.paths, seq, str(number))
    path = story.paths.batch_scripts / f"job-{seq}.number"
    os.utime(path, (path.stat().st_mtime - 100,) * 2)


@pytest.mark.parametrize("seq", [0, 1])
def test_of_a_job_that_never_began_and_was_forgotten_nobody_knows_more(
    runs: Path, gangrun: Call, tools: PretendTools, seq: int
) -> None:
    story = leaving(runs) if seq else submitted(runs)
    story.paths.batch_scripts.mkdir()
    note_job_id(story.paths, seq, "77")
    assert status(gangrun)["job"] != "77", "submitted this moment: who asked before cannot have seen it"
    no_longer_known(story, seq, 77)
    words = "job 77 never began, and Slurm no longer knows it: it was cancelled in the queue, or purged; no job of this"
    found = status(gangrun)
    assert (found["state"], found["job"], found["abandoned"]) == ("PENDING", "77", True)
    assert found["reason"].startswith(words)
    assert gangrun("status", "--all", "--json").json["runs"][0]["reason"] == found["reason"]
    assert "never began, and Slurm no longer knows it" in " ".join(gangrun("explain").out.split())
    said = gangrun("wait")
    assert (said.code, words in " ".join(said.err.split())) == (3, True)


@pytest.mark.parametrize(
    ("told", "state", "words"),
    [
        (f"CANCELLED by 1000|None assigned|{NAME}", "CANCELLED", "job 77 was cancelled in Slurm (scancel)"),
        (f"CANCELLED by 0|n[0-1]|{NAME}", "FAILED", "job 77 was not started: Slurm ended it before anything of it"),
        (f"NODE_FAIL|n[0-1]|{NAME}", "FAILED", "job 77 ended (NODE_FAIL) before it began, as a node of it failed"),
        (f"TIMEOUT|n[0-1]|{NAME}", "PENDING", "job 77 ended at its time limit"),
        ("COMPLETED|n[0-1]|somebody else's", "PENDING", "job 77 never began, and Slurm no longer knows it"),
        (f"RUNNING|n[0-|{NAME}", "PENDING", "job 77 never began, and Slurm no longer knows it"),
        ("", "PENDING", "job 77 never began, and Slurm no longer knows it"),
        (f"FAILED|n[0-|{NAME}", "PENDING", "job 77 ended in Slurm's state FAILED"),
    ],
)
def test_where_there_is_accounting_it_remembers(
    runs: Path, gangrun: Call, tools: PretendTools, told: str, state: str, words: str
) -> None:
    story = submitted(runs)
    story.paths.batch_scripts.mkdir()
    no_longer_known(story, 0, 77)
    tools.change(accounting={"77": told})
    found = status(gangrun)
    assert (found["state"], found["abandoned"]) == (state, state == "PENDING")
    assert found["reason"].startswith(words)
    assert len(tools.calls("sacct")) == 1


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("JobLaunchFailure", ": a node could not start it"),
        ("RaisedSignal:9(Killed)", "(RaisedSignal:9(Killed)); no job"),
    ],
)
def test_slurms_reason_for_an_end_is_said(
    runs: Path, gangrun: Call, tools: PretendTools, reason: str, words: str
) -> None:
    killed = RunJob(job="12", state="FAILED", reason=reason, ended=True, began=True)
    assert ended_words(killed) == f"job 12 ended in Slurm's state FAILED ({reason}): its batch script was killed"
    job(tools, submitted(runs), 12, "FAILED", reason, nodes="n[0-1]")
    found = status(gangrun)
    assert (found["state"], found["abandoned"]) == ("PENDING", True)
    assert words in found["reason"]
