"""A failure that came before, a node that fell first before, and stalls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import (
    Cause,
    Evidence,
    Failure,
    Hang,
    NodeFinding,
    Placement,
    RankExit,
    RankObservation,
    RankStack,
    Sighting,
)
from gangrun.core.nodes import standing
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame
from tests.core.blame_cases import TWO, error, fell, judge

# ---- once more -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "step", "nodes_count", "final"),
    [
        (Sighting("sig-a", 2, 120, ("n1",)), 120, 2, True),  # same step
        (Sighting("sig-a", 2, 90, ("n2",)), 120, 2, True),  # another node
        (Sighting("sig-a", 2, 90, ("n1",)), 120, 2, False),  # same node, and it got farther
        (Sighting("sig-a", 2, 130, ("n1",)), 120, 2, True),  # same node, no farther
        (Sighting("sig-a", 2, 90, ()), 120, 2, False),  # everywhere then, but it got farther
        (Sighting("sig-a", 2, 90, ("n1",)), 120, 1, False),  # one box, but it got farther
        (Sighting("sig-a", 2, 130, ("n1",)), 120, 1, True),  # one box, no farther
        (Sighting("sig-a", 2, -1, ("n1",)), -1, 1, True),  # one box, no steps reported
        (Sighting("sig-a", 2, -1, ("n1",)), 120, 1, True),
        (Sighting("sig-a", 2, 130, ()), 120, 2, True),  # it was everywhere then
        (Sighting("sig-a", 3, 120, ("n1",)), 120, 2, False),  # this very attempt
        (Sighting("sig-b", 2, 120, ("n1",)), 120, 2, False),  # another failure
    ],
)
def test_same_traceback_again(before: Sighting, step: int, nodes_count: int, final: bool) -> None:
    verdict = judge(Evidence(exits=(fell(report=error()),)), step=step, nodes_count=nodes_count, sightings=(before,))
    assert verdict.final is final
    if final:
        assert (verdict.cause, verdict.failure, verdict.blamed) == (Cause.SAME_AGAIN, Failure.SCRIPT, ())
        assert "as in attempt 2" in verdict.sentence and "f() | ValueError: bad batch 17" in verdict.sentence


def test_same_again_says_where() -> None:
    def said(before: Sighting, nodes_count: int = 2, step: int = 120) -> str:
        evidence = Evidence(exits=(fell(report=error()),))
        return judge(evidence, sightings=(before,), nodes_count=nodes_count, step=step).sentence

    assert "at the same step (120)" in said(Sighting("sig-a", 2, 120, ("n1",)))
    assert "on another node (n2 before, n1 now)" in said(Sighting("sig-a", 2, 90, ("n2",)))
    assert "without any progress between" in said(Sighting("sig-a", 2, 130, ("n1",)), nodes_count=1)


@pytest.mark.parametrize(
    ("exit_", "step", "before_step", "final"),
    [
        (fell(code=3), 120, 120, True),
        (fell(code=3), 120, 119, False),
        (fell(code=3), -1, -1, False),  # an exit code alone, at no known place, may be anything
        (fell(signal=11), 120, 120, True),
        (fell(signal=9), 120, 120, False),  # from outside: never the code's
        (fell(signal=9, oom=True), 120, 120, True),
        (fell(code=0), 120, 120, True),
    ],
)
def test_weak_signatures_need_the_same_known_step(exit_: RankExit, step: int, before_step: int, final: bool) -> None:
    first = judge(Evidence(exits=(exit_,)), attempt=0, step=before_step)
    sightings = (Sighting(first.signature, 0, before_step, first.suspects),) if first.signature else ()
    assert judge(Evidence(exits=(exit_,)), attempt=1, step=step, sightings=sightings).final is final


def test_a_report_without_signature_gets_one_from_its_words() -> None:
    verdict = judge(Evidence(exits=(fell(report=error("batch 17 of 30", sig="")),)))
    assert verdict.signature == "error: ValueError: batch N of N"
    silent = error(sig="")
    again = judge(
        Evidence(exits=(fell(report=replace(silent, traceback=" \n")),)),
        sightings=(Sighting("error: ValueError: bad batch N", 1, 120, ()),),
    )
    assert again.final and again.sentence.endswith("another try would fail too")


def test_first_to_fall_twice_goes_though_it_looked_innocent() -> None:
    evidence = Evidence(exits=(fell(signal=9),))
    verdict = judge(evidence, suspicion={"n1": 1, "n2": 4}, nodes_count=3)
    assert (verdict.blamed, blame.on_suspicion_only(verdict)) == (("n1",), ("n1",))
    assert verdict.sentence.endswith("n1 was suspected for the 2nd time, so it is blamed")
    assert judge(evidence, suspicion={"n1": 11}, nodes_count=3).sentence.endswith("for the 12th time, so it is blamed")
    assert judge(evidence, suspicion={"n2": 4}, nodes_count=3).blamed == ()
    assert judge(evidence, suspicion={"n1": 4}, nodes_count=2).blamed == (), "no spare: it stays"
    assert judge(evidence, suspicion={"n1": 4}, nodes_count=2, policy=Policy(can_requeue=True)).blamed == ("n1",)
    assert judge(evidence, suspicion={"n1": 4}, nodes_count=2, placement=None).blamed == ("n1",)
    assert judge(evidence, suspicion={"n1": 4}, nodes_count=1).blamed == (), "there is no other node"
    hard = NodeFinding("n1", "xid", True, "XID 79", 9.0)
    assert blame.on_suspicion_only(judge(Evidence(findings=(hard,)), suspicion={"n1": 1})) == ()


def test_suspicion_grows_with_suspects_and_ends_with_blame() -> None:
    first = judge(Evidence(exits=(fell(signal=9),)))
    once = standing.suspect({"n2": 1}, first)
    assert once == {"n2": 1, "n1": 1}
    assert standing.suspect(once, judge(Evidence(exits=(fell(signal=9),)), suspicion=dict(once), nodes_count=3)) == {
        "n2": 1,
        "n1": 2,
    }
    assert standing.suspect(once, judge(Evidence(silent={"n1": 1.0}))) == {"n2": 1}


# ---- hangs -----------------------------------------------------------------------------------------------------------


def seen(*ranks: tuple[str, str, int]) -> tuple[RankObservation, ...]:
    return tuple(RankObservation(i, node, state, step, 0.0) for i, (node, state, step) in enumerate(ranks))


def stacks(*frames: str) -> tuple[RankStack, ...]:
    return tuple(RankStack(i, f"n{i // 2 + 1}", frame, f"/x/{i}") for i, frame in enumerate(frames))


WAIT = "all_reduce (torch/distributed/distributed_c10d.py:2501)"
CALM = seen(("n1", "S", 7), ("n1", "S", 7), ("n2", "S", 7), ("n2", "S", 7))


@pytest.mark.parametrize(
    ("observations", "where", "suspects", "words"),
    [
        (seen(("n1", "S", 7), ("n2", "T", 7)), stacks(WAIT, "x"), ("n2",), "rank 1 on n2 is stopped (state T"),
        (seen(("n1", "t", 7), ("n2", "T", 7)), (), (), "2 ranks (0 on n1, 1 on n2) are stopped"),
        (seen(("n1", "D", 7), ("n1", "S", 7)), (), ("n1",), "rank 0 on n1 is stuck in the kernel (state D"),
        (
            CALM,
            stacks(WAIT, WAIT, "load (data.py:9)", WAIT),
            ("n2",),
            "rank 2 on n2 is in load (data.py:9) while the others",
        ),
        (CALM, stacks(WAIT, "f (a.py:1)", "f (a.py:1)", WAIT), (), "2 ranks (1 on n1, 2 on n2) are in f (a.py:1)"),
        (CALM, stacks(WAIT, WAIT, WAIT, WAIT), (), f"all ranks stand in {WAIT}"),
        (CALM, stacks("a", "b", "c", "d"), (), "no rank differs from the others"),
        (CALM, stacks("", "", "", ""), (), "no rank differs from the others"),
        (
            seen(("n1", "S", 7), ("n2", "S", 6), ("n3", "S", 7)),
            (),
            ("n2",),
            "rank 1 on n2 is at step 6 while the others reached 7",
        ),
        (seen(("n1", "S", 6), ("n2", "S", 6), ("n3", "S", 7)), (), (), "no rank differs"),
        (seen(("n1", "S", -1), ("n2", "S", 6)), (), (), "no rank differs"),
        ((), (), (), "no rank differs"),
    ],
)
def test_hang(
    observations: tuple[RankObservation, ...], where: tuple[RankStack, ...], suspects: tuple[str, ...], words: str
) -> None:
    placement = Placement(TWO.seats, len(observations) or 4)
    verdict = judge(Evidence(hang=Hang(130.0, 120.0, observations, where)), placement=placement)
    assert (verdict.cause, verdict.blamed, verdict.suspects) == (Cause.HANG, (), suspects)
    assert verdict.sentence.startswith("no progress for 130 s (limit 120 s) at step 120: ")
    assert words in verdict.sentence


THREE_OF_4 = "3 of 4 ranks (rank 0, rank 2, rank 3)"


@pytest.mark.parametrize(
    ("left", "where", "words"),
    [
        (
            CALM[1:2],
            stacks("", "sleep (train.py:3)")[1:],
            f"after {THREE_OF_4} had ended with exit code 0: rank 1 on n1 is in sleep (train.py:3)",
        ),
        (
            CALM[1:2],
            (),
            f"after {THREE_OF_4} had ended with exit code 0: rank 1 on n1 is all that is left",
        ),
        (
            CALM[:2],
            stacks(WAIT, WAIT),
            f"after 2 of 4 ranks (rank 2, rank 3) had ended with exit code 0: all that are left stand in {WAIT}",
        ),
    ],
)
def test_a_hang_of_those_that_are_left_does_not_speak_of_all_nor_of_the_step_of_the_others(
    left: tuple[RankObservation, ...], where: tuple[RankStack, ...], words: str
) -> None:
    verdict = judge(Evidence(hang=Hang(130.0, 120.0, left, where)))
    assert verdict.sentence == f"no progress for 130 s (limit 120 s) {words}"
    assert verdict.suspects == ()


def test_hang_with_two_ranks_names_whoever_waits_for_nobody() -> None:
    where = (RankStack(0, "n1", WAIT, ""), RankStack(1, "n2", "sleep (train.py:3)", ""))
    verdict = judge(Evidence(hang=Hang(130.0, 120.0, (), where)), step=-1)
    assert verdict.suspects == ("n2",) and verdict.sentence.startswith("no progress for 130 s (limit 120 s): rank 1")


def test_many_ranks_stuck_in_the_kernel_are_the_storages() -> None:
    verdict = judge(Evidence(hang=Hang(130.0, 120.0, seen(("n1", "D", 7), ("n2", "D", 7)))))
    assert (verdict.failure, verdict.suspects) == (Failure.STORAGE, ())


def test_same_deadlock_at_the_same_step_is_the_codes() -> None:
    hang = Evidence(hang=Hang(130.0, 120.0, CALM, stacks(WAIT, WAIT, "odd (a.py:3)", WAIT)))
    first = judge(hang, attempt=0)
    sightings = (Sighting(first.signature, 0, 120, first.suspects),)
    assert judge(hang, attempt=1, sightings=sightings).final
    assert not judge(hang, attempt=1, step=121, sightings=sightings).final
    stopped = Evidence(hang=Hang(130.0, 120.0, seen(("n1", "T", 7))))
    assert judge(stopped).signature == "", "whoever stopped a rank twice has not shown that the code is wrong"


@pytest.mark.parametrize(
    ("before", "nodes_count", "final"),
    [
        (Sighting("device: sig-a", 2, 120, ("n1",)), 2, False),  # the same node of several: perhaps its GPU
        (Sighting("device: sig-a", 2, 120, ("n2",)), 2, True),  # two sick GPUs with one traceback: the code
        (Sighting("device: sig-a", 2, 120, ("n1",)), 1, True),
    ],
)
def test_what_a_sick_gpu_says_is_not_the_codes_at_once(before: Sighting, nodes_count: int, final: bool) -> None:
    report = error("CUDA error: an illegal memory access was encountered", kind="RuntimeError")
    verdict = judge(Evidence(exits=(fell(report=report),)), sightings=(before,), nodes_count=nodes_count)
    assert verdict.final is final and verdict.signature == "device: sig-a"
