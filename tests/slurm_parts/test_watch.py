"""This job's end, seen coming: time limit, preemption, and why SIGTERM came; all on pretended time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangrun.adapters.slurm.commands import Answer, Tools
from gangrun.adapters.slurm.scheduler import SchedulerSilent, SlurmScheduler
from gangrun.adapters.slurm.watch import UNLIMITED_S, JobWatch
from gangrun.core.events import NodeAbsent, Notice, NoticeKind
from tests.slurm_parts.pretend import UNREACHABLE, PretendBell, PretendJob, PretendSlurm, PretendTime, stamp
from tests.waiting import until

KILL_WAIT_S = 6.0  # as the pretended Slurm has it
LEAD_S = 75.0


class World:
    """A running job with an hour to go, and its watch."""

    save_s = 0.0

    def __init__(self, limit_s: float | None = 3600.0, restarts: int = 0) -> None:
        self.time = PretendTime()
        self.slurm = PretendSlurm(self.time)
        now = self.time.wall()
        end = None if limit_s is None else now + limit_s
        self.me = self.slurm.add(PretendJob("7", state="RUNNING", start_wall=now, end_wall=end, restarts=restarts))
        self.posted: list[tuple[float, Notice]] = []
        self.said: list[str] = []
        self.scheduler = SlurmScheduler(self.slurm)
        self.watch = JobWatch(
            self.scheduler, run="r1", job="7", restarts_count=restarts, clock=self.time,
            lead_s=lambda save_s: LEAD_S + save_s,
            post=lambda stamped: self.posted.append((self.time.now(), stamped.event)),  # type: ignore[arg-type]
            say=self.said.append, bells=lambda: PretendBell(self.time), nodes=("n1", "n2"),
            save_s=lambda: self.save_s,
        )  # fmt: skip

    def turn_until(self, at: float) -> None:
        while self.time.now() < at and self.watch.turn():
            pass

    def kinds(self) -> list[NoticeKind]:
        return [notice.kind for _, notice in self.posted]

    def signalled(self, after_s: float = 30.0) -> list[tuple[float, Notice]]:
        """SIGTERM reaches the agents; what is posted about it."""
        self.turn_until(self.time.now() + after_s)
        self.posted.clear()
        self.watch.ask_why()
        self.watch.ask_why()
        self.turn_until(self.time.now() + 15.0)
        return self.posted


# ---- looking ---------------------------------------------------------------------------------------------------------


def test_first_after_a_second_then_every_ten() -> None:
    world = World()
    world.turn_until(125.0)
    looks = [line for line in world.slurm.asked if line.startswith("scontrol show job")]
    assert len(looks) == 4 and world.time.now() == 131.0 and world.posted == []
    assert world.watch.facts is not None and world.watch.facts.batch_host == "n1"
    assert world.slurm.asked.count("scontrol show config") == 1
    assert world.watch.left_s() == 3600.0 - 31.0


def test_what_is_left_is_not_known_before_slurm_tells_or_without_a_limit() -> None:
    world = World()
    assert world.watch.left_s() is None
    world = World(limit_s=None)
    world.turn_until(25.0)
    assert world.watch.left_s() is None


def test_slurm_confirms_this_stay_of_the_job_and_no_other() -> None:
    world = World()
    assert world.watch.runs_at == float("-inf")
    world.turn_until(125.0)
    assert world.watch.runs_at == 131.0
    world.slurm.down = True
    world.turn_until(145.0)
    assert world.watch.runs_at == 131.0, "no answer"
    world.slurm.down, world.me.restarts = False, 1
    world.turn_until(165.0)
    assert world.watch.runs_at == 131.0, "it is another stay of the job that runs"
    world.me.restarts = 0
    world.turn_until(175.0)
    assert (confirmed_at := world.watch.runs_at) > 165.0
    world.me.comment = "mine"
    world.scheduler.mark_over("r1", "7", 0, 0, 3.0)
    world.turn_until(195.0)
    assert world.watch.runs_at == confirmed_at, "for its launcher this stay is over"
    assert world.watch.facts is not None and world.watch.facts.comment == "mine"


@pytest.mark.parametrize(
    ("over", "stay", "runs"),
    [
        ((), (0, 0), True), ((0, 0), (0, 0), False), ((0, 0), (0, 1), True), ((0, 1), (0, 0), False),
        ((0, 3), (1, 0), True),  # the comment outlives a requeue
    ],
)  # fmt: skip
def test_a_stay_whose_step_is_over_is_no_longer_confirmed(
    over: tuple[int, ...], stay: tuple[int, int], runs: bool
) -> None:
    world = World(restarts=stay[0])
    world.me.comment = "gr:r1:0"
    for restart, launch in ((0, 0), over) if over else ():
        world.scheduler.mark_over("r1", "7", restart, launch, 3.0)
    seen = world.scheduler.job("7")
    (queued,) = world.scheduler.mine()
    assert seen is not None
    assert seen.stay_runs("r1", *stay) is runs
    assert (seen.comment, queued.comment, queued.over) == ("gr:r1:0", "gr:r1:0", seen.over)


def test_two_runs_in_one_job_end_their_steps_each_for_itself() -> None:
    world = World()
    world.me.comment = "mine+over:x"
    scheduler = world.scheduler
    for run, restart, launch in (("r1", 0, 1), ("r2", 0, 0), ("r1", 0, 0), ("r2", 0, 1)):
        scheduler.mark_over(run, "7", restart, launch, 3.0)
    assert world.me.comment == "mine+over:x+over:r1:0.1+over:r2:0.1"
    seen = scheduler.job("7")
    assert seen is not None and seen.comment == "mine+over:x"
    assert [seen.stay_runs(run, 0, 1) for run in ("r1", "r2", "r3")] == [False, False, True]
    world.turn_until(125.0)
    assert world.watch.runs_at == float("-inf"), "this stay is over"


def test_the_mark_of_another_run_in_the_job_ends_no_stay_of_mine() -> None:
    world = World()
    world.scheduler.mark_over("r2", "7", 0, 5, 3.0)
    world.turn_until(125.0)
    assert world.watch.runs_at > 100.0


def test_two_runs_in_one_job_do_not_write_its_comment_at_once() -> None:
    """One would write over what the other has written since it read."""
    world, inner, met = World(), World(), []

    def run(argv: Sequence[str], within_s: float) -> Answer:
        if argv[1] == "update":
            with pytest.raises(SchedulerSilent, match="another run"):
                inner.scheduler.mark_over("r2", "7", 0, 0, 3.0)
            met.append(argv)
        return world.slurm.run(argv, within_s)

    SlurmScheduler(cast(Tools, SimpleNamespace(run=run))).mark_over("r1", "7", 0, 0, 3.0)
    assert met and not inner.me.comment
    inner.scheduler.mark_over("r2", "7", 0, 0, 3.0)
    assert inner.me.comment == "+over:r2:0.0"


def test_a_node_that_slurm_takes_out_of_the_job_is_told_once() -> None:
    world = World()
    world.turn_until(101.0)
    world.me.nodes = "n2"
    world.time.later(3.0, world.watch.look)
    world.turn_until(104.5)
    gone = NodeAbsent("n1", "Slurm took n1 out of job 7", scheduler=True, taken=True)
    assert world.posted == [(104.0, gone)], "at once, as a node was silent"
    world.turn_until(150.0)
    assert len(world.posted) == 1


def test_a_node_that_slurm_takes_as_the_watch_closes_is_not_told() -> None:
    world = World()
    world.turn_until(101.0)
    world.me.nodes = "n2"
    ask = world.slurm.run

    def answer(argv: Sequence[str], within_s: float) -> Answer:
        world.watch.close()
        return ask(argv, within_s)

    world.slurm.run = answer  # type: ignore[method-assign]
    world.turn_until(150.0)
    assert world.posted == []


@pytest.mark.parametrize("other", [{"restarts": 1}, {"state": "COMPLETING"}, {"nodes": ""}])
def test_the_nodes_of_another_stay_or_of_an_end_tell_nothing(other: dict[str, Any]) -> None:
    world = World()
    world.me.nodes = "n2"
    for name, value in other.items():
        setattr(world.me, name, value)
    world.turn_until(150.0)
    assert not [event for _, event in world.posted if isinstance(event, NodeAbsent)]


def test_the_time_limit_is_told_once_and_in_time() -> None:
    world = World()
    world.turn_until(3800.0)
    assert world.posted == [(100.0 + 3600.0 - LEAD_S, Notice(NoticeKind.TIME_LIMIT, LEAD_S))]


def test_the_longest_save_that_was_measured_moves_the_word_before_the_time_limit() -> None:
    world = World()
    world.turn_until(500.0)
    world.save_s = 200.0
    world.turn_until(600.0)
    world.save_s = 5.0
    world.turn_until(3800.0)
    lead_s = LEAD_S + 200.0
    assert world.posted == [(100.0 + 3600.0 - lead_s, Notice(NoticeKind.TIME_LIMIT, lead_s, save_s=200.0))]


def reservation(world: World, in_s: float, nodes: str = "n2", flags: str = "MAINT,IGNORE_JOBS,SPEC_NODES") -> None:
    """As Slurm 22.05 shows it."""
    start, end = stamp(world.time.wall() + in_s), stamp(world.time.wall() + in_s + 7200.0)
    world.slurm.reservations = (
        f"ReservationName=firmware StartTime={start} EndTime={end} Duration=02:00:00 Nodes={nodes} NodeCnt=1 "
        f"CoreCnt=16 Features=(null) PartitionName=(null) Flags={flags} TRES=cpu=16 Users=root Groups=(null) "
        "Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
    )


def test_maintenance_of_a_node_counts_as_a_time_limit() -> None:
    world = World()
    reservation(world, 1800.0)
    world.turn_until(3800.0)
    about = "reservation firmware on n2"
    assert world.posted[0] == (100.0 + 1800.0 - LEAD_S, Notice(NoticeKind.MAINTENANCE, LEAD_S, about=about))
    assert world.kinds() == [NoticeKind.MAINTENANCE], "and once"


@pytest.mark.parametrize(
    ("in_s", "of"),
    [
        (1800.0, {"nodes": "n[3-4]"}), (1800.0, {"flags": "SPEC_NODES,ALL_NODES"}), (3700.0, {}),  # after the job
        (-60.0, {}),  # the job was started in it
    ],
)  # fmt: skip
def test_what_is_no_maintenance_of_this_job(in_s: float, of: dict[str, str]) -> None:
    world = World()
    reservation(world, in_s, **of)
    world.turn_until(3800.0)
    assert world.kinds() == [NoticeKind.TIME_LIMIT]


def test_maintenance_that_begins_at_once_leaves_the_time_to_save() -> None:
    world = World(limit_s=None)
    world.turn_until(400.0)
    reservation(world, 1.0)
    world.turn_until(500.0)
    assert [notice for _, notice in world.posted] == [
        Notice(NoticeKind.MAINTENANCE, LEAD_S, about="reservation firmware on n2")
    ]


def test_maintenance_that_is_called_off_ends_nothing() -> None:
    world = World()
    reservation(world, 1800.0)
    world.turn_until(1000.0)
    world.slurm.reservations = ""
    world.turn_until(3800.0)
    assert world.kinds() == [NoticeKind.TIME_LIMIT]


@pytest.mark.parametrize("off_s", [6 * 3600.0, -6 * 3600.0])
@pytest.mark.parametrize("begins_wrong", [True, False])
def test_a_wall_clock_that_is_wrong_moves_no_end(off_s: float, begins_wrong: bool) -> None:
    """The controller ends the job, by its own clock; how long that is from now BOOTTIME counts."""
    world = World()
    if begins_wrong:
        world.time.wall_off_s = off_s
    else:
        world.time.later(500.0, lambda: setattr(world.time, "wall_off_s", off_s))
    world.turn_until(3800.0)
    assert world.posted == [(100.0 + 3600.0 - LEAD_S, Notice(NoticeKind.TIME_LIMIT, LEAD_S))]


def test_a_wall_clock_that_is_wrong_makes_no_signal_a_time_limit() -> None:
    world = World()
    world.time.wall_off_s = 6 * 3600.0
    world.time.later(31.0, lambda: setattr(world.me, "state", "COMPLETING"))
    assert [notice.kind for _, notice in world.signalled(31.0)] == [NoticeKind.CANCEL]


def test_the_controllers_own_clock_is_followed() -> None:
    """It is set back by an hour: it will end the job an hour later."""
    world = World()
    world.time.later(500.0, lambda: setattr(world.slurm, "behind_s", 3600.0))
    world.turn_until(7400.0)
    ((at, notice),) = world.posted
    assert notice.kind is NoticeKind.TIME_LIMIT and at == 100.0 + 7200.0 - LEAD_S


def test_a_controller_that_does_not_show_its_clock_leaves_this_nodes() -> None:
    world = World()
    world.slurm.tells_no_time = True
    world.turn_until(3800.0)
    assert world.posted == [(100.0 + 3600.0 - LEAD_S, Notice(NoticeKind.TIME_LIMIT, LEAD_S))]
    (told,) = world.said
    assert "judged by this node's clock" in told


def test_a_short_job_trains_half_of_its_time() -> None:
    world = World(limit_s=60.0)
    world.turn_until(170.0)
    assert world.posted == [(130.0, Notice(NoticeKind.TIME_LIMIT, 30.0))]


def test_a_watch_that_begins_late_tells_at_its_first_look_how_little_is_left() -> None:
    world = World()
    world.me.end_wall = world.time.wall() + 20.0
    world.me.start_wall = world.time.wall() - 3600.0
    world.turn_until(103.0)
    assert world.posted == [(101.0, Notice(NoticeKind.TIME_LIMIT, 19.0))]


def test_an_end_that_moves_is_followed() -> None:
    world = World(limit_s=600.0)
    assert world.me.end_wall is not None
    world.time.later(500.0, lambda: setattr(world.me, "end_wall", (world.me.end_wall or 0.0) + 1000.0))
    world.turn_until(1500.0)
    assert world.posted == []
    world.turn_until(1700.0)
    assert world.kinds() == [NoticeKind.TIME_LIMIT] and world.posted[0][0] == 1700.0 - LEAD_S


def test_without_a_limit_nothing_ends() -> None:
    world = World(limit_s=None)
    world.turn_until(10_000.0)
    assert world.posted == []


def test_the_limit_is_kept_from_memory_while_slurm_is_silent() -> None:
    world = World()
    world.time.later(50.0, lambda: setattr(world.slurm, "down", True))
    world.turn_until(3800.0)
    assert world.kinds() == [NoticeKind.TIME_LIMIT]
    assert len(world.said) == 1 and "Slurm does not say how job 7 stands" in world.said[0]


def test_a_preemption_is_seen_without_any_signal() -> None:
    world = World()

    def preempt() -> None:
        world.me.preempt_wall, world.me.end_wall = world.time.wall(), world.time.wall() + 40.0

    world.time.later(35.0, preempt)
    world.turn_until(160.0)
    assert world.posted == [(141.0, Notice(NoticeKind.PREEMPTION, 34.0))]  # its pulled-in end is no time limit


@pytest.mark.parametrize(("answers", "grace_s"), [([], 44.0), ([UNREACHABLE], KILL_WAIT_S), ([Answer(0)], KILL_WAIT_S)])
def test_a_preemption_without_an_end_goes_by_the_partitions_grace(answers: list[Answer], grace_s: float) -> None:
    """Of a job without a time limit Slurm does not show the end. What it always leaves is its KillWait."""
    world = World(limit_s=None)
    world.me.preempt_wall, world.me.state = world.time.wall(), "SIGNALING"
    world.slurm.instead["scontrol show partition main"] = answers
    world.turn_until(103.0)
    assert world.posted == [(101.0, Notice(NoticeKind.PREEMPTION, grace_s))]


def test_asked_about_one_without_an_end_it_says_the_same() -> None:
    world = World(limit_s=None)
    world.turn_until(102.0)
    world.me.preempt_wall = world.time.wall()
    world.watch.ask_why()
    world.watch.turn()
    assert world.posted == [(111.0, Notice(NoticeKind.PREEMPTION, 45.0))]


def test_a_job_that_slurm_has_forgotten_ends_nothing() -> None:
    world = World()
    del world.slurm.jobs["7"]
    world.turn_until(200.0)
    assert world.posted == [] and world.watch.facts is None


# ---- why -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "rest", "notice"),
    [
        ("COMPLETING", {}, Notice(NoticeKind.CANCEL, KILL_WAIT_S)),
        ("CANCELLED", {"exit_code": "0:15"}, Notice(NoticeKind.CANCEL, KILL_WAIT_S)),
        ("COMPLETING", {"restarts": 1}, Notice(NoticeKind.REQUEUE, KILL_WAIT_S)),
        ("COMPLETING", {"reason": "TimeLimit"}, Notice(NoticeKind.TIME_LIMIT, KILL_WAIT_S)),
        ("COMPLETING", {"preempt_wall": 1.0}, Notice(NoticeKind.PREEMPTION, KILL_WAIT_S)),
    ],
)
def test_what_slurm_shows_is_told_at_once(state: str, rest: dict[str, object], notice: Notice) -> None:
    world = World()
    world.time.later(31.0, lambda: vars(world.me).update(state=state, **rest))
    assert world.signalled(31.0) == [(131.0, notice)]


def test_preempted_with_grace_there_is_until_the_pulled_in_end() -> None:
    world = World()
    world.turn_until(102.0)
    world.me.preempt_wall, world.me.end_wall = world.time.wall(), world.time.wall() + 20.0
    world.watch.ask_why()
    world.turn_until(140.0)
    assert world.posted == [(111.0, Notice(NoticeKind.PREEMPTION, 20.0))]


def test_a_state_that_shows_late_is_waited_for() -> None:
    world = World()
    world.time.later(31.5, lambda: setattr(world.me, "state", "COMPLETING"))
    ((at, notice),) = world.signalled(31.0)
    assert notice.kind is NoticeKind.CANCEL and 131.5 <= at < 132.0
    assert KILL_WAIT_S - 1.0 < notice.grace_s < KILL_WAIT_S


def test_a_bare_signal_means_stop() -> None:
    ((at, notice),) = World().signalled(31.0)
    assert notice.kind is NoticeKind.UNKNOWN and 131.8 <= at < 132.0


@pytest.mark.parametrize(("limit_s", "left_s"), [(3600.0, 3569.0), (None, UNLIMITED_S)])
def test_a_bare_signal_takes_no_nodes_away(limit_s: float | None, left_s: float) -> None:
    """The job runs on: its ranks have as long to save as nobody hurries them."""
    ((_, notice),) = World(limit_s).signalled(31.0)
    assert notice.kind is NoticeKind.UNKNOWN and notice.grace_s == pytest.approx(left_s, abs=2.0)


def test_a_slurm_that_cannot_be_asked_means_stop_while_there_is_grace_left() -> None:
    world = World()
    world.turn_until(110.0)
    world.slurm.down = True
    ((at, notice),) = world.signalled(0.0)
    assert notice.kind is NoticeKind.UNKNOWN and at == pytest.approx(111.0 + KILL_WAIT_S / 3, abs=0.4)
    assert notice.grace_s >= KILL_WAIT_S / 2


def test_a_slurm_that_answers_again_in_the_grace_is_heard() -> None:
    world = World()
    world.turn_until(110.0)
    world.slurm.instead["scontrol show job"] = [UNREACHABLE] * 2
    world.me.state = "COMPLETING"
    assert [notice.kind for _, notice in world.signalled(0.0)] == [NoticeKind.CANCEL]


def test_asked_before_the_first_look_it_goes_by_what_slurm_shows_now() -> None:
    world = World()
    world.me.state, world.me.restarts = "COMPLETING", 1
    assert [notice.kind for _, notice in world.signalled(0.0)] == [NoticeKind.REQUEUE]


def test_a_job_that_was_requeued_before_is_not_requeued_now() -> None:
    world = World(restarts=3)
    world.time.later(31.0, lambda: setattr(world.me, "state", "COMPLETING"))
    assert [notice.kind for _, notice in world.signalled(31.0)] == [NoticeKind.CANCEL]


def test_who_asks_gets_an_answer_even_if_it_was_told_before() -> None:
    """Silence would be taken for a signal that nobody can explain, which means stop."""
    world = World()
    world.time.later(20.0, lambda: setattr(world.me, "preempt_wall", world.time.wall()))
    world.turn_until(140.0)
    assert world.kinds() == [NoticeKind.PREEMPTION]
    world.watch.ask_why()
    world.turn_until(160.0)
    assert world.kinds() == [NoticeKind.PREEMPTION] * 2
    world.me.preempt_wall, world.me.state = None, "COMPLETING"
    world.watch.ask_why()
    world.turn_until(180.0)
    assert world.kinds() == [NoticeKind.PREEMPTION] * 2 + [NoticeKind.CANCEL]


def test_slurm_need_not_say_how_long_it_waits() -> None:
    world = World()
    world.slurm.tells_no_time = True
    world.time.later(31.0, lambda: setattr(world.me, "state", "COMPLETING"))
    assert world.signalled(31.0)[0][1] == Notice(NoticeKind.CANCEL, 30.0)


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_closed_it_tells_nothing_more() -> None:
    world = World()
    world.turn_until(110.0)
    world.me.state = "COMPLETING"
    world.watch.close()
    world.watch.ask_why()
    assert not world.watch.turn() and world.posted == []


def test_closed_while_it_looks_why_it_tells_nothing() -> None:
    world = World()
    world.turn_until(110.0)
    world.time.later(0.4, world.watch.close)
    world.watch.ask_why()
    assert not world.watch.turn() and world.posted == []


def test_the_thread_ends_when_closed() -> None:
    time = PretendTime()
    slurm = PretendSlurm(time)
    slurm.add(PretendJob("7", state="COMPLETING", start_wall=0.0))
    posted: list[object] = []
    watch = JobWatch(
        SlurmScheduler(slurm), run="r1", job="7", restarts_count=0, lead_s=float, post=posted.append, clock=time
    )
    watch.start()
    watch.ask_why()
    until(lambda: posted, 10, "a notice")
    watch.close()
    watch.join(100)
    assert not watch.is_alive()
