"""A recovery's seconds by part, from the records of simulated worlds: they sum to the whole, each in its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.events import NodeHeard, NodeSilent, ProgressMarked
from gangrun.core.model import Rung, Savers
from gangrun.display.status_page import RUNG_WORDS
from gangrun.runs.recoveries import Part, Recovery, recoveries_of
from gangrun.runs.snapshot import read
from gangrun.runs.status import recovery_statuses, status_of, with_recoveries
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.sim.sweep import failing
from gangrun.wire.record import Record
from tests.command_line import Call
from tests.runs.builder import BEGAN, ERROR, Builder
from tests.runs.stories import STEP_20, cancelled, fall, restarted

AT_S = 40.0


def sums_hold(records: list[Record]) -> tuple[Recovery, ...]:
    found, before = recoveries_of(records), 0
    for one in found:
        assert sum(one.parts_ms.values()) == one.whole_ms, one
        assert min(one.parts_ms.values(), default=1) > 0, one
        assert before <= one.began_ms <= one.until_ms, (before, one)
        assert one.lost_gpu_s is None or one.lost_gpu_s >= one.whole_ms / 1000, one
        before = one.until_ms
    assert all(one.ended_ms is not None for one in found[:-1])
    return found


def test_parts_sum_to_the_whole_whatever_fails() -> None:
    seen: set[Part] = set()
    rungs: set[Rung | None] = set()
    for seed in range(40):
        world = failing(seed)
        world.run()
        for one in sums_hold(world.checker.records):
            seen, rungs = seen | one.parts_ms.keys(), rungs | {one.rung}
    assert seen >= {Part.NOTICED, Part.STOPPED, Part.WAITED, Part.CHECKED, Part.STARTED, Part.FIRST_STEP}
    assert rungs >= {Rung.RESTART, Rung.SWAP, Rung.REQUEUE, Rung.END}


def test_parts_sum_to_the_whole_whatever_nodes_and_networks_do() -> None:
    for seed in range(12):
        plan = FaultPlan.random(seed, 4, 4, 60.0)
        setup = Setup.of(4, script=Script(steps_count=120), requeue=True)
        world = World(setup, plan, seed)
        world.run()
        records = world.checker.records
        whole = sums_hold(records)
        for count in range(0, len(records), 23):  # a reader may come at any time
            told = [one for one in sums_hold(records[:count]) if one.next_attempt is not None]
            assert [one.began_ms for one in told] == [one.began_ms for one in whole[: len(told)]]


@pytest.mark.parametrize(
    ("kind", "savers", "rung", "parts"),
    [
        (Kind.KILL_NODE, None, Rung.SWAP, {Part.NOTICED: 2.0, Part.FENCED: 0.0}),
        (Kind.KILL_NODE, Savers.ALL, Rung.SWAP, {Part.NOTICED: 2.0, Part.FENCED: 30.0}),
        (Kind.KILL_RANK, None, Rung.RESTART, {Part.STOPPED: 0.6, Part.FENCED: 0.0}),
    ],
)
def test_each_second_is_where_it_belongs(
    kind: Kind, savers: Savers | None, rung: Rung, parts: dict[Part, float]
) -> None:
    usual = Setup.of(4, script=Script(steps_count=150, victims_after_s=300.0))
    setup = replace(usual, spares_count=1, pool_count=5, policy=replace(usual.policy, saves_with=savers))
    world = World(setup, FaultPlan().fail_at(AT_S, kind, node=1, rank=1), 3)
    world.run()
    (one,) = sums_hold(world.checker.records)
    assert one.rung is rung and (one.attempt, one.next_attempt) == (0, 1)
    for part, most_s in parts.items():
        assert most_s * 0.6 <= one.parts_ms.get(part, 0) / 1000 <= most_s * 1.1, one
    began_s = one.began_ms / 1000 - world.began_at
    assert AT_S - 1.5 <= began_s <= AT_S + 0.1
    first = next(r for r in world.checker.records if r.kind == "FirstStepSeen" and r.event["attempt"] == 1)
    assert one.ended_ms == round(1000 * first.at)


def test_steps_and_gpu_seconds_that_a_failure_cost(runs) -> None:
    """Steps 0 to 31 took 90 s; from step 20 on they are trained again, by all four ranks."""
    one = recoveries_of(read(restarted(runs).paths, timeline=True).records)[0]
    assert (one.rung, one.lost_steps_count) == (Rung.RESTART, 11)
    trained_s = (one.began_ms / 1000) - (one.until_ms / 1000 - one.whole_ms / 1000 - 91.0)
    assert one.lost_gpu_s == pytest.approx(4 * (one.whole_ms / 1000 + trained_s * 11 / 31), rel=0.02)


def test_a_try_that_never_stepped_belongs_to_the_recovery_before_it(runs) -> None:
    story = restarted(runs, run="20261118-110640-tries")
    story.exit(2, error=ERROR).stopped()  # after its first step: a recovery of its own
    assert [one.attempt for one in recoveries_of(read(story.paths, timeline=True).records)] == [0, 1]


def test_what_was_only_silent_for_a_while_is_no_failure(runs) -> None:
    story = Builder(runs).supervisor().up()
    story.on(NodeSilent("n1", story.now - 5), 5).on(NodeHeard("n1"), 2).on(ProgressMarked(0, 31), 30)
    fall(story).again(STEP_20)
    (one,) = recoveries_of(read(story.paths, timeline=True).records)
    assert one.parts_ms.get(Part.NOTICED, 0) <= 1000


def test_a_cancelled_run_recovered_from_nothing(runs) -> None:
    assert recoveries_of(read(cancelled(runs).paths, timeline=True).records) == ()


def test_every_rung_has_its_words() -> None:
    assert RUNG_WORDS.keys() == {rung.value for rung in Rung}


def test_status_and_explain_show_it(runs, gangrun: Call) -> None:
    story = restarted(runs)
    status = with_recoveries(status_of(read(story.paths), BEGAN), read(story.paths))
    assert status.recoveries == recovery_statuses(read(story.paths, timeline=True))
    shown = gangrun("status", story.run, "--json").json["recoveries"]
    assert gangrun("explain", story.run, "--json").json["recoveries"] == shown
    assert sum(shown[0]["parts"].values()) == pytest.approx(shown[0]["whole_s"])
    for command in ("status", "explain"):
        assert "attempt 0 → 1  restart in place" in gangrun(command, story.run).out
        assert "11 steps and" in gangrun(command, story.run).out
