"""When a gang hangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gangrun.core.policy import HangPolicy
from gangrun.core.recovery.hang import CPU_WINDOW_S, LONG_PHASES, NEVER, HangWatch, Quiet, Stall
from gangrun.core.recovery.standing import Stand
from gangrun.wire.progress import TrainingPhase

# ---- a gang whose ranks are sampled once a second --------------------------------------------------------------------


POLICY = HangPolicy()


@dataclass(frozen=True)
class Sample:
    rank: int
    step: int = -1
    phase: int = 0
    slot_writes_count: int = 0
    output_bytes: int = 0
    cpu_s: float = 0.0
    state: str = "S"
    is_sampled: bool = False
    stand: Stand | None = None
    moves: bool = False


class Gang:
    """Ranks whose samples a test changes from second to second; two ranks to a node."""

    def __init__(self, ranks_count: int = 4, policy: HangPolicy = POLICY) -> None:
        self.now = 1000.0
        self.samples = [Sample(rank) for rank in range(ranks_count)]
        self.watch = HangWatch(policy, self.now)
        self.verdict: Stall | Quiet = Quiet(NEVER, 0.0)

    def second(self, change: Callable[[Sample], Sample] | None = None) -> Stall | Quiet:
        """One second passes."""
        self.now += 1.0
        if change is not None:
            self.samples = [change(sample) for sample in self.samples]
        for first in range(0, len(self.samples), 2):
            self.watch.observe(f"n{first // 2}", self.samples[first : first + 2], self.now)
        self.verdict = self.watch.judge(self.now)
        return self.verdict

    def seconds(self, count: int, change: Callable[[Sample], Sample] | None = None) -> Stall | None:
        """Seconds pass until one trips the watch."""
        for _ in range(count):
            if isinstance(self.second(change), Stall):
                assert isinstance(self.verdict, Stall)
                return self.verdict
        return None

    def train(self, steps_count: int, step_s: int = 1) -> None:
        """Healthy steps, busy."""
        for _ in range(steps_count):
            assert self.seconds(step_s - 1, busy) is None
            assert self.seconds(1, step) is None


def busy(sample: Sample) -> Sample:
    return replace(sample, cpu_s=sample.cpu_s + 0.9, state="R")


def idle(sample: Sample) -> Sample:
    return replace(sample, cpu_s=sample.cpu_s + 0.001, state="S")


def step(sample: Sample) -> Sample:
    return replace(busy(sample), step=sample.step + 1, slot_writes_count=sample.slot_writes_count + 1)


def talk(sample: Sample) -> Sample:
    return replace(busy(sample), output_bytes=sample.output_bytes + (40 if sample.rank == 0 else 0))


# ---- must trip -------------------------------------------------------------------------------------------------------


def test_deadlock_in_gloo_trips_at_the_least_limit() -> None:
    gang = Gang()
    gang.train(20)
    stall = gang.seconds(200, idle)
    assert stall is not None and stall.stalled_s == stall.limit_s == 120.0
    assert stall.sentence == "no sign of progress for 120 s at step 19 (limit 120 s) and all ranks are idle"
    assert [seen.rank for seen in stall.observations] == [0, 1, 2, 3]
    first = stall.observations[0]
    assert (first.node, first.state, first.step) == ("n0", "S", 19) and first.cpu_rate < 0.05
    assert stall.observations[3].node == "n1"


def test_the_limit_is_ten_times_the_longest_interval_survived() -> None:
    gang = Gang()
    gang.train(10, step_s=20)
    stall = gang.seconds(400, idle)
    assert stall is not None and stall.limit_s == 200.0


def test_the_learnt_limit_is_bounded_but_never_below_what_was_survived() -> None:
    gang = Gang(policy=replace(POLICY, steady_max_s=300.0))
    gang.train(8, step_s=100)
    assert gang.watch.limit_s() == 300.0
    gang.train(1, step_s=280)
    assert gang.watch.limit_s() == 560.0


def test_it_warns_from_half_of_the_limit_on() -> None:
    gang = Gang()
    gang.train(20)
    assert gang.verdict == Quiet(gang.now + 30.0, 120.0)
    gang.seconds(59, idle)
    assert gang.verdict == Quiet(gang.now + 1.0, 120.0)
    gang.second(idle)
    assert gang.verdict == Quiet(
        gang.now + 30.0, 120.0, "no sign of progress for 60 s at step 19; counts as hung at 120 s"
    )


@pytest.mark.parametrize("others", [idle, busy], ids=["gloo waits", "nccl spins"])
def test_a_stopped_rank_trips_whatever_the_others_do(others: Callable[[Sample], Sample]) -> None:
    gang = Gang()
    gang.train(20)
    stall = gang.seconds(200, lambda sample: replace(sample, state="T") if sample.rank == 2 else others(sample))
    assert stall is not None and stall.limit_s == 120.0 and stall.sentence.endswith("and rank 2 is stopped")
    assert [seen.state for seen in stall.observations][2] == "T"


def test_a_rank_stuck_in_the_kernel_trips() -> None:
    gang = Gang()
    gang.train(20)
    stall = gang.seconds(200, lambda sample: replace(sample, state="D") if sample.rank == 1 else busy(sample))
    assert stall is not None and stall.sentence.endswith("rank 1 is stuck in the kernel (state D)")


def test_a_rank_in_the_kernel_for_a_moment_is_not_stuck() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(110, idle)
    assert (
        gang.seconds(25, lambda sample: replace(idle(sample), state="D") if sample.rank == 1 else idle(sample)) is None
    )
    assert isinstance(gang.verdict, Quiet) and gang.verdict.next_at == gang.now + 5.0
    assert gang.seconds(1, idle) is None, "it came back: that is a sign"
    assert gang.watch.limit_s() == 2 * 136.0, "survived, though it was not usual"


def test_spinning_without_a_word_trips_in_the_end() -> None:
    gang = Gang()
    gang.train(20)
    assert gang.seconds(3599, busy) is None
    assert isinstance(gang.verdict, Quiet) and gang.verdict.sentence.endswith("at step 19, but ranks are busy")
    stall = gang.seconds(5, busy)
    assert stall is not None and stall.sentence.endswith("ranks are busy but report no progress")


def test_a_start_that_never_comes_trips_at_the_start_up_limit() -> None:
    gang = Gang()
    stall = gang.seconds(2000, idle)
    assert stall is not None and stall.limit_s == stall.stalled_s == 1800.0 and " at step" not in stall.sentence


@pytest.mark.parametrize(("steps_count", "before_s"), [(0, 1800.0), (10, 600.0)], ids=["start-up", "long steps"])
def test_after_a_rank_has_ended_the_others_get_the_least(steps_count: int, before_s: float) -> None:
    gang = Gang()
    gang.train(steps_count, step_s=60)
    gang.second(idle)
    assert gang.watch.limit_s() == before_s
    gang.watch.observe("n0", gang.samples[:1], gang.now)
    assert gang.watch.limit_s() == 120.0
    gang.second(idle)
    assert gang.watch.limit_s() == before_s, "it was only not seen for once"


def test_whoever_looks_only_when_told_to_finds_it_in_time() -> None:
    """The limit shrinks from 1800 s to 120 s while somebody sleeps."""
    watch, now, look_at = HangWatch(POLICY, 0.0), 0.0, 0.0
    sample = Sample(0)
    while now < 3600.0:
        now += 1.0
        sample = step(sample) if now < 30.0 else idle(sample)
        watch.observe("n0", [sample], now)
        if now >= look_at:
            verdict = watch.judge(now)
            if isinstance(verdict, Stall):
                break
            look_at = verdict.next_at
    assert now == 29.0 + 120.0


# ---- must not trip ---------------------------------------------------------------------------------------------------


def test_an_evaluation_of_ten_steps_time_does_not_trip() -> None:
    gang = Gang()
    gang.train(10, step_s=30)
    assert gang.seconds(300, busy) is None, "busy, silent, ten times as long as a step"
    gang.train(3, step_s=30)


def test_an_evaluation_far_beyond_the_limit_does_not_trip_while_ranks_work() -> None:
    gang = Gang()
    gang.train(20)
    assert gang.seconds(1500, busy) is None


def test_a_silent_gang_that_issues_collectives_is_neither_hung_nor_warned_of_however_idle_it_is() -> None:
    gang = Gang()
    assert gang.seconds(4000, lambda sample: replace(idle(sample), moves=gang.now % 60 < 5)) is None
    assert isinstance(gang.verdict, Quiet) and gang.verdict.sentence == ""
    found = gang.seconds(2000, lambda sample: replace(idle(sample), moves=False))
    assert found is not None and "all ranks are idle" in found.sentence


def test_a_gang_that_fell_silent_is_warned_of_and_not_hung_if_one_of_its_idle_ranks_issues_collectives() -> None:
    gang = Gang()
    gang.train(30)
    assert (
        gang.seconds(1000, lambda sample: replace(idle(sample), moves=sample.rank == 1 and gang.now % 60 < 5)) is None
    )
    assert isinstance(gang.verdict, Quiet) and "no sign of progress for" in gang.verdict.sentence


def test_an_evaluation_that_says_so_may_even_be_idle() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(1, lambda sample: replace(sample, phase=TrainingPhase.EVAL, slot_writes_count=99))
    assert gang.watch.limit_s() == 3600.0
    assert gang.seconds(1000, idle) is None
    gang.seconds(1, lambda sample: replace(step(sample), phase=TrainingPhase.TRAIN, slot_writes_count=100))
    assert gang.watch.limit_s() == 120.0, "what a long phase took is not learnt for the steps"
    stall = gang.seconds(130, idle)
    assert stall is not None


def into(phase: TrainingPhase) -> Callable[[Sample], Sample]:
    return lambda sample: replace(step(sample), phase=phase)


def evaluations(gang: Gang, count: int, lasts_s: int, phase: TrainingPhase = TrainingPhase.EVAL) -> None:
    for _ in range(count):
        gang.seconds(1, into(phase))
        assert gang.seconds(lasts_s - 1, idle) is None
        gang.seconds(1, into(TrainingPhase.TRAIN))
        gang.train(3)


def test_how_long_an_evaluation_may_be_silent_is_learnt_from_three_of_them() -> None:
    gang = Gang()
    gang.train(20)
    evaluations(gang, 2, 80)
    gang.seconds(1, into(TrainingPhase.EVAL))
    assert gang.watch.limit_s() == 3600.0, "two are not enough"
    gang.seconds(20, idle)
    gang.seconds(1, into(TrainingPhase.TRAIN))
    assert gang.watch.limit_s() == 120.0, "what an evaluation took is not learnt for the steps"
    gang.watch.begin(gang.now)  # kept over attempts
    gang.train(20)
    gang.seconds(1, into(TrainingPhase.EVAL))
    assert gang.watch.limit_s() == 800.0
    stall = gang.seconds(801, idle)
    assert stall is not None and "(limit 800 s)" in stall.sentence


def test_each_long_phase_has_its_own_limit_and_none_is_below_twice_what_was_survived() -> None:
    gang = Gang()
    gang.train(20)
    evaluations(gang, 3, 5)
    evaluations(gang, 3, 2000, TrainingPhase.CHECKPOINT)
    gang.seconds(1, into(TrainingPhase.EVAL))
    assert gang.watch.limit_s() == 600.0, "it may wait for a service"
    gang.seconds(1, into(TrainingPhase.CHECKPOINT))
    assert gang.watch.limit_s() == 4000.0
    gang.seconds(1, lambda sample: replace(step(sample), phase=TrainingPhase.EVAL if sample.rank else sample.phase))
    assert gang.watch.limit_s() == 4000.0, "one rank still saves"


def only(rank: int, phase: TrainingPhase) -> Callable[[Sample], Sample]:
    """One rank enters a phase, and the others make a step."""
    return lambda sample: (into(phase) if sample.rank == rank else step)(sample)


def test_an_evaluation_is_over_once_its_last_rank_has_left_it() -> None:
    gang = Gang()
    gang.train(20)
    for phase in (TrainingPhase.EVAL, TrainingPhase.TRAIN) * 2:
        for rank in range(4):
            gang.seconds(1, only(rank, phase))
    gang.seconds(1, into(TrainingPhase.EVAL))
    assert gang.watch.limit_s() == 3600.0, "eight ranks left two evaluations"


def test_what_ranks_tell_within_an_evaluation_is_not_learnt_for_the_steps() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(1, into(TrainingPhase.EVAL))
    for _ in range(3):
        assert gang.seconds(50, idle) is None
        gang.seconds(1, talk)
    gang.seconds(1, into(TrainingPhase.TRAIN))
    assert gang.watch.limit_s() == 120.0


def test_a_rank_that_ends_in_an_evaluation_is_in_none() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(1, only(3, TrainingPhase.EVAL))
    assert gang.watch.limit_s() == 3600.0
    gang.samples.pop()
    gang.second(step)
    assert gang.watch.limit_s() == 120.0


def test_a_rank_that_is_met_in_an_evaluation_is_in_one() -> None:
    """By a new supervisor."""
    gang = Gang()
    gang.samples = [replace(sample, phase=TrainingPhase.EVAL) for sample in gang.samples]
    gang.second(busy)
    assert gang.watch.limit_s() == 3600.0


def test_a_long_checkpoint_does_not_trip() -> None:
    gang = Gang()
    gang.train(20)
    turn = 0

    def writing(sample: Sample) -> Sample:
        nonlocal turn
        turn += sample.rank == 0
        return replace(idle(sample), state="D" if sample.rank == 0 and turn % 7 else "S")

    assert gang.seconds(1200, writing) is None, "rank 0 goes in and out of the kernel, all others wait"
    gang.watch.note_checkpoint(gang.now)
    assert gang.watch.judge(gang.now) == Quiet(gang.now + 30.0, gang.watch.limit_s())


def test_a_checkpoint_that_appears_is_progress() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(100, idle)
    gang.watch.note_checkpoint(gang.now)
    assert gang.seconds(100, idle) is None


def test_hashing_between_pauses_is_progress() -> None:
    gang = Gang()
    gang.train(20)
    for _ in range(10):
        assert gang.seconds(50, idle) is None
        assert gang.seconds(10, busy) is None


def test_slow_start_ups_do_not_trip() -> None:
    gang = Gang()
    assert gang.seconds(3, talk) is None  # a banner
    assert gang.seconds(1700, idle) is None, "a download"
    assert gang.seconds(4000, busy) is None, "a compilation, all cores busy"
    gang.train(20)
    assert gang.watch.steady


def test_a_banner_of_many_lines_does_not_end_the_start_up() -> None:
    gang = Gang()
    assert gang.seconds(30, talk) is None
    assert not gang.watch.steady and gang.seconds(600, idle) is None


def test_a_script_without_steps_is_steady_once_it_spoke_for_a_while() -> None:
    gang = Gang()
    for _ in range(10):
        assert gang.seconds(14, busy) is None
        assert gang.seconds(1, talk) is None
    assert gang.watch.steady
    stall = gang.seconds(300, idle)
    assert stall is not None and stall.limit_s == 150.0


def test_a_silent_busy_script_is_never_called_hung() -> None:
    gang = Gang()
    assert gang.seconds(10_000, busy) is None


def test_after_a_pause_by_hand_the_limit_is_as_before() -> None:
    gang = Gang()
    gang.train(20)
    assert gang.seconds(100, lambda sample: replace(sample, state="T")) is None
    gang.train(2)
    assert gang.watch.limit_s() == 120.0


# ---- time that does not count ----------------------------------------------------------------------------------------


def test_a_stalled_store_stops_the_clock() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(100, idle)
    gang.watch.suspend(gang.now)
    gang.watch.suspend(gang.now + 1)
    assert gang.seconds(900, idle) is None and gang.verdict == Quiet(NEVER, 0.0)
    gang.watch.resume(gang.now)
    gang.watch.resume(gang.now)
    assert gang.seconds(19, idle) is None
    stall = gang.seconds(1, idle)
    assert stall is not None and stall.stalled_s == 120.0


def test_signs_while_the_clock_stood_count_from_when_it_runs() -> None:
    gang = Gang()
    gang.train(20)
    gang.watch.suspend(gang.now)
    gang.train(400)
    gang.seconds(300, idle)
    gang.watch.resume(gang.now)
    assert gang.seconds(119, idle) is None
    assert gang.seconds(1, idle) is not None
    gang.train(10)
    assert gang.watch.limit_s() == 120.0, "the stalled interval is not learnt"


def test_a_node_that_is_not_heard_keeps_everybody_innocent() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(100, idle)
    verdict = gang.verdict
    for _ in range(100):
        gang.now += 1.0
        gang.watch.observe("n0", gang.samples[:2], gang.now)
        verdict = gang.watch.judge(gang.now)
        assert isinstance(verdict, Quiet)
    assert isinstance(verdict, Quiet)
    silent = "1 node sent no recent heartbeat, so no rank counts as hung"
    assert verdict.sentence == f"no sign of progress for 200 s; {silent}"
    assert verdict.next_at == gang.now + 5.0
    assert gang.seconds(1, idle) is not None, "heard again, and nothing had moved"


def test_ranks_that_ended_are_forgotten() -> None:
    gang = Gang()
    gang.train(20)
    gang.watch.observe("n0", gang.samples[:1], gang.now)
    assert [seen.rank for seen in gang.watch.observations()] == [0, 2, 3]
    gang.watch.observe("n0", (), gang.now)
    gang.watch.observe("n1", (), gang.now)
    gang.watch.observe("n1", (), gang.now)
    assert gang.watch.judge(gang.now + 9999.0) == Quiet(NEVER, 0.0)


def test_the_next_attempt_starts_up_anew_but_keeps_what_was_learnt() -> None:
    gang = Gang()
    gang.train(10, step_s=30)
    gang.watch.begin(gang.now)
    assert gang.watch.limit_s() == 1800.0
    gang.samples = [Sample(rank, step=5) for rank in range(4)]
    gang.train(6)
    assert gang.watch.limit_s() == 300.0


# ---- the user's word -------------------------------------------------------------------------------------------------


def test_zero_turns_it_off() -> None:
    gang = Gang(policy=replace(POLICY, timeout_s=0.0))
    gang.train(20)
    assert gang.seconds(5000, idle) is None and gang.verdict == Quiet(NEVER, 0.0)


@pytest.mark.parametrize("change", [idle, busy])
def test_an_explicit_timeout_is_meant(change: Callable[[Sample], Sample]) -> None:
    gang = Gang(policy=replace(POLICY, timeout_s=20.0))
    gang.train(20)
    stall = gang.seconds(30, change)
    assert stall is not None and stall.limit_s == stall.stalled_s == 20.0


def test_an_explicit_timeout_during_start_up_wants_idleness_too() -> None:
    gang = Gang(policy=replace(POLICY, timeout_s=20.0))
    assert gang.seconds(600, busy) is None, "imports"
    stall = gang.seconds(60, idle)
    assert stall is not None


def test_output_and_long_phases_hold_an_explicit_timeout() -> None:
    gang = Gang(policy=replace(POLICY, timeout_s=20.0))
    gang.train(20)
    for _ in range(10):
        assert gang.seconds(15, idle) is None
        assert gang.seconds(1, talk) is None
    gang.seconds(1, lambda sample: replace(sample, phase=TrainingPhase.CHECKPOINT))
    assert gang.seconds(600, idle) is None


# ---- details ---------------------------------------------------------------------------------------------------------


def test_joining_in_the_middle_sees_what_is_already_there() -> None:
    """A new supervisor meets ranks at step 500 with megabytes of output."""
    watch = HangWatch(POLICY, 0.0)
    watch.observe("n0", [Sample(0, step=500, output_bytes=10**6), Sample(1), Sample(2, output_bytes=5)], 7.0)
    assert watch.judge(7.0) == Quiet(7.0 + 30.0, 1800.0) and not watch.steady


def test_cpu_rate_needs_a_window() -> None:
    gang = Gang(1)
    gang.seconds(int(CPU_WINDOW_S), busy)
    assert gang.watch.observations()[0].cpu_rate == 0.0, "not known yet"
    gang.second(busy)
    assert gang.watch.observations()[0].cpu_rate == pytest.approx(0.9)


def test_a_rate_between_idle_and_busy_is_neither() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(20, idle)
    gang.seconds(60, lambda sample: replace(sample, cpu_s=sample.cpu_s + 0.1))
    quiet = gang.watch.judge(gang.now)
    assert isinstance(quiet, Quiet) and "no sign of progress for 80 s" in quiet.sentence


def test_the_phases_that_may_be_long_are_those_that_a_script_reports() -> None:
    assert {TrainingPhase.EVAL, TrainingPhase.CHECKPOINT} == LONG_PHASES


# ---- what the ranks' samplers say ------------------------------------------------------------------------------------


def stands(sample: Sample, stood_s: float = 12.0) -> Sample:
    """Rank 1 has issued one collective fewer than the others, and does something new; the others wait for it."""
    is_behind = sample.rank == 1
    told = Stand(
        0, not is_behind, stood_s, -1.0 if is_behind else 1.0, 600.0, is_behind, "a.py:3 in f", ((7, 9 - is_behind),)
    )
    return replace(busy(sample), is_sampled=True, stand=told)


def test_a_rank_that_others_wait_for_is_told_in_seconds_and_goes_when_it_moves() -> None:
    gang = Gang()
    gang.train(20)
    assert isinstance(gang.second(stands), Quiet)
    assert gang.verdict == Quiet(
        gang.now + 1.0, 300.0,
        "rank 1 on n0 has stood in a.py:3 in f for 12 s and issued 8 collectives where others issued 9; 3 ranks wait"
        " at step 19; counts as hung if all ranks stand, at 300 s",
    )  # fmt: skip
    gang.train(1)
    assert isinstance(gang.verdict, Quiet) and gang.verdict.sentence != ""
    moved = gang.second(lambda sample: replace(step(sample), stand=None))
    assert isinstance(moved, Quiet) and moved.sentence == ""


def test_a_hang_by_stands_names_the_rank_in_what_was_observed() -> None:
    gang = Gang()
    gang.train(20)
    stall = gang.seconds(300, lambda sample: stands(sample, 300.0))
    assert stall is not None and (stall.stalled_s, stall.limit_s) == (300.0, 300.0)
    assert [(seen.place, bool(seen.sign)) for seen in stall.observations] == [
        ("a.py:3 in f", seen.rank == 1) for seen in stall.observations
    ]


def test_a_rank_that_moves_for_ever_does_not_hide_a_stopped_one_for_ever() -> None:
    gang = Gang()
    gang.train(20)

    def one_stopped(sample: Sample) -> Sample:
        stopped = Stand(4, True, 60.0, -1.0, 0.0, 3, "a.py:3 in f", ())
        is_stopped = sample.rank == 1
        state = "T" if is_stopped else "S"
        return replace(idle(sample), is_sampled=True, state=state, stand=stopped if is_stopped else None)

    assert gang.seconds(100, one_stopped) is None
    assert isinstance(gang.verdict, Quiet) and "rank 1 on n0" in gang.verdict.sentence
    stall = gang.seconds(30, one_stopped)
    assert stall is not None and stall.stalled_s == 120.0
    assert [seen.sign for seen in stall.observations] == ["", "is stopped (state T)", "", ""]


def test_stands_of_nodes_that_are_not_heard_are_no_hang() -> None:
    gang = Gang()
    gang.train(20)
    gang.seconds(1, stands)
    gang.now += 11
    gang.watch.observe("n0", [stands(sample, 400.0) for sample in gang.samples[:2]], gang.now)
    found = gang.watch.judge(gang.now)
    assert isinstance(found, Quiet) and "sent no recent heartbeat" in found.sentence


def test_stands_count_from_when_the_disk_answered() -> None:
    gang = Gang()
    gang.train(20)
    gang.watch.suspend(gang.now)
    assert gang.seconds(40, lambda sample: stands(sample, 400.0)) is None
    gang.watch.resume(gang.now)
    gang.second(lambda sample: stands(sample, 401.0))
    assert gang.verdict.limit_s == 120.0 and isinstance(gang.verdict, Quiet) and not gang.verdict.sentence


def test_ranks_that_a_brief_heartbeat_does_not_name_live_on_as_they_were() -> None:
    gang = Gang()
    gang.train(30)
    for second in range(1, 60):
        gang.samples = [step(gang.samples[0]), *gang.samples[1:]]
        for node in range(2):
            gang.watch.observe(f"n{node}", gang.samples[:1] if node == 0 else [], gang.now + second, is_brief=True)
        assert isinstance(gang.watch.judge(gang.now + second), Quiet)
    assert [(one.rank, one.step) for one in gang.watch.observations()] == [(0, 88), (1, 29), (2, 29), (3, 29)]
    gang.now += 60.0
    found = gang.seconds(200, idle)
    assert found is not None and "all ranks are idle" in found.sentence


def test_a_node_without_ranks_is_not_waited_for_after_a_brief_heartbeat() -> None:
    gang = Gang()
    gang.train(30)
    gang.watch.observe("n9", (), gang.now)
    gang.watch.observe("n9", (), gang.now, is_brief=True)
    assert gang.seconds(200, idle) is not None


def test_all_readings_are_asked_for_long_before_a_limit_and_at_first() -> None:
    gang = Gang()
    assert gang.watch.asks_for_all(gang.now), "nobody has judged yet how long is long"
    gang.train(30)
    assert not gang.watch.asks_for_all(gang.now + POLICY.steady_min_s / 8 - 1.0)
    assert gang.watch.asks_for_all(gang.now + POLICY.steady_min_s / 8)
    gang.seconds(20, idle)
    assert gang.watch.asks_for_all(gang.now)
    gang.second(step)
    assert not gang.watch.asks_for_all(gang.now)


def test_a_watch_that_is_off_asks_for_no_readings() -> None:
    gang = Gang(policy=replace(POLICY, timeout_s=0.0))
    assert not gang.watch.asks_for_all(gang.now + 1e6)
    gang.seconds(100, idle)
    assert not gang.watch.asks_for_all(gang.now)
