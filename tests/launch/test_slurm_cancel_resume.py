"""cancel and resume of a run on Slurm: the mark first, no job of others, nothing started twice."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import Counter
from gangrun.adapters.fs.run_dir import mark_cancelled, read_cancelled
from gangrun.core.events import CancelRequested
from gangrun.launch.slurm_cancel import _is_done
from gangrun.runs.job_queue import Queue, RunJob
from gangrun.runs.snapshot import read
from gangrun.runs.times import wall_now
from gangrun.wire.submission import comment
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.slurm_stories import NAME, held, job, leaving, refill, submitted
from tests.slurm_parts.pretend_tools import PretendTools
from tests.waiting import stays, until


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        ("slurm_cancel", "ASK_EVERY_S", 0.05), ("slurm_cancel", "SILENT_MAX_S", 0.2),
        ("slurm_resume", "LOOK_EVERY_S", 0.05),
        ("slurm_cancel", "LEAVES_WITHIN_S", 0.3), ("slurm_cancel", "HEEDED_WITHIN_S", 0.3),
        ("slurm_resume", "LETS_GO_WITHIN_S", 0.3), ("slurm_ask", "REASON_WITHIN_S", 0.0),
        ("slurm_ask", "LOOK_FOR_S", 0.2), ("slurm_submit", "LOOK_FOR_S", 0.2), ("slurm_ask", "LOOK_EVERY_S", 0.05),
    ):  # fmt: skip
        monkeypatch.setattr(f"gangrun.launch.{module}.{name}", value)


# ---- cancel ----


def test_cancel_of_a_run_in_the_queue(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs)
    job(tools, story, 12, "PENDING", "Resources")
    tools.job(11, "PENDING", name=NAME, comment="somebody's own")
    said = gangrun("cancel", "train", "--json")
    assert said.code == 0
    assert (said.json["status"]["state"], said.json["status"]["exit_code"]) == ("CANCELLED", 130)
    assert said.json["status"]["reason"].endswith("(gangrun cancel) before it began")
    assert (tools.state(12), tools.state(11)) == ("CANCELLED", "PENDING")
    assert tools.calls("scancel") == [["scancel", "12"]]
    assert gangrun("wait").code == 130


def test_the_mark_comes_before_slurm_is_asked(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs)
    job(tools, story, 12, "PENDING")
    tools.change(silent=True)
    for words in (["--no-wait"], []):
        said = gangrun("cancel", "train", "--json", *words)
        assert said.code == 4
        assert said.error["kind"] == "slurm"
        assert "the cancel stays in force" in said.error["hint"]
        assert story.paths.cancelled.exists()
    tools.change(silent=False)
    assert gangrun("cancel", "train").code == 0
    assert tools.state(12) == "CANCELLED"


def obey(tools: PretendTools, story: Builder) -> None:
    """As a supervisor and its batch script would."""
    until(story.paths.cancelled.exists, 20, "the mark")
    story.on(CancelRequested("eve")).stopped()
    job(tools, story, 12, "COMPLETING", nodes="n[0-1]")
    job(tools, story, 12, "FAILED")


def test_a_job_that_runs_is_left_to_its_supervisor(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    story.live(step=3)
    ending = threading.Thread(target=obey, args=(tools, story))
    ending.start()
    said = gangrun("cancel", "train")
    ending.join()
    assert said.code == 0
    assert "has ended: CANCELLED, cancelled by eve" in said.out
    assert tools.calls("scancel") == []


def test_a_refill_in_the_queue_goes_at_once_and_one_with_ranks_after_the_job(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = held(runs, refills=True)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    refill(tools, story, 13, "PENDING", n=1)
    refill(tools, story, 14, "RUNNING", n=2, nodes="n7")
    story.live(step=3)

    def waits_and_obeys() -> None:
        until(lambda: tools.state(13) == "CANCELLED", 20, "scancel of the refill in the queue")
        assert tools.state(14) == "RUNNING", "its ranks may save"
        obey(tools, story)

    ending = threading.Thread(target=waits_and_obeys)
    ending.start()
    said = gangrun("cancel", "train")
    ending.join()
    assert said.code == 0
    assert [tools.state(number) for number in (12, 13, 14)] == ["FAILED", "CANCELLED", "CANCELLED"]


def test_a_supervisor_that_saves_is_left_its_time_whatever_its_clock_says(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = held(runs)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    counter = Counter(Disk(), story.paths, story.term)

    def writes() -> bool:
        counter.write({}, 1.0)
        return True

    def save_and_obey() -> None:
        until(story.paths.cancelled.exists, 20, "the mark")
        stays(writes, 1.0, "three times as long as a supervisor may be silent")
        obey(tools, story)

    ending = threading.Thread(target=save_and_obey)
    ending.start()
    said = gangrun("cancel", "train")
    ending.join()
    assert said.code == 0
    assert tools.calls("scancel") == []


def test_a_successor_in_the_queue_goes_at_once_and_one_that_comes_later_too(
    runs: Path, gangrun: Call, tools: PretendTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangrun.launch.slurm_cancel.HEEDED_WITHIN_S", 60.0)
    story = held(runs)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    job(tools, story, 13, "PENDING", "Dependency", seq=1)

    def later() -> None:
        until(lambda: tools.state(13) == "CANCELLED", 20, "13 is cancelled")
        job(tools, story, 14, "PENDING", seq=1)  # an sbatch that was under way
        until(lambda: tools.state(14) == "CANCELLED", 20, "14 is cancelled")
        obey(tools, story)

    ending = threading.Thread(target=later)
    ending.start()
    said = gangrun("cancel", "train")
    ending.join()
    assert said.code == 0, said
    assert "12" not in {word for call in tools.calls("scancel") for word in call}


def test_where_nobody_heeds_the_mark_scancel_comes(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    said = gangrun("cancel", "train")
    assert said.code == 0
    assert tools.state(12) == "CANCELLED"
    assert "CANCELLED, cancelled by" in said.out
    assert "killed before that could be written down" in said.out


def test_a_node_that_is_dead_keeps_nobody_waiting(
    runs: Path, gangrun: Call, tools: PretendTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangrun.launch.slurm_cancel.COMPLETES_WITHIN_S", 0.2)
    story = leaving(runs)
    job(tools, story, 12, "COMPLETING", nodes="n1")
    job(tools, story, 13, "PENDING", "Priority", seq=1)
    said = gangrun("cancel", "train")
    assert said.code == 0, said
    assert "has ended; Slurm still waits for nodes of job 12" in said.out
    assert tools.calls("scancel") == [["scancel", "13"]]
    assert gangrun("resume", "train").code == 0


def test_no_wait_leaves_the_running_job_unless_it_is_to_end_now(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    job(tools, story, 13, "PENDING", "Priority", seq=1)
    said = gangrun("cancel", "train", "--no-wait")
    assert said.code == 0
    assert "is asked to stop; its supervisor will end job 12" in said.out
    assert (tools.state(12), tools.state(13)) == ("RUNNING", "CANCELLED")
    said = gangrun("cancel", "train", "--no-wait", "--now")
    assert "its jobs are cancelled" in said.out
    assert tools.state(12) == "CANCELLED"


def test_cancel_gives_up_in_time_and_says_what_is_left(
    runs: Path, gangrun: Call, tools: PretendTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangrun.launch.slurm_cancel.HEEDED_WITHIN_S", 60.0)
    story = held(runs)
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    said = gangrun("cancel", "train", "--timeout", "0.2", "--json")
    assert said.code == 3
    assert said.error["message"] == "job 12 is still there"
    assert "--now" in said.error["hint"]


def test_what_slurm_refuses_is_said(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs)
    job(tools, story, 12, "PENDING")
    tools.change(refuses={"scancel": "scancel: error: Kill job error on job id 12: Access/permission denied"})
    said = gangrun("cancel", "train", "--json")
    assert said.code == 3
    assert "Slurm refuses to cancel job 12: " in said.error["message"]


def test_an_allocation_that_a_user_holds_is_never_ended(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = Builder(runs, world="slurm", job="40").supervisor().up().owner(host="n0")
    tools.job(40, "RUNNING", name="interactive", comment="", nodes="n[0-1]")

    def end() -> None:
        until(lambda: len(tools.calls("scontrol")) >= 2, 20, "it was asked for twice")
        story.on(CancelRequested("eve")).stopped()

    ending = threading.Thread(target=end)
    ending.start()
    assert gangrun("cancel", "train", "--now").code == 0
    ending.join()
    assert tools.state(40) == "RUNNING"
    assert tools.calls("scancel") == []


def test_who_had_nodes_may_have_asked_for_one_more_job(runs: Path) -> None:
    reading = read(held(runs).paths)
    assert not _is_done(reading, Queue(), had_nodes=True, stuck=False)
    assert _is_done(reading, Queue(), had_nodes=False, stuck=False)
    assert not _is_done(reading, Queue((RunJob(job="13", seq=1, state="PENDING"),)), had_nodes=False, stuck=True)


def test_a_run_without_a_job_is_marked(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    job(tools, story, 12, "TIMEOUT")
    said = gangrun("cancel", "train")
    assert said.code == 0
    assert "no job of it is left" in said.out
    assert story.paths.cancelled.exists()
    assert gangrun("wait").code == 130


# ---- resume ----


def wish_of(story: Builder, seq: int) -> dict[str, Any]:
    return dict(json.loads((story.paths.machine / f"resume-{seq}.json").read_text()))


def test_a_run_of_slurms_is_not_resumed_in_the_background(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = leaving(runs, now=wall_now() - 600)
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    said = gangrun("resume", "train", "--detach")
    assert (said.code, said.out) == (2, "")
    assert "--detach: run" in said.err
    assert "leave --detach out" in said.err
    assert story.paths.cancelled.exists()
    assert not tools.read()["jobs"]


def test_resume_asks_for_one_more_job_without_the_nodes_that_are_excluded(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = leaving(runs, now=wall_now() - 600)
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    job(tools, story, 12, "FAILED")
    job(tools, story, 13, "CANCELLED", seq=1)
    said = gangrun("resume", "train", "--max-restarts", "5", "--json")
    assert said.code == 0, said
    assert (said.json["job"], said.json["seq"], said.json["job_state"]) == ("14", 2, "PENDING")
    new = tools.read()["jobs"]["14"]
    assert (new["k"], new["j"], new["x"]) == (comment(story.run, 2), NAME, "n1")
    assert wish_of(story, 2)["restarts_max_count"] == 5
    assert not story.paths.cancelled.exists()
    again = gangrun("resume", "train", "--json")
    assert again.error["kind"] == "busy"
    assert "job 14 waits in the queue" in again.error["message"]
    assert gangrun("status", "14", "--json").json["run"] == story.run


def test_an_exclusion_that_is_over_is_not_asked_for(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = leaving(runs)  # days ago
    job(tools, story, 13, "CANCELLED", seq=1)
    assert gangrun("resume", "train").code == 0
    assert tools.read()["jobs"]["14"]["x"] == ""


def test_what_slurm_refuses_leaves_the_run_as_it_was(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    mark_cancelled(Disk(), story.paths, "eve", 7.0)
    job(tools, story, 12, "TIMEOUT")
    tools.change(refuses={"sbatch": "sbatch: error: Batch job submission failed: Invalid account"})
    said = gangrun("resume", "train", "--json")
    assert said.code == 4
    assert "Invalid account" in said.error["message"]
    mark = read_cancelled(Disk(), story.paths)
    assert mark is not None
    assert (mark.by, mark.wall) == ("eve", 7.0)
    assert not (story.paths.machine / "resume-1.json").exists()


def test_where_nobody_knows_whether_there_is_a_job_its_wish_stays(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = held(runs)
    job(tools, story, 12, "TIMEOUT")
    tools.change(refuses={"sbatch": "sbatch: error: Batch job submission failed: Socket timed out on send/recv"})
    said = gangrun("resume", "train", "--json")
    assert said.code == 3
    assert "cannot tell whether Slurm accepted the job" in said.error["message"]
    assert wish_of(story, 1)["seq"] == 1


def test_a_held_job_is_released_and_not_doubled(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = submitted(runs, checkpoint_dir="/ckpt")
    job(tools, story, 12, "PENDING", "launch failed requeued held")
    said = gangrun("resume", "train")
    assert said.code == 0, said
    assert "job 12 is released" in said.out
    assert tools.calls("sbatch") == []
    assert ["scontrol", "update", "JobId=12", "StartTime=now+3"] in tools.calls("scontrol")
    assert not (story.paths.machine / "resume-0.json").exists()
    job(tools, story, 12, "PENDING", "JobHeldAdmin")
    assert "held by an admin" in gangrun("resume", "train", "--json").error["message"]
    job(tools, story, 12, "PENDING", "JobHeldUser")
    assert gangrun("resume", "train", "--resume", "40").code == 0
    assert wish_of(story, 0)["request"] == "40"


@pytest.mark.parametrize(("state", "words"), [("RUNNING", "job 12 runs on n[0-1]"), ("PENDING", "job 12 waits in the")])
def test_a_run_with_a_job_is_left_alone(runs: Path, gangrun: Call, tools: PretendTools, state: str, words: str) -> None:
    story = held(runs)
    job(tools, story, 12, state, nodes="n[0-1]" if state == "RUNNING" else "")
    said = gangrun("resume", "train", "--json")
    assert (said.code, said.error["kind"]) == (2, "busy")
    assert words in said.error["message"]
    assert tools.calls("sbatch") == []


def test_a_job_whose_run_has_ended_gets_a_moment_to_leave(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    story.on(CancelRequested("eve")).stopped()
    job(tools, story, 12, "RUNNING", nodes="n[0-1]")
    assert gangrun("resume", "train", "--json").error["kind"] == "busy"
    leaving = threading.Timer(0.1, job, (tools, story, 12, "FAILED"))
    leaving.start()
    assert gangrun("resume", "train").code == 0
    leaving.join()


def test_nothing_is_started_while_slurm_is_silent(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    story = held(runs)
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    tools.change(silent=True)
    said = gangrun("resume", "train", "--json")
    assert said.code == 4
    assert "nothing was started" in said.error["hint"]
    assert story.paths.cancelled.exists()


def test_a_run_that_never_began_keeps_what_it_was_submitted_with(
    runs: Path, gangrun: Call, tools: PretendTools
) -> None:
    story = submitted(runs, resume="none")
    job(tools, story, 12, "CANCELLED", "Resources")
    said = gangrun("resume", "train", "--json")
    assert said.json["seq"] == 1
    assert wish_of(story, 1)["request"] == "none"


def test_what_was_not_submitted_cannot_be_asked_for_again(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    Builder(runs, world="slurm", job="40").supervisor().up().owner(host="n0")
    said = gangrun("resume", "train", "--json")
    assert said.code == 2
    assert "was not submitted" in said.error["message"]


def test_a_run_that_has_succeeded_is_not_asked_for_again(runs: Path, gangrun: Call, tools: PretendTools) -> None:
    held(runs).finished()
    said = gangrun("resume", "train", "--json")
    assert said.error["kind"] == "ended"
    assert "gangrun submit" in said.error["hint"]
    assert tools.calls() == []
