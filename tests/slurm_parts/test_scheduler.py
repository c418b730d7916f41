"""Reading what Slurm shows, and asking it: on real outputs, and on answers that tell nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import pytest

from gangrun.adapters.slurm.commands import NOT_FOUND, Answer, Tools
from gangrun.adapters.slurm.scheduler import (
    FORMAT,
    KILL_WAIT_S,
    Controller,
    JobFacts,
    SchedulerRefused,
    SchedulerSilent,
    SlurmScheduler,
    awaited_ok,
    read_job,
    read_queue,
)
from tests.slurm_parts.captured import VERSIONS, shown

HOSTILE_COMMENT = "gr:x:1 \"q\" 's' \x1f Reason=Foo\n   JobState=FAILED"


NODE = (
    "NodeName={node} Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUTot=2 OS=Linux 6.1 State=IDLE"
    " BootTime={boot} SlurmdStartTime=2026-11-22T07:00:00 Comment=BootTime=2030-01-01T00:00:00"
)


class Scripted(Tools):
    """Gives one answer after the other and remembers what was asked."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__({})
        self.answers, self.asked = list(answers), list[tuple[str, ...]]()
        self.within_s: list[float] = []

    def run(self, argv: Sequence[str], within_s: float) -> Answer:
        self.asked.append(tuple(argv))
        self.within_s.append(within_s)
        return self.answers.pop(0)


def wall(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("state", "down"),
    [
        ("State=DOWN ThreadsPerCore=1", True),
        ("State=DOWN*+DRAIN ThreadsPerCore=1", True),
        ("State=MIXED* ThreadsPerCore=1", False),  # not heard for a while
        ("State=IDLE+POWERED_DOWN ThreadsPerCore=1", False),
        ("NextState=DOWN", False),
    ],
)
def test_a_node_that_slurm_has_given_up(state: str, down: bool) -> None:
    slurm = Scripted(Answer(0, f"NodeName=n1 Arch=x86_64 CoresPerSocket=1 \n   OS=Linux\n   {state}\n   Reason=x\n"))
    assert SlurmScheduler(slurm).is_down("n1") is down
    assert slurm.asked == [("scontrol", "show", "node", "n1")]


# ---- scontrol show job -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_running_job(version: str) -> None:
    job = read_job(shown(version, "running"))
    assert (job.name, job.comment, job.user, job.state, job.reason) == ("why.r1", "gr:r1:0", "jane", "RUNNING", "")
    assert len(job.nodes) == 2 and job.batch_host == job.nodes[0]
    assert job.start_wall is not None and job.end_wall == job.start_wall + 1800
    assert (job.restarts_count, job.exit_code, job.exit_signal, job.preempted) == (0, 0, 0, False)
    assert job.excluded == () and job.dependency == "" and not job.ended and not job.held
    assert job.partition == "main"


def test_times_are_those_that_slurm_wrote() -> None:
    assert read_job(shown("22.05", "running")).end_wall == wall("2026-11-21T21:30:04")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_whose_name_and_comment_look_like_fields(version: str) -> None:
    job = read_job(shown(version, "hostile"))
    assert job.state == "PENDING" and job.reason == "Dependency" and job.user == "jane"
    assert job.excluded == ("n1", "n2") and job.nodes == () and job.batch_host == ""
    assert awaited_ok(job.dependency) == (str(int(job.job) - 1),)
    assert job.start_wall is None and job.end_wall is None
    assert job.name == "evil|a" and job.comment.startswith("gr:x:1 ")  # their line breaks are lost, nothing else


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "state", "ended"),
    [
        ("scancel", "COMPLETING", False),
        ("scancelled", "CANCELLED", True),
        ("requeued", "PENDING", False),
        ("timed-out", "TIMEOUT", True),
    ],
)
def test_states(version: str, name: str, state: str, ended: bool) -> None:
    job = read_job(shown(version, name))
    assert (job.state, job.ended) == (state, ended)


@pytest.mark.parametrize("version", VERSIONS)
def test_preemption_and_requeue_show(version: str) -> None:
    grace = read_job(shown(version, "preemption-in-grace"))
    assert grace.preempted and grace.end_wall is not None and grace.start_wall is not None
    assert grace.end_wall < grace.start_wall + 60  # pulled in
    assert grace.runs and grace.preempt_wall is not None and grace.end_wall - grace.preempt_wall == 8
    assert read_job(shown(version, "requeue")).restarts_count == 1
    assert not read_job(shown(version, "requeue")).preempted


@pytest.mark.parametrize("version", VERSIONS)
def test_how_a_batch_script_ended(version: str) -> None:
    assert read_job(shown(version, "batch-script-failed")).exit_code == 3
    killed = read_job(shown(version, "batch-script-killed"))
    assert (killed.exit_code, killed.exit_signal) == (0, 9) and killed.reason != ""


def test_an_array_job_and_what_no_version_here_shows() -> None:
    text = (
        "JobId=12 ArrayJobId=11 ArrayTaskId=3 JobName=a b=c JobState=X\n"
        "   UserId=jane(1001) GroupId=jane(1001) MCS_label=N/A\n"
        "   JobState=PENDING,REQUEUED Reason=launch_failed_requeued_held Dependency=(null)\n"
        "   Requeue=1 Restarts=many ExitCode=x\n"
        "   StartTime=Unknown EndTime=2026-13-01T00:00:00 NewThing=Comment=x\n"
        "   ReqNodeList=(null) ExcNodeList=a[1-2],b\n"
        "   Comment= JobState=RUNNING\n"
        "   Power=\n"
    )
    job = read_job(text)
    assert (job.job, job.name, job.state, job.held) == ("12", "a b=c JobState=X", "PENDING", True)
    assert job.restarts_count == 0 and job.exit_code == 0 and job.end_wall is None
    assert job.excluded == ("a1", "a2", "b") and job.comment == "JobState=RUNNING"


@pytest.mark.parametrize("text", ["", "\n", "No jobs in the system\n", "   JobState=RUNNING\n"])
def test_what_is_no_job_is_silence(text: str) -> None:
    with pytest.raises(SchedulerSilent, match="no job"):
        read_job(text)


def test_a_node_list_that_cannot_be_read_is_silence() -> None:
    text = shown("22.05", "running").replace("NodeList=n[1-2]", "NodeList=n[1-")
    with pytest.raises(SchedulerSilent, match="node list"):
        read_job(text)


@pytest.mark.parametrize(
    ("state", "reason", "held"),
    [
        ("PENDING", "JobHeldUser", True),
        ("PENDING", "JobHeldAdmin", True),
        ("PENDING", "JobHoldMaxRequeue", True),
        ("PENDING", "launch_failed_requeued_held", True),
        ("SPECIAL_EXIT", "", True),
        ("PENDING", "Resources", False),
        ("RUNNING", "JobHeldUser", False),
    ],
)
def test_held(state: str, reason: str, held: bool) -> None:
    assert JobFacts(job="1", state=state, reason=reason).held is held


# ---- squeue ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_queue_with_everything_in_it(version: str) -> None:
    jobs = {job.name: job for job in read_queue(shown(version, "squeue")) if job.name != "why.r1"}
    spaced = jobs["my name with  spaces"]
    assert spaced.comment == "gr:run-1:0" and spaced.user == "jane" and spaced.excluded == ("n4",)
    hostile = jobs["evil|a\nJobState=FAILED x"]
    assert hostile.comment == HOSTILE_COMMENT and awaited_ok(hostile.dependency) == (spaced.job,)
    assert hostile.state == "PENDING" and hostile.end_wall is None and hostile.batch_host == ""
    assert jobs["held"].held and jobs["held"].comment == "" and jobs["held"].nodes == ()
    full = jobs["full"]
    assert full.partition == "main,low" and full.reason.startswith("Nodes_required_for_job_are_DOWN,_DRAINED_or_")
    assert "[1-2]" in jobs["arr%j"].job and jobs["arr%j"].end_wall is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_ended_and_ending_jobs_are_in_it_too(version: str) -> None:
    states = {job.state: job for job in read_queue(shown(version, "squeue"))}
    assert states["CANCELLED"].ended and not states["COMPLETING"].ended
    assert states["COMPLETING"].reason == "NonZeroExitCode" and states["COMPLETING"].nodes == ("n3",)


def test_a_reason_has_the_form_that_scontrol_gives_it() -> None:
    (job,) = read_queue(record("5", "a").replace("\x1fNone\x1f", "\x1flaunch failed requeued held\x1f"))
    assert job.reason == "launch_failed_requeued_held" and job.held


@pytest.mark.parametrize("text", ["", "\n", "slurm is not well today\n", "1\x1fjane\x1e\n"])
def test_what_is_no_record_is_passed_over(text: str) -> None:
    assert read_queue(text) == ()


def record(job: str, name: str, dependency: str = "(null)") -> str:
    fields = [job, "jane", "PENDING", "None", "", "n/a", "N/A", "", dependency, "main", name, "(null)"]
    return "\x1f".join(fields) + "\x1e\n"


# ---- asking ----------------------------------------------------------------------------------------------------------


def test_one_job() -> None:
    tools = Scripted(Answer(0, shown("22.05", "running")), Answer(0, shown("22.05", "running")))
    slurm = SlurmScheduler(tools, 7.0)
    found = slurm.job("6")
    assert found is not None and found.state == "RUNNING"
    slurm.job("6", within_s=2.0)
    assert tools.asked == [("scontrol", "show", "job", "6")] * 2 and tools.within_s == [7.0, 2.0]


def test_a_job_that_slurm_does_not_know_is_none() -> None:
    words = "slurm_load_jobs error: Invalid job id specified\n"
    assert SlurmScheduler(Scripted(Answer(1, err=words))).job("6") is None


UNHEARD = [
    Answer(-9, err="scontrol did not answer within 10 s. Invalid job id", timed_out=True),
    Answer(NOT_FOUND, err="there is no scontrol on this host"),
    Answer(1, err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"),
    Answer(1, err="slurm_load_jobs error: Socket timed out on send/recv operation\n"),
    Answer(1, err="slurm_load_jobs error: Zero Bytes were transmitted or received\n"),
    Answer(1, err="scontrol: fatal: Could not establish a configuration source\n"),
    Answer(-15),
]


@pytest.mark.parametrize("answer", UNHEARD)
def test_a_slurm_that_cannot_be_asked_is_silent(answer: Answer) -> None:
    for ask in (
        lambda slurm: slurm.job("6"),
        lambda slurm: slurm.jobs_named("a"),
        lambda slurm: slurm.cancel(("6",)),
        lambda slurm: slurm.requeue("6"),
    ):
        with pytest.raises(SchedulerSilent):
            ask(SlurmScheduler(Scripted(answer)))


def test_an_unknown_complaint_about_a_look_is_silence_and_about_a_request_a_refusal() -> None:
    odd = Answer(1, err="slurm_load_jobs error: Something new\n")
    with pytest.raises(SchedulerSilent, match="Something new"):
        SlurmScheduler(Scripted(odd)).job("6")
    with pytest.raises(SchedulerRefused, match="Something new"):
        SlurmScheduler(Scripted(odd)).requeue("6")


def test_jobs_by_name_are_this_users_in_any_state() -> None:
    tools = Scripted(Answer(0, record("5", "a") + record("6", "ab")), Answer(0, record("7", "a,b") + record("8", "a")))
    slurm = SlurmScheduler(tools)
    assert [job.job for job in slurm.jobs_named("a")] == ["5"]
    assert [job.job for job in slurm.jobs_named("a,b")] == ["7"]
    assert tools.asked == [
        ("squeue", "-h", "--me", "--name", "a", "-t", "all", "-o", FORMAT),
        ("squeue", "-h", "--me", "-t", "all", "-o", FORMAT),  # squeue would take a comma for the start of another name
    ]


def test_all_of_a_users_jobs() -> None:
    tools = Scripted(Answer(0, record("5", "a") + record("6", "b")))
    assert [job.name for job in SlurmScheduler(tools).mine()] == ["a", "b"]
    assert tools.asked == [("squeue", "-h", "--me", "-t", "all", "-o", FORMAT)]


def test_dependents_are_those_that_wait_for_a_good_end() -> None:
    text = "".join((
        record("10", "x", "afterok:5(unfulfilled)"), record("11", "x", "afterany:5(unfulfilled)"),
        record("12", "x", "afterok:55(unfulfilled)"), record("13", "x", "afterany:1(unfulfilled),afterok:4:5(failed)"),
        record("14", "x", "afternotok:5(unfulfilled)"), record("15", "x"), record("16", "x", "afterok:4?afterok:5"),
    ))  # fmt: skip
    tools = Scripted(Answer(0, text))
    assert [job.job for job in SlurmScheduler(tools).dependents_of("5")] == ["10", "13", "16"]
    assert tools.asked == [("squeue", "-h", "--me", "-t", "PENDING", "-o", FORMAT)]


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("", ()),
        ("afterok:5(unfulfilled)", ("5",)),
        ("afterok:5(unfulfilled),afterok:6(unfulfilled)", ("5", "6")),
        ("afterok:5:6_*(failed):7_2", ("5", "6", "7")),
        ("singleton", ()),
        ("after:5+10(unfulfilled)?afterok:9", ("9",)),
    ],
)
def test_what_a_dependency_waits_for(text: str, jobs: tuple[str, ...]) -> None:
    assert awaited_ok(text) == jobs


def test_what_is_asked_of_slurm_in_its_words() -> None:
    tools = Scripted(*[Answer(0)] * 9)
    slurm = SlurmScheduler(tools)
    slurm.cancel(("5", "6"))
    slurm.cancel(())
    slurm.cancel(("5",), within_s=1.5)
    slurm.requeue("5")
    slurm.release("5")
    slurm.set_excluded("5", ("n2", "m1"))
    slurm.set_excluded("5", ())
    slurm.set_dependency("7", "afterok:6")
    slurm.start_now("7")
    assert tools.asked == [
        ("scancel", "5", "6"), ("scancel", "5"), ("scontrol", "requeue", "5"),
        ("scontrol", "release", "5"), ("scontrol", "update", "JobId=5", "ExcNodeList=n2,m1"),
        ("scontrol", "update", "JobId=5", "ExcNodeList="), ("scontrol", "update", "JobId=7", "Dependency=afterok:6"),
        ("scontrol", "update", "JobId=7", "StartTime=now+3"),
    ]  # fmt: skip
    assert tools.within_s[1] == 1.5


@pytest.mark.parametrize(
    "words",
    [
        "scancel: error: Kill job error on job id 5: Invalid job id specified",
        "scancel: error: Kill job error on job id 5: Job/step already completing or completed",
    ],
)
def test_cancelling_what_is_over_is_fine_but_requeueing_it_is_not(words: str) -> None:
    SlurmScheduler(Scripted(Answer(1, err=words))).cancel(("5",))
    with pytest.raises(SchedulerRefused):
        SlurmScheduler(Scripted(Answer(1, err=words))).requeue("5")


def test_somebody_elses_job_cannot_be_cancelled() -> None:
    words = "scancel: error: Kill job error on job id 5: Access/permission denied"
    with pytest.raises(SchedulerRefused, match="denied"):
        SlurmScheduler(Scripted(Answer(1, err=words))).cancel(("5",))


AS_OF = "Configuration data as of 2026-11-22T06:00:00\n"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (
            Answer(0, f"{AS_OF}JobFileAppend = 0\nKillWait                = 10 sec\nUnkillableStepTimeout = 60 sec\n"),
            Controller(10.0, wall("2026-11-22T06:00:00")),
        ),
        (Answer(0, "ScronParameters         = enable,explicit_scancel\n"), Controller(KILL_WAIT_S, None, True)),
        (Answer(0, "ScronParameters         = (null)\n"), Controller(KILL_WAIT_S, None)),
        (Answer(0, "nothing of it\n"), Controller(KILL_WAIT_S, None)),
        (Answer(1, err="Unable to contact slurm controller"), Controller(KILL_WAIT_S, None)),
        (Answer(1, err="no"), Controller(KILL_WAIT_S, None)),
    ],
)
def test_the_controllers_clock_and_how_long_it_waits_before_it_kills(answer: Answer, found: Controller) -> None:
    assert SlurmScheduler(Scripted(answer)).controller() == found


def test_how_long_a_preempted_job_may_stay() -> None:
    line = "   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime=6 Hidden=NO\n"
    tools = Scripted(Answer(0, line), Answer(1, err="Partition low not found"))
    assert (SlurmScheduler(tools).grace_time_s("low"), SlurmScheduler(tools).grace_time_s("low")) == (6.0, None)
    assert tools.asked[0] == ("scontrol", "show", "partition", "low")


def test_which_nodes_have_booted_since() -> None:
    """By Slurm's word, less what clocks may be apart; what it does not say is no."""
    boots = {"n1": "2026-11-22T06:00:00", "n2": "2026-11-22T05:00:30", "n3": "None", "n4": "2026-11-22T04:00:00"}
    text = "\n".join(NODE.format(node=node, boot=boot) for node, boot in boots.items())
    since = dict.fromkeys([*boots, "n5"], wall("2026-11-22T05:00:00"))
    slurm = Scripted(Answer(0, text + "\n"))
    assert SlurmScheduler(slurm).booted_since(since) == ("n1",)
    assert slurm.asked == [("scontrol", "show", "node", "n1,n2,n3,n4,n5", "--oneliner")]
    assert SlurmScheduler(Scripted()).booted_since({}) == (), "and nobody is asked"


@pytest.mark.parametrize(
    "answer",
    [Answer(1, err="Node n9 not found"), Answer(-1, timed_out=True), Answer(0), Answer(0, "NodeName=n1 BootTime=soon")],
)
def test_where_slurm_does_not_say_nobody_has_booted(answer: Answer) -> None:
    assert SlurmScheduler(Scripted(answer)).booted_since({"n1": 0.0}) == ()
