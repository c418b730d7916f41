"""What a job's launcher makes of the run's state and of the allocation around it."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
from functools import partial
from typing import cast

import msgspec
import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, plain_job
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.slurm.commands import Answer, Tools
from gangrun.adapters.slurm.scheduler import JobFacts, SchedulerSilent, SlurmScheduler
from gangrun.core.model import Ending, Phase, RunState, Shape
from gangrun.display.live_view import LiveView, Observer
from gangrun.entry import slurm_job as job_main
from gangrun.errors import UserError
from gangrun.launch import slurm_allocation as held
from gangrun.launch import slurm_ask
from gangrun.launch import slurm_job_owner as job_owner
from gangrun.launch.node_spec import NODE, filled
from gangrun.launch.slurm_batch_job import (
    Absent,
    AbsentWatch,
    Allocation,
    absent_nodes,
    absent_path,
    allocation_of,
    note_absent,
    srun_options,
)
from gangrun.runs.follow import JournalReplay
from gangrun.wire.spec import RunSpec
from gangrun.wire.submission import Submission
from tests.faults.disk import PausableDisk
from tests.fs.bench import HandClock
from tests.runs.stories import running, succeeded
from tests.slurm_parts.captured import VERSIONS, shown
from tests.waiting import until

CLAIM = JobClaim(1, "12", 0, "n1", 100, 5)
SPEC = RunSpec(
    run="r", name="r", world="slurm", command=("true",), python=False, working_directory="/", nodes=(),
    nodes_count=2, nodes_min_count=2, slots_per_node=1, ranks_per_slot=1,
)  # fmt: skip
FACTS = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-3]"}


def state(**changes):
    return RunState(
        **{"run": "r", "shape": Shape(1, 1, 1, 1), "job": "12", "seq": 1, "phase": Phase.RUNNING, **changes}
    )


@pytest.mark.parametrize(
    ("seen", "over", "code"),
    [
        (None, False, 78),
        (state(), False, 78),
        (state(phase=Phase.SUCCEEDED), True, 0),
        (state(phase=Phase.FAILED), True, 1),
        (state(phase=Phase.CANCELLED), True, 130),
        (state(phase=Phase.PENDING, ending=Ending(leaving=True), seq=2), True, 75),
        (state(phase=Phase.PENDING, ending=Ending(leaving=True)), True, 75),  # requeued: it comes back as the same job
        (state(job="13", seq=2), True, 75),  # another job has the run
        (state(job="11", seq=0, phase=Phase.PENDING, ending=Ending(leaving=True)), False, 78),  # of the job before us
    ],
)
def test_when_a_job_is_over_and_what_slurm_is_told(seen, over, code):
    assert job_owner.is_over(seen, CLAIM) is over
    assert job_owner.code_of(seen, CLAIM) == code


@pytest.mark.parametrize(
    ("seen", "asked", "place"),
    [(None, 0, 0), (state(job="12", seq=1), 0, 1), (state(job="12r1.0", seq=3), 1, 3), (state(job="11", seq=1), 2, 2)],
)
def test_a_requeued_job_runs_its_script_again_and_takes_the_place_it_moved_on_to(seen, asked, place):
    assert job_main.place_of(seen, "12", asked) == place


def test_each_stay_of_a_job_has_a_name_of_its_own():
    stays = [CLAIM, JobClaim(1, "12", 1, "n1", 1, 1), JobClaim(1, "12", 1, "n1", 1, 1, launch=2)]
    assert [stay.token for stay in stays] == ["12", "12r1.0", "12r1.2"]
    assert {plain_job(stay.token) for stay in stays} == {"12"}


class Asked:
    """A scheduler that knows one job, or nothing for a while."""

    def __init__(self, state="", silent_count=0):
        self.state, self.silent_count = state, silent_count

    def job(self, job):
        if self.silent_count:
            self.silent_count -= 1
            raise SchedulerSilent("no answer")
        facts = dict.fromkeys(JobFacts.__dataclass_fields__, None)
        return JobFacts(**{**facts, "job": job, "state": self.state}) if self.state else None


@pytest.mark.parametrize(
    ("slurm", "before", "cancelled"),
    [
        ("CANCELLED", state(job="11", seq=0), True),
        ("CANCELLED", state(job="11", seq=1, ending=Ending(leaving=True)), False),  # we ended it, and said so first
        ("NODE_FAIL", state(job="11", seq=0), False),
        ("", state(job="11", seq=0), False),  # Slurm has forgotten it
        ("CANCELLED", None, False),
    ],
)
def test_a_job_after_one_that_was_cancelled_starts_nothing(tmp_path, slurm, before, cancelled):
    paths, disk = RunPaths(tmp_path), Disk()
    paths.jobs.mkdir(parents=True)
    paths.job(0).write_bytes(b'{"seq":0,"job":"11","restart":0,"host":"n1","pid":1,"start_ticks":1}')

    def asked(seq):
        return job_main._was_cancelled(paths, disk, before, seq, cast(SlurmScheduler, Asked(slurm)), lambda: 0.0)

    assert asked(1) is cancelled
    assert asked(0) is False  # the first job has none before it
    (paths.machine / "resume-1.json").touch()
    assert asked(1) is False  # a person wants it all the same


def test_a_slurm_that_stays_silent_does_not_hold_a_run_for_ever(tmp_path, capfd):
    paths = RunPaths(tmp_path)
    paths.jobs.mkdir(parents=True)
    paths.job(0).write_bytes(b'{"seq":0,"job":"11","restart":0,"host":"n1","pid":1,"start_ticks":1}')
    ticks = iter((0.0, 1e9))
    silent = cast(SlurmScheduler, Asked("", 5))
    assert not job_main._was_cancelled(paths, Disk(), state(job="11", seq=0), 1, silent, lambda: next(ticks))
    assert "cannot tell whether job 11 was cancelled: no answer" in capfd.readouterr().err


def test_the_wardens_spec_is_filled_with_the_nodes_own_name():
    spec = {"agent": ["python", "--node", NODE], "node": NODE, "lease_s": 30.0}
    assert {key: filled(value, "n7") for key, value in spec.items()} == {
        "agent": ["python", "--node", "n7"],
        "node": "n7",
        "lease_s": 30.0,
    }


def test_an_allocation_is_read_from_the_jobs_environment():
    found = allocation_of({**FACTS, "SLURM_RESTART_COUNT": "2", "SLURM_CPUS_PER_TASK": "4"}, "login")
    assert found == Allocation("12", 2, ("n1", "n2", "n3"), "login", 4)
    with pytest.raises(KeyError):
        allocation_of({}, "login")


class Refusing(Disk):
    """Makes no claim while ``error`` is set."""

    error = 0

    def write_new(self, path, data, mode=0o600):
        if self.error:
            raise OSError(self.error, os.strerror(self.error), str(path))
        super().write_new(path, data, mode)


# Answers, unless its folder has a file ``show-says`` or ``update-says``; what it was asked last is in ``asked``.
SCONTROL = """#!/bin/sh
if [ -e {folder}/$1-says ]; then cat {folder}/$1-says >&2; exit 1; fi
echo "$*" >{folder}/asked
printf 'JobId=12 JobName=r\\n   UserId=jane(1)\\n   JobState=RUNNING Restarts=0\\n   Comment=gr:r:1\\n'
"""


@pytest.fixture
def unreached(tmp_path, monkeypatch):
    """A job whose srun reached one node of three, and a disk that refuses the claim of the next launch."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho 'srun: error: Task launch for StepId=12.0 failed on node n3: lost' >&2\nexit 1\n")
    srun.chmod(0o755)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(SCONTROL.format(folder=tmp_path))
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    paths, clock, disk = RunPaths(tmp_path / "run"), HandClock(), Refusing()
    told: list[str] = []
    paths.jobs.mkdir(parents=True)
    steps = job_owner.JobStep(
        SPEC, paths, CLAIM, Allocation("12", 0, ("n1", "n2", "n3"), "n1", None), dict(os.environ), (),
        over=lambda: False, say=told.append, disk=disk, clock=clock,
    )  # fmt: skip
    steps.start()
    (first,) = steps.launches
    until(lambda: first.step.ended is not None, 20, "srun has ended")
    yield steps, disk, clock, told
    steps.leave()
    resort = steps._resort
    until(lambda: all(one.step.ended is not None for one in steps.launches), 20, "srun has left")
    if resort is not None:
        until(lambda: resort.poll() is not None, 20, "the last resort has left")


def test_a_claim_that_the_file_system_does_not_answer_is_asked_for_once_a_turn(unreached):
    steps, disk, clock, told = unreached
    disk.error = errno.EIO
    for _ in range(5):
        steps.turn()
        clock.at += 1.0
    assert [word for word in told if "asking again" in word or "launching on" in word] == told[-2:], told
    assert (steps.part, steps.claim.launch) == (job_owner.StepPart.STEP, 0)
    disk.error = 0
    clock.at += 10.0
    steps.turn()
    assert (steps.part, steps.claim.launch) == (job_owner.StepPart.STEP, 1)


@pytest.mark.parametrize(("order", "part"), [("interrupt", "LAST_RESORT"), ("kill", "OVER")])
def test_a_cancel_is_heeded_while_the_file_system_refuses_the_claim(unreached, order, part):
    steps, disk, _, _ = unreached
    disk.error = errno.ESTALE
    steps.turn()
    getattr(steps, order)()
    if order == "interrupt":
        steps.turn()
    assert steps.part is job_owner.StepPart[part]


def test_a_claim_that_is_refused_for_good_leaves_the_last_resort(unreached):
    steps, disk, _, told = unreached
    disk.error = errno.EACCES
    steps.turn()
    assert steps.part is job_owner.StepPart.LAST_RESORT
    assert any("cannot launch again" in word for word in told)


STAYS = """#!/bin/sh
echo "$@" | grep -o 'nodelist=[^ ]*' >>"$0.calls"
if [ -e "$0.says" ]; then cat "$0.says" >&2; rm "$0.says"; fi
if [ -e "$0.ends" ]; then rm "$0.ends"; exit 1; fi
exec sleep 600
"""


@pytest.fixture
def standing(tmp_path, monkeypatch):
    """A job of three nodes whose sruns stay; what the first one says, and the nodes that each was asked for."""
    srun = tmp_path / "srun"
    srun.write_text(STAYS)
    srun.chmod(0o755)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(SCONTROL.format(folder=tmp_path))
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    paths, told = RunPaths(tmp_path / "run"), list[str]()
    paths.jobs.mkdir(parents=True)
    clock = HandClock()
    steps = job_owner.JobStep(
        SPEC, paths, CLAIM, Allocation("12", 0, ("n1", "n2", "n3"), "n1", None), dict(os.environ), (),
        over=lambda: False, say=told.append, clock=clock,
    )  # fmt: skip

    def asked():
        """Once each srun that lives has written it down; a turn is taken before each look."""

        def all_asked():
            steps.turn()
            calls = (tmp_path / "srun.calls").read_text().split() if (tmp_path / "srun.calls").exists() else []
            return [call.removeprefix("nodelist=") for call in calls]

        return all_asked

    yield steps, tmp_path / "srun.says", asked(), told
    steps.leave()
    until(lambda: all(one.step.ended is not None for one in steps.launches), 20, "every srun has left")
    if (resort := steps._resort) is not None:
        until(lambda: resort.poll() is not None, 20, "the last resort has left")


@pytest.mark.parametrize(
    ("how", "told_as"),
    [
        ("Killed", "its warden was killed by SIGKILL (9)"),
        ("Segmentation fault (core dumped)", "its warden was killed by SIGSEGV (11)"),
        ("Out Of Memory", "its warden was killed or crashed"),
    ],
)
def test_a_killed_warden_is_started_again_on_its_node(standing, how, told_as):
    steps, says, asked, told = standing
    says.write_text(f"srun: error: n2: task 1: {how}\n")
    steps.start()
    until(lambda: asked() == ["n[1-3]", "n2"], 20, f"n2 is asked for again {told}")
    assert told == [f"the warden on n2 was killed ({how}): starting it again in this job"]
    assert f'"previous_died": "{told_as}"' in " ".join(steps.launches[-1].step.argv)
    assert absent_nodes(Disk(), steps.paths, CLAIM.token) == ()


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("JobState=COMPLETING Restarts=0", "job 12 is COMPLETING in Slurm: no warden is started again"),
        ("JobState=RUNNING Restarts=1", "job 12 is RUNNING in Slurm: no warden is started again"),
    ],
)
def test_no_warden_is_started_again_once_slurm_ends_the_job(standing, tmp_path, shown, said):
    """A cancelled run would come back, and a node on which Slurm killed everything would look broken."""
    steps, says, asked, told = standing
    words = f"JobId=12 JobName=r\\n   UserId=jane(1)\\n   {shown}\\n"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\nprintf '{words}'\n")
    says.write_text("srun: error: n2: task 1: Killed\n")
    steps.start()
    until(lambda: asked() and told == [said], 20, f"it is told {told}")
    assert asked() == ["n[1-3]"]
    assert absent_nodes(Disk(), steps.paths, CLAIM.token) == ()
    steps.launches[0].step.kill()
    until(lambda: bool(asked()) and steps.part is job_owner.StepPart.LAST_RESORT, 20, "no srun follows")


def test_a_warden_that_ends_by_itself_is_not_started_again(standing):
    steps, says, asked, told = standing
    says.write_text("srun: error: n2: task 1: Exited with exit code 70\nsrun: error: n3: task 2: Terminated\n")
    steps.start()

    def absent():
        return [one.node for one in absent_nodes(Disk(), steps.paths, CLAIM.token)]

    until(lambda: asked() and len(absent()) == 2, 20, "both are absent")
    assert absent() == ["n2", "n3"]
    assert (asked(), told) == (["n[1-3]"], [])


def test_an_srun_that_is_killed_is_followed_by_another_on_the_nodes_that_it_left(standing):
    steps, says, asked, told = standing
    says.write_text("srun: error: n2: task 1: Exited with exit code 70\n")
    steps.start()
    until(lambda: asked() and absent_nodes(Disk(), steps.paths, CLAIM.token), 20, "n2 is absent")
    for count in range(1, job_owner.STARTS_AGAIN_MAX + 1):
        steps.launches[0].step.kill()
        wanted = ["n[1-3]"] + count * ["n[1,3]"]
        until(partial(lambda count: asked() and len(told) == count, count), 20, "its end is heard")
        steps.clock.at += 200.0
        until(partial(lambda wanted: asked() == wanted, wanted), 20, f"another srun {told}")
        assert steps.part is job_owner.StepPart.STEP
    assert told[0] == "srun was killed by SIGKILL (9), and what it started on n[1,3] may live on: following it"
    assert told[1].endswith("following it in 2 s")
    steps.launches[0].step.kill()
    until(lambda: bool(asked()) and steps.part is job_owner.StepPart.LAST_RESORT, 20, "no srun is followed for ever")


@pytest.mark.parametrize(
    "says",
    [
        "srun: error: Task launch for StepId=12.1 failed on node n3: lost",
        "srun: error: Unable to create step for job 12: Slurm backup controller in standby mode",
        "srun: error: n1: task 0: Exited with exit code 71",
    ],
)
def test_a_following_srun_that_ends_is_no_end_of_the_wardens_that_it_waited_beside(standing, says):
    """They live: no other step begins there, and nobody decides in their supervisor's place."""
    steps, said, asked, told = standing
    steps.start()
    until(lambda: asked() == ["n[1-3]"], 20, "srun")
    said.write_text(f"{says}\n")
    said.with_name("srun.ends").touch()
    steps.launches[0].step.kill()
    until(lambda: asked() and any("ended with exit code 1" in word for word in told), 20, f"the second ended {told}")
    assert (steps.part, steps.claim.launch) == (job_owner.StepPart.STEP, 0)
    steps.clock.at += 200.0
    rest = "n[1-2]" if "n3" in says else "n[1-3]"
    until(lambda: asked() == ["n[1-3]", "n[1-3]", rest], 20, f"a third follows {told}")


@pytest.mark.parametrize("live", [True, False])
def test_an_srun_that_ends_by_itself_is_followed_only_beside_wardens_that_live(standing, live):
    steps, says, asked, told = standing
    says.write_text("srun: error: n2: task 1: Exited with exit code 70\n")
    says.with_name("srun.ends").touch()
    steps.start()
    until(lambda: asked() and any("exit code 1" in word for word in told), 20, f"its end is heard {told}")
    assert told == ["srun ended with exit code 1, and what it started on n[1,3] may live on: following it in 2 s"]
    assert steps.part is job_owner.StepPart.STEP
    steps.clock.at += 2.0
    if not live:
        says.write_text("srun: error: n[1,3]: tasks 0-1: Exited with exit code 72\n")
        says.with_name("srun.ends").touch()
    until(lambda: asked()[1:] == ["n[1,3]"], 20, f"another srun {told}")
    if live:
        assert '"only_beside": true' in " ".join(steps.launches[-1].step.argv)
        return
    until(lambda: bool(asked()) and steps.part is job_owner.StepPart.LAST_RESORT, 20, f"nobody is there {told}")
    assert [one.node for one in absent_nodes(Disk(), steps.paths, CLAIM.token)] == ["n2"]


def test_wardens_that_are_killed_at_once_are_started_again_by_one_srun(standing):
    steps, says, asked, told = standing
    says.write_text("srun: error: n[1-3]: tasks 0-2: Killed\n")
    steps.start()
    until(lambda: len(asked()) == 2, 20, f"one more srun {told}")
    assert sorted(asked()) == ["n[1-3]", "n[1-3]"]
    assert told == ["the wardens on n[1-3] were killed (Killed): starting them again in this job"]


def test_an_srun_that_is_killed_when_the_run_is_over_is_not_followed(standing):
    steps, _, asked, told = standing
    steps.start()
    until(lambda: asked() == ["n[1-3]"], 20, "srun")
    steps.over = lambda: True
    steps.launches[0].step.kill()
    until(lambda: bool(asked()) and steps.part is job_owner.StepPart.OVER, 20, "over")
    assert told == []


def test_slurm_is_told_of_a_steps_end_before_anybody_takes_its_place(unreached, tmp_path):
    steps, _, clock, told = unreached
    says = tmp_path / "show-says"
    says.write_text("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    for _ in range(5):
        steps.turn()
        clock.at += 1.0
    assert (steps.part, steps.claim.launch) == (job_owner.StepPart.STEP, 0)
    assert len([word for word in told if "could not be told" in word]) == 1, told
    says.unlink()
    clock.at += 10.0
    steps.turn()
    assert steps.claim.launch == 1
    assert (tmp_path / "asked").read_text() == "update JobId=12 Comment=gr:r:1+over:run:0.0\n"


def test_a_slurm_that_refuses_the_word_leaves_the_run_to_a_job_of_its_own(unreached, tmp_path):
    steps, _, _, told = unreached
    (tmp_path / "update-says").write_text("slurm_update error: Access/permission denied")
    steps.turn()
    assert (steps.part, steps.claim.launch) == (job_owner.StepPart.OVER, 0)
    assert any("Access/permission denied" in word for word in told), told
    note = steps.paths.setup_failed(CLAIM.seq).read_text()
    assert note.startswith("[scheduler] ") and "Access/permission denied" in note


def has_ended(process):
    return process.poll() is not None


def test_a_supervisor_of_last_resort_that_is_killed_is_started_again(unreached):
    steps, disk, _, told = unreached
    disk.error = errno.EACCES
    steps.turn()
    for _ in range(job_owner.RESORTS_MAX):
        resort = steps._resort
        assert steps.part is job_owner.StepPart.LAST_RESORT
        resort.send_signal(signal.SIGKILL)
        until(partial(has_ended, resort), 20, "it was killed")
        steps.turn()
    assert steps.part is job_owner.StepPart.OVER
    assert len([word for word in told if "was killed by SIGKILL (9)" in word]) == job_owner.RESORTS_MAX - 1


def test_an_owner_goes_on_where_the_story_so_far_cannot_be_read(tmp_path):
    disk, clock = PausableDisk(), HandClock()
    disk.fail(errno.ESTALE, looking_too=True)
    paths = RunPaths(tmp_path)
    view = LiveView(log_of=paths.node_log, live_of=lambda term: {}, wall=clock.wall)
    observer = Observer(JournalReplay(paths, disk), clock, view)
    observer.catch_up()
    assert observer.state() is None
    with pytest.raises(OSError, match="Stale"):
        observer.catch_up(joins=True)


def test_absent_nodes_are_told_once_each(tmp_path):
    paths, disk = RunPaths(tmp_path), Disk()
    told: list[Absent] = []
    paths.jobs.mkdir(parents=True)
    assert absent_nodes(disk, paths, "12") == ()
    first = Absent("n3", "Exited with exit code 1: no module named gangrun")
    note_absent(disk, paths, "12", (first,))
    watch = AbsentWatch(paths, disk, "12", told.append)
    watch.start()
    until(lambda: told == [first], 10, "the first node is told")
    second = Absent("n4", "Communication connection failure", scheduler=True)
    note_absent(disk, paths, "12", (first, second))
    until(lambda: told == [first, second], 10, "the second node is told, and the first not again")
    watch.over.set()
    watch.join(100)
    absent_path(paths, "12").write_text("torn")
    assert absent_nodes(disk, paths, "12") == ()


def test_the_last_words_of_a_node(tmp_path):
    log = tmp_path / "processes-n3.log"
    assert job_owner.last_words(log) == ""
    log.write_text(
        "[n3:agent] hello\n\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'zmq'\n\n"
    )
    assert job_owner.last_words(log) == "Traceback (most recent call last):; ModuleNotFoundError: No module named 'zmq'"


def test_what_a_node_said_in_an_earlier_job_is_not_why_it_does_not_come(tmp_path):
    paths = RunPaths(tmp_path)
    paths.machine.mkdir(parents=True)
    log = paths.machine / "processes-n3.log"
    log.write_text("[n3:agent] leaving with 0: the next job of this run is submitted; this one ends\n")
    said = job_owner.said_bytes(paths, ("n3", "n4"))
    assert said == {"n3": log.stat().st_size, "n4": 0}
    assert job_owner.last_words(log, said["n3"]) == ""
    with log.open("a") as more:
        more.write("[n3:agent] no disk\n")
    assert job_owner.last_words(log, said["n3"]) == "[n3:agent] no disk"


@pytest.mark.parametrize(
    ("more", "batch"),
    [
        ({}, False),  # salloc's own shell
        ({"SLURM_PROCID": "0"}, True),  # a batch script
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_NTASKS": "4"}, False),  # salloc's interactive step
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, False),  # srun --pty bash
    ],
)
def test_what_kind_of_allocation_we_are_in(more, batch):
    found = held.held_by({**FACTS, "SLURM_JOB_NAME": "mine", **more})
    assert found is not None
    assert (found.is_batch, found.job_name) == (batch, "mine")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("seen", "excused"),
    [
        (["requeue"], "job 12 is requeued: "),
        (["running", "requeue"], "job 12 is requeued: "),  # the signal can be there before the state
        (["preemption-in-grace"], "job 12 is preempted: "),
        (["time-limit"], "job 12 is at its time limit: "),
        (["scancel"], ""),
        (["running"] * 4, ""),  # a person's kill, or ``timeout``
        ([], ""),  # Slurm does not answer
    ],
)
def test_what_a_sigterm_to_a_script_of_ones_own_means(version, seen, excused, monkeypatch):
    class Shows(Tools):
        def run(self, argv, within_s):
            return Answer(0, shown(version, left.pop(0))) if left else Answer(1, err="Socket timed out")

    left = list(seen)
    monkeypatch.setattr(slurm_ask, "TRY_EVERY_S", 0.0)
    said = slurm_ask.excuse(Shows({}), "12", 0)
    assert said.startswith(excused) and bool(said) == bool(excused)
    assert not left


def test_outside_of_a_job_there_is_none():
    assert held.held_by({"PATH": "/bin"}) is None


def test_one_of_many_tasks_is_refused():
    with pytest.raises(UserError, match="one of 4 tasks"):
        held.held_by({**FACTS, "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"})


def test_a_job_that_cannot_be_made_out_is_said():
    with pytest.raises(UserError, match="cannot read the details"):
        held.held_by({"SLURM_JOB_ID": "12"})


def test_a_login_node_is_not_trained_on_by_mistake(tmp_path, monkeypatch):
    conf, tools = tmp_path / "slurm.conf", tmp_path / "bin"
    tools.mkdir()
    (tools / "sbatch").write_text("#!/bin/sh\n")
    (tools / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    held.refuse_login_node({"SLURM_CONF": str(conf)})  # no such cluster
    conf.touch()
    with pytest.raises(UserError, match="may be a login node"):
        held.refuse_login_node({"SLURM_CONF": str(conf)})
    monkeypatch.setenv("PATH", str(tmp_path))
    held.refuse_login_node({"SLURM_CONF": str(conf)})  # tools that cannot be had do not matter


@pytest.mark.parametrize(
    ("made", "holder", "code", "said_last"),
    [
        (succeeded, "12", 0, "succeeded before job 12 was requeued"),
        (running, "11", 2, "place 0 is held by job 11"),  # so it came to its own claim
    ],
)
def test_a_requeued_script_goes_on_though_the_file_system_fails_now_and_then(
    made, holder, code, said_last, home, gangrun, monkeypatch
):
    story = made(home, job="12", command=("train.sh",)).indexed(home / "state" / "gangrun" / "runs")
    story.paths.job(0).write_bytes(msgspec.json.encode(JobClaim(0, holder, 0, "n1", 1, 1)))
    for tool in ("srun", "train.sh"):
        (home / tool).touch(mode=0o755)
    for name, value in {**FACTS, "SLURM_RESTART_COUNT": "1", "SLURM_PROCID": "0", "PATH": str(home)}.items():
        monkeypatch.setenv(name, value)
    looks = itertools.count()

    def before(self, op, path):
        if path == story.paths.jobs and op == "names" and next(looks) % 2 == 0:
            raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Disk, "before", before)
    said = gangrun("run", "--name", "train", "train.sh")
    assert (said.code, said_last in said.err) == (code, True), said.err
    assert next(looks) == (4 if code == 0 else 6), "each look was repeated"


def test_srun_is_given_what_the_user_asked_of_it():
    asked = Submission(
        job_name="j", nodes_count=1, python="p", working_directory="/", srun=(("mpi", "none"), ("verbose", None))
    )
    assert srun_options(asked) == ("--mpi=none", "--verbose")


def test_the_step_of_a_run_names_the_roster_and_the_founder(tmp_path):
    allocation = Allocation("12", 0, ("n1", "n2", "n3"), "n1", None)
    words = job_owner.step_argv(SPEC, RunPaths(tmp_path), CLAIM, allocation, ("n2", "n3"), (), "n2")
    told = json.loads(words[-3])
    assert told["agent"][-4:] == ["--roster", "n[1-3]", "--founder", "n2"]
    assert "--nodelist=n[2-3]" in words
    assert told["agent_start_s"] == SPEC.policy.join_within_s, "an agent may import for as long as it may take to join"
