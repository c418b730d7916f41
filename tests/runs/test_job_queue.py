"""status, wait and explain of a run on Slurm: its journal's word, Slurm's where that is newer, accounting's at last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import note_job_id
from gangrun.adapters.fs.run_dir import mark_cancelled
from gangrun.core.events import CancelRequested
from gangrun.core.model import Failure, Phase
from gangrun.launch.slurm_batch_job import note_stopped
from gangrun.runs.follow import Follower
from gangrun.runs.job_queue import RunJob, ended_words
from gangrun.runs.snapshot import read
from gangrun.runs.state import run_state
from gangrun.wire.submission import comment
from tests.command_line import Call, golden
from tests.runs.builder import Builder
from tests.runs.slurm_stories import NAME, held, job, leaving, submitted
from tests.runs.stories import running, succeeded
from tests.slurm_parts.pretend_tools import PretendTools
from tests.waiting import until

REPO = Path(__file__).parents[2]
SCANCELLED = "slurmstepd-n0: error: *** JOB 12 ON n0 CANCELLED AT 2026-11-18T12:00:00 ***\n"


def status(gangrun: Call) -> dict:
    said = gangrun("status", "--json")
    assert said.code == 0, said
    return dict(said.json)


# ---- before any supervisor ----


def test_a_run_in_the_queue_is_pending_for_slurms_own_reason(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs)
    job(tools, story, 12, "PENDING", "Resources")
    found = status(gangrun)
    text = json.dumps(found, indent=2, sort_keys=True).replace(str(runs), "/runs") + "\n"
    golden("status-queued.json", text)
    assert found["reason"] == "job 12 waits in the queue (Resources): for free nodes"
    assert found["world_size"] == 4
    page = gangrun("status").out
    assert "job         12 pending (Resources), partition main" in page
    assert "logs/job-12.out" in page.replace("\n  ", "")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "(Priority): jobs of higher priority come first"),
        ("None", "(Slurm has not looked at it yet)"),
        ("Dependency", "(Dependency for afterok:9(unfulfilled))"),
        ("QOSMaxCpuPerUserLimit", "(QOSMaxCpuPerUserLimit)"),
        ("ReqNodeNotAvail, UnavailableNodes:n3", "(ReqNodeNotAvail, UnavailableNodes:n3): nodes that it asks for"),
        ("JobHeldUser", "(JobHeldUser): it is held by its user; gangrun resume"),
        ("JobHeldAdmin", "(JobHeldAdmin): it is held by an admin"),
        ("launch failed requeued held", "(launch_failed_requeued_held): Slurm holds it, as its start failed on a node"),
    ],
)
def test_why_it_waits_is_said_in_words(runs: Path, gangrun: Call, tools: PretendTools, reason: str, words: str) -> None:
    story = submitted(runs)
    job(tools, story, 12, "PENDING", reason, dependency="afterok:9(unfulfilled)")
    found = status(gangrun)
    assert words in found["reason"]
    assert found["state"] == "PENDING"
    assert found["scheduler"]["jobs"][0]["held"] is ("resume" in words or "held" in words)
    assert ("gangrun resume" in found["reason"]) is (reason in {"JobHeldUser", "launch failed requeued held"})


def test_a_job_that_runs_and_has_no_supervisor_yet(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    assert status(gangrun)["reason"] == "job 12 runs on n[0-1]; no supervisor has begun yet"
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    found = status(gangrun)
    assert (found["state"], found["exit_code"]) == ("PENDING", None)
    assert "eve asked the run to stop" in found["reason"]


def test_a_run_that_was_resumed_goes_on_before_its_next_job_begins(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = held(runs).on(CancelRequested("eve")).stopped()
    assert status(gangrun)["state"] == "CANCELLED"
    (story.paths.machine / "resume-1.json").write_text("{}")
    job(tools, story, 13, "PENDING", "Resources", seq=1)
    found = status(gangrun)
    assert (found["state"], found["exit_code"]) == ("PENDING", None)
    assert "job 13 waits in the queue (Resources)" in found["reason"]
    assert not run_state(read(story.paths, scheduler=True), 0.0).over


def test_jobs_of_others_are_not_the_runs(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs)
    tools.job(11, "RUNNING", name=NAME, comment="somebody's own", nodes="n[5-6]")
    tools.job(13, "RUNNING", name=NAME, comment=comment(story.run + "x", 0), nodes="n7")
    found = status(gangrun)
    assert found["scheduler"]["jobs"] == []
    assert found["abandoned"] is True


def test_slurm_that_does_not_answer_is_said_and_nothing_is_made_up(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    submitted(runs)
    tools.change(silent=True)
    found = status(gangrun)
    assert (found["state"], found["abandoned"]) == ("PENDING", False)
    assert "Slurm does not say how its job stands: slurm_load_jobs error: Unable to contact" in found["reason"]
    assert "Unable to contact" in found["scheduler"]["silent"]
    assert "this page shows only what the run itself wrote" in " ".join(gangrun("status").out.split())


def test_a_host_without_slurm_shows_what_the_run_wrote(
    runs: Path, gangrun: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(runs)
    monkeypatch.setenv("PATH", str(home))
    found = status(gangrun)
    assert (found["state"], found["abandoned"], found["owner"]["alive"]) == ("RUNNING", False, None)
    assert found["scheduler"]["silent"] == "there is no squeue on this host"


@pytest.mark.root
def test_of_another_users_run_slurm_is_not_asked(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    os.chown(story.paths.machine, 12345, 12345)
    found = status(gangrun)
    assert (found["state"], found["abandoned"]) == ("RUNNING", False)
    assert found["scheduler"]["silent"].startswith("the run belongs to uid 12345")
    assert gangrun("status", "--all", "--json").json["runs"][0]["abandoned"] is False


# ---- with a supervisor ----


def test_a_run_that_runs_names_its_job_plainly(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs, job="12r1.2").supervisor().up()
    story.job = "12"
    story.owner(host="n0")
    job(tools, story, 12, "RUNNING", nodes="n[0-1]", end="2026-11-18T12:00:00")
    found = status(gangrun)
    assert (found["state"], found["reason"]) == ("RUNNING", story.state.reason)
    assert (found["job"], found["attempts"][0]["job"], found["owner"]["alive"]) == ("12", "12", True)
    assert found["scheduler"]["jobs"][0]["nodes"] == ["n0", "n1"]
    assert found["scheduler"]["jobs"][0]["end"] == 1795003200.0
    assert "12 running on n[0-1], until at most" in gangrun("status").out


def test_an_owners_process_number_means_nothing_on_another_host(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs).supervisor().up().owned_by_us()
    assert read(story.paths).owner_alive is None
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    assert status(gangrun)["owner"]["alive"] is True
    job(tools, story, 12, "COMPLETED")
    found = status(gangrun)
    assert (found["owner"]["alive"], found["abandoned"]) == (False, True)


def test_between_jobs_the_run_waits_as_its_next_job_does(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = leaving(runs)
    assert story.state.phase is Phase.PENDING
    job(tools, story, 12, "COMPLETING", nodes="n[0-1]")
    job(tools, story, 13, "PENDING", "Priority", seq=1)
    assert status(gangrun)["reason"].startswith("job 13 waits in the queue (Priority)")
    job(tools, story, 12, "COMPLETED")
    found = status(gangrun)
    assert (found["state"], found["job"], found["abandoned"]) == ("PENDING", "13", False)
    assert found["reason"].startswith(
        "job 13 waits in the queue (Priority): jobs of higher priority come first; before that: "
    )
    assert [(one["job"], one["seq"], one["ended"]) for one in found["scheduler"]["jobs"]] == [
        ("12", 0, True), ("13", 1, False)]  # fmt: skip
    assert found["excluded"][0]["node"] == "n1"
    assert "has written nothing" not in gangrun("status").out
    told = " ".join(gangrun("explain").out.split())
    assert "job 12 began on n[0-1] at 2026-11-18 11:06:41" in told
    assert "job 13 asked for at" in told
    assert "without n1: waits in the queue (Priority)" in told
    assert "excluded n1 until" in told
    jobs = gangrun("explain", "--json").json["jobs"]
    assert [(one["job"], one["without"]) for one in jobs] == [("12", []), ("13", ["n1"])]


def test_a_job_that_slurm_requeued_by_itself_waits(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    job(tools, story, 12, "PENDING", "BeginTime")
    found = status(gangrun)
    assert found["state"] == "PENDING"
    assert found["reason"].startswith(
        "job 12 waits in the queue (BeginTime): its start time has not come; before that: "
    )


def test_a_run_that_has_ended_does_not_ask_slurm(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    submitted(runs).supervisor().up().finished().owner(host="n0")
    found = status(gangrun)
    assert (found["state"], found["job"], found["scheduler"]) == ("SUCCEEDED", "12", None)
    assert tools.calls() == []


# ---- nobody is left ----


@pytest.mark.parametrize("successor", [False, True])
def test_a_job_that_was_scancelled_while_it_waited(
    runs: Path, gangrun: Call, tools: PretendTools, successor: bool
) -> None:
    story = leaving(runs) if successor else submitted(runs)
    if successor:
        job(tools, story, 12, "COMPLETED")
    job(tools, story, 12 + successor, "CANCELLED", "Resources", seq=int(successor))
    found = status(gangrun)
    assert (found["state"], found["exit_code"], found["abandoned"]) == ("CANCELLED", 130, False)
    assert found["reason"] == f"job {12 + successor} was cancelled in Slurm (scancel)"
    assert gangrun("wait").code == 130
    assert not story.paths.cancelled.exists()


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_job_that_was_scancelled_with_nobody_left_to_write(
    runs: Path, gangrun: Call, tools: PretendTools, forgotten: bool
) -> None:
    story = held(runs)
    story.paths.job_log("12").write_text("run begins\n" + SCANCELLED)
    if not forgotten:
        job(tools, story, 12, "CANCELLED")
    found = status(gangrun)
    assert (found["state"], found["exit_code"]) == ("CANCELLED", 130)


@pytest.mark.parametrize(
    ("state", "log", "words"),
    [
        ("TIMEOUT", "", "job 12 ended at its time limit; no job of this run is left"),
        ("NODE_FAIL", "", "job 12 ended as a node of it failed"),
        ("PREEMPTED", "", "job 12 was preempted"),
        ("FAILED", "", "job 12 ended in Slurm's state FAILED"),
        ("CANCELLED", "\nError running slurm prolog: 1\n", "job 12 was not started: Slurm's own preparation"),
        ("", SCANCELLED.replace("***\n", "DUE TO TIME LIMIT ***\n"), "Slurm no longer knows how (slurmstepd-n0: error"),
        ("", "", "job 12 ended, and Slurm no longer knows how; no job"),
    ],
)
def test_any_other_end_leaves_the_run_abandoned(
    runs: Path, gangrun: Call, tools: PretendTools, state: str, log: str, words: str
) -> None:
    story = held(runs)
    story.paths.job_log("12").write_text(log)
    if state:
        job(tools, story, 12, state)
    found = status(gangrun)
    assert (found["state"], found["exit_code"], found["abandoned"]) == ("RUNNING", None, True)
    assert words in found["reason"]
    assert found["reason"].endswith(f"before that: {story.state.reason}")
    said = gangrun("wait")
    assert said.code == 3
    assert words in " ".join(said.err.split())
    assert "Slurm has no job of this run" in gangrun("status").out


def test_a_job_that_had_nodes_and_never_ran_was_not_cancelled_by_anybody(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = submitted(runs)
    job(tools, story, 12, "CANCELLED", nodes="n[0-1]")
    found = status(gangrun)
    assert (found["state"], found["failure"], found["abandoned"]) == ("FAILED", "scheduler", False)
    assert "was not started: Slurm ended it before anything of it ran" in found["reason"]
    story.paths.job_log("12").write_text(SCANCELLED)
    assert status(gangrun)["state"] == "CANCELLED"


def test_a_setup_line_that_failed_is_a_failure_of_the_users(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs)
    job(tools, story, 12, "FAILED", "NonZeroExitCode")
    story.paths.setup_failed(0).write_text("the setup line [module load x] failed (exit code 1)\n")
    found = status(gangrun)
    assert (found["state"], found["exit_code"], found["failure"]) == ("FAILED", 1, "script")
    assert found["reason"] == "the setup line [module load x] failed (exit code 1)"
    assert gangrun("wait").code == 1
    job(tools, story, 13, "CANCELLED", seq=1)
    assert status(gangrun)["state"] == "CANCELLED"


def test_a_job_that_ends_as_slurm_refuses_its_comment_failed_by_the_scheduler(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = submitted(runs)
    job(tools, story, 12, "FAILED", "NonZeroExitCode")
    note_stopped(story.paths, Disk(), 0, "Slurm refuses to note [it]", Failure.SCHEDULER)
    found = status(gangrun)
    assert (found["state"], found["failure"], found["reason"]) == ("FAILED", "scheduler", "Slurm refuses to note [it]")


def test_a_mark_with_no_job_left_is_a_cancelled_run(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    assert status(gangrun)["state"] == "RUNNING"
    job(tools, story, 12, "TIMEOUT")
    assert status(gangrun)["reason"].startswith("cancelled by eve, and killed before")


def test_what_is_written_while_slurm_is_asked_counts(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    journal, before = story.paths.journal(1), story.paths.journal(1).read_bytes()
    story.finished()
    whole = journal.with_name("whole")
    whole.write_bytes(journal.read_bytes())
    journal.write_bytes(before)
    job(tools, story, 12, "CANCELLED")
    tools.change(moves=[[str(whole), str(journal)]])
    assert status(gangrun)["state"] == "SUCCEEDED"


def test_what_slurm_said_is_dropped_once_the_journal_knows_more(runs: Path, tools: PretendTools) -> None:
    story = submitted(runs)
    job(tools, story, 12, "PENDING", "Resources")
    follower = Follower(story.paths, curious=True)
    assert run_state(follower.look(), story.now).reason.startswith("job 12 waits")
    story.supervisor().up().owner(host="n0")
    assert run_state(follower.look(), story.now).state == "RUNNING"
    assert len(tools.calls("squeue")) == 1


# ---- the allocation that a user holds ----


def test_an_allocation_of_the_users_own_is_found_by_its_claim(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = Builder(runs, world="slurm", job="40").supervisor().up().owner(host="n0")
    tools.job(40, "RUNNING", name="interactive", comment="", nodes="n[0-1]")
    found = status(gangrun)
    assert (found["state"], found["owner"]["alive"]) == ("RUNNING", True)
    assert found["scheduler"]["jobs"][0]["seq"] is None
    tools.forget(40)
    assert status(gangrun)["abandoned"] is True
    assert story.state.phase is Phase.RUNNING


# ---- costs, finding, waiting ----


def test_a_local_run_costs_no_process_and_no_module(runs: Path, home: Path, tools: PretendTools) -> None:
    running(runs)
    code = (
        "import sys\nfrom gangrun.cli.main import main\n"
        "for words in (['status'], ['status', '--all'], ['wait', '--timeout', '0.1']):\n"
        "    try:\n        main(words)\n    except SystemExit:\n        pass\n"
        "print([name for name in sys.modules if name.startswith('gangrun.adapters.slurm') or name == 'subprocess'])\n"
    )
    here = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=here, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done
    assert tools.calls() == []


def test_all_runs_are_asked_for_by_one_question(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    succeeded(runs, run="20261118-100000-local")
    story = submitted(runs)
    job(tools, story, 12, "PENDING", "Priority")
    other = submitted(runs, run="20261118-120000-other", job="14")
    tools.job(14, "PENDING", "Resources", name="x", comment=comment(other.run, 0))
    listed = gangrun("status", "--all", "--json").json["runs"]
    reasons = {one["run"]: one["reason"] for one in listed}
    assert reasons[story.run] == "job 12 waits in the queue (Priority): jobs of higher priority come first"
    assert reasons[other.run] == "job 14 waits in the queue (Resources): for free nodes"
    assert len(tools.calls()) == 1


def test_a_run_is_found_by_any_of_its_jobs(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    succeeded(runs, run="20261118-100000-local")
    story = leaving(runs)
    job(tools, story, 2026, "PENDING", "Priority", seq=1)
    assert gangrun("status", "12", "--json").json["run"] == story.run
    assert gangrun("status", "2026", "--json").json["run"] == story.run
    assert gangrun("status", "777", "--json").error["kind"] == "no such run"


def test_waiting_goes_on_over_jobs_and_over_silence(
    runs: Path, gangrun: Call, tools: PretendTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangrun.runs.follow.ASK_EVERY_S", 0.1)
    story = leaving(runs)
    job(tools, story, 12, "COMPLETED")
    job(tools, story, 13, "PENDING", "Priority", seq=1)
    codes: list[int] = []
    waiter = threading.Thread(target=lambda: codes.append(gangrun("wait").code))
    waiter.start()
    until(lambda: len(tools.calls("squeue")) >= 2, 20, "it asks")
    tools.change(silent=True)
    asked = len(tools.calls("squeue"))
    until(lambda: len(tools.calls("squeue")) >= asked + 2, 20, "it asks again")
    assert waiter.is_alive()
    story.job, story.nodes = "13", ("n0", "n2")
    story.supervisor().owner(1, host="n0").up().finished()
    assert story.state.phase is Phase.SUCCEEDED, story.reasons
    waiter.join(100)
    assert codes == [0]


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
    words = (
        "job 77 never started, and Slurm no longer knows it: it was cancelled in the queue, or purged; no job of this"
    )
    found = status(gangrun)
    assert (found["state"], found["job"], found["abandoned"]) == ("PENDING", "77", True)
    assert found["reason"].startswith(words)
    assert gangrun("status", "--all", "--json").json["runs"][0]["reason"] == found["reason"]
    assert "never started, and Slurm no longer knows it" in " ".join(gangrun("explain").out.split())
    said = gangrun("wait")
    assert (said.code, words in " ".join(said.err.split())) == (3, True)


@pytest.mark.parametrize(
    ("told", "state", "words"),
    [
        (f"CANCELLED by 1000|None assigned|{NAME}", "CANCELLED", "job 77 was cancelled in Slurm (scancel)"),
        (f"CANCELLED by 0|n[0-1]|{NAME}", "FAILED", "job 77 was not started: Slurm ended it before anything of it"),
        (f"NODE_FAIL|n[0-1]|{NAME}", "FAILED", "job 77 ended (NODE_FAIL) before it began, as a node of it failed"),
        (f"TIMEOUT|n[0-1]|{NAME}", "PENDING", "job 77 ended at its time limit"),
        ("COMPLETED|n[0-1]|somebody else's", "PENDING", "job 77 never started, and Slurm no longer knows it"),
        (f"RUNNING|n[0-|{NAME}", "PENDING", "job 77 never started, and Slurm no longer knows it"),
        ("", "PENDING", "job 77 never started, and Slurm no longer knows it"),
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
    words = f"job 13 ended ({state}) before it began, as {why}; nothing runs now; gangrun resume {story.run} continues"
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
