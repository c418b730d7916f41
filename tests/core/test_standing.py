"""Ranks that stand: what one node's samplers say, and what all of them say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from gangrun.core.policy import HangPolicy
from gangrun.core.recovery import standing
from gangrun.core.recovery.standing import (
    GangScene,
    GangStand,
    Look,
    NodeStands,
    Stand,
    StandKind,
    judge,
    sentence,
    without_repeated_places,
)

# ---- one node --------------------------------------------------------------------------------------------------------

START = 1000.0
MOVES = Look(
    at=START, has_exact=True, key=1, exact_since=0.0, sampled_since=START, circling_since=START, counted_at=START,
    timeout_s=600.0, counts=((7, 0),), place="", state="S", cpu_s=0.0, io_bytes=0, told_count=0,
)  # fmt: skip


class Node:
    """One rank, looked at once a second."""

    def __init__(self) -> None:
        self.stands, self.now, self.look = NodeStands(), START, MOVES
        self.stand: Stand | None = None

    def second(self, **change: object) -> Stand | None:
        """A second in which the sampler lives, unless ``at`` says otherwise."""
        self.now += 1.0
        self.look = replace(self.look, **{"at": self.now, **change})  # type: ignore[arg-type]
        self.stand = self.stands.look({0: self.look}, self.now).get(0)
        return self.stand

    def step(self, key: int = 1) -> None:
        """A step: other places, another collective."""
        count = self.look.counts[0][1] + 1
        self.second(key=key, exact_since=0.0, counts=((7, count),), counted_at=self.now + 1, cpu_s=self.look.cpu_s + 1)

    def train(self, steps_count: int = 20) -> None:
        """Steps that show places 1, 2 and 3 in turn."""
        for number in range(steps_count):
            self.step(1 + number % 3)
            assert self.stand is None

    def stays(self, seconds: int, key: int, cpu: float = 0.9, **change: object) -> Stand | None:
        """It enters a call and does not leave it."""
        since = self.now + 0.5
        for _ in range(seconds):
            self.second(key=key, exact_since=since, cpu_s=self.look.cpu_s + cpu, **change)
        return self.stand


@pytest.fixture
def node() -> Node:
    node = Node()
    node.train()
    return node


def test_a_rank_that_moves_says_nothing_and_one_that_stands_does_after_five_seconds(node: Node) -> None:
    assert node.stays(5, 9) is None
    stand = node.stays(1, 9)
    assert stand is None, "another call: its time counts anew"
    stand = node.stays(12, 8, place="train.py:3 in f")
    assert stand == Stand(StandKind.PLACE, False, 11.5, -1.0, 600.0, 8, "train.py:3 in f", ((7, 20),))


def test_a_place_is_known_once_it_was_left_in_three_steps_with_the_longest_stay(node: Node) -> None:
    for _ in range(3):
        node.stays(8, 9)
        node.step()
    stand = node.stays(7, 9)
    assert stand is not None and stand.longest_s == 7.5
    node.stands.begin()
    node.look = replace(node.look, key=5)
    node.second(exact_since=0.0)
    stand = node.stays(7, 9)
    assert stand is not None and stand.longest_s == 7.5, "what was learnt outlives an attempt"


def test_three_visits_in_one_step_do_not_make_a_place_known(node: Node) -> None:
    for _ in range(3):
        node.stays(8, 9)
        node.second(key=4, exact_since=0.0)
    stand = node.stays(7, 9)
    assert stand is not None and stand.longest_s == -1.0


def test_a_hang_does_not_teach_its_own_place(node: Node) -> None:
    node.second(key=9, exact_since=0.0)  # seen there before it had surely stopped to execute Python
    stand = node.stays(200, 9)
    assert stand is not None and stand.longest_s == -1.0 and stand.stood_s == 199.5


def test_time_in_which_a_rank_waits_for_a_cpu_does_not_count_up_to_half_of_all(node: Node) -> None:
    node.look = replace(node.look, scheduled=(0.0, 300.0))
    assert node.stays(60, 9, scheduled=(0.0, 300.0)) is not None
    crowded = node.second(scheduled=(0.0, 315.0))
    assert crowded is not None and crowded.stood_s == 60.5 - 15
    crowded = node.second(scheduled=(0.0, 400.0))
    assert crowded is not None and crowded.stood_s == 61.5 / 2, "a call that never returns is found all the same"
    again = node.stays(30, 8, scheduled=(0.0, 400.0))
    assert again is not None and again.stood_s == 29.5, "what it waited for before this stay is over"
    again = node.second(scheduled=(0.0, 0.0))
    assert again is not None and again.stood_s == 30.5, "it cannot be read any more"


def test_a_wait_for_a_cpu_that_still_lasts_does_not_count_either(node: Node) -> None:
    """The kernel counts it once it is over."""
    for second in range(10):
        node.stays(1, 9, scheduled=(float(second), 5.0), state="R")
    node.look = replace(node.look, scheduled=(10.0, 5.0), exact_since=node.now)
    for _ in range(30):
        node.second()
    assert node.stand is not None and node.stand.stood_s == 15, "it has not run: half of all"
    stand = node.second(scheduled=(40.0, 5.0), state="S")
    assert stand is not None and stand.stood_s == 31, "it ran all the time, and was looked at in between"
    for _ in range(5):
        stand = node.second(scheduled=(0.0, 0.0), state="R")
    assert stand is not None and stand.stood_s == 36, "this kernel counts neither"


def test_collectives_that_another_thread_issues_are_motion(node: Node) -> None:
    stand = node.stays(30, 9)
    assert stand is not None
    node.second(counts=((7, 99),), counted_at=node.now + 1)
    assert node.stand is None
    for _ in range(30):  # trains in another thread, the main one waits for it
        node.second(counts=((7, node.look.counts[0][1] + 1),), counted_at=node.now + 1)
        assert node.stand is None
    stand = node.stays(0, 9)
    for _ in range(8):
        stand = node.second()
    assert stand is not None and stand.longest_s == -1.0 and stand.stood_s == 8.0


def test_a_loop_circles_while_no_collective_is_issued(node: Node) -> None:
    since = node.now
    for number in range(9):
        node.second(key=50 + number % 2, exact_since=0.0, circling_since=since)
    assert node.stand is not None and node.stand.kind == StandKind.CIRCLING and node.stand.stood_s == 9.0
    node.step()
    assert node.stand is None


def test_without_collectives_only_what_is_exact_counts() -> None:
    node = Node()
    for number in range(30):
        node.second(key=50 + number % 2, exact_since=0.0, counts=(), counted_at=0.0)
        assert node.stand is None
    stand = node.stays(8, 9, counts=(), counted_at=0.0)
    assert stand is not None and stand.stood_s == 7.5
    node.second(told_count=1)
    assert node.stand is None, "it reported or printed something"


def test_without_collectives_time_tells_steps_apart() -> None:
    node = Node()
    for _ in range(4):
        node.stays(8, 9, counts=(), counted_at=0.0)
        node.second(key=4, exact_since=0.0)
    stand = node.stays(8, 9)
    assert stand is not None and stand.longest_s == 7.5


def test_without_an_exact_sign_the_same_place_at_each_look_counts_if_the_rank_is_idle_or_has_collectives() -> None:
    node = Node()
    for _ in range(20):
        node.second(has_exact=False, sampled_since=START, counts=(), counted_at=0.0, cpu_s=node.look.cpu_s + 0.9)
        assert node.stand is None
    for _ in range(12):
        node.second()
    assert node.stand is not None and node.stand.idle
    node.second(counts=((7, 3),), counted_at=START, cpu_s=node.look.cpu_s + 50)
    assert node.stand is not None


@pytest.mark.parametrize(
    ("cpu", "io", "kind"),
    [(0.0, 0, StandKind.FROZEN), (0.9, 0, StandKind.HOLDS_GIL), (0.0, 2_000_000, StandKind.HOLDS_GIL)],
)
def test_a_sampler_that_does_not_look_is_frozen_or_kept_from_it(
    node: Node, cpu: float, io: int, kind: StandKind
) -> None:
    at = node.now
    for _ in range(14):
        node.second(at=at, place="a.py:1 in f", cpu_s=node.look.cpu_s + cpu, io_bytes=node.look.io_bytes + io)
    assert node.stand is not None and (node.stand.kind, node.stand.stood_s) == (kind, 14.0)
    assert node.stand.place == "", "where it was at an earlier look is not where it is"


def test_stopped_counts_from_when_it_was_seen_and_a_debugger_never(node: Node) -> None:
    for _ in range(7):
        node.second(state="T", at=START)
    assert node.stand is not None and (node.stand.kind, node.stand.stood_s) == (StandKind.STOPPED, 6.0)
    for _ in range(60):
        assert node.second(state="t", at=START) is None


def test_nothing_counts_while_the_machine_slept(node: Node) -> None:
    assert node.stays(20, 9) is not None
    node.now += 100
    assert node.second() is None
    for _ in range(6):
        node.second()
    assert node.stand is not None and node.stand.stood_s == 6.0


def test_places_are_forgotten_before_they_fill_the_memory(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "PLACES_MAX_COUNT", 4)
    for _ in range(3):
        node.stays(7, 9)
        node.step()
    for key in range(100, 110):
        node.step(key)
    stand = node.stays(7, 9)
    assert stand is not None and stand.longest_s == -1.0


# ---- all nodes -------------------------------------------------------------------------------------------------------

POLICY = HangPolicy()
SCENE = GangScene(
    POLICY, is_steady=True, some_ended=False, long_phase_s=0.0, usual_limit_s=120.0, counts_from_s=10_000.0
)
WAITS = "train.py:9 in step > distributed_c10d.py:3252 in all_reduce"


@dataclass(frozen=True)
class Sample:
    rank: int
    stand: Stand | None = None
    is_sampled: bool = True


def stand(
    stood_s: float, count: int = 500, *, kind: StandKind = StandKind.PLACE, idle: bool = False, longest_s: float = -1.0,
    key: int = 0, place: str = "", timeout_s: float = 600.0, counts: tuple[tuple[int, int], ...] | None = None,
) -> Stand:  # fmt: skip
    both = ((7, count),) if counts is None else counts
    return Stand(kind, idle, stood_s, longest_s, timeout_s, key or 1000 + count, place, both)


def waiter(stood_s: float, count: int = 500) -> Stand:
    """At a known place, in a collective."""
    return stand(stood_s, count, longest_s=1.0, key=1, place=WAITS, idle=True)


def ask(*stands: Stand | None, scene: GangScene = SCENE) -> GangStand | None:
    return judge([Sample(rank, one) for rank, one in enumerate(stands)], scene)


def verdict(found: GangStand | None) -> str:
    return "-" if found is None else "hung" if found.hung else "suspected"


CASES: Mapping[str, tuple[str, tuple[Stand | None, ...], tuple[int, ...]]] = {
    "all move": ("-", (None, None), ()),
    "not long yet": ("-", (waiter(9), stand(9, 499)), ()),
    "one waits for another that idles at a new place": ("suspected", (waiter(12), stand(12, 499, idle=True)), (1,)),
    "for a minute": ("hung", (waiter(61), stand(61, 499, idle=True)), (1,)),
    "one works at a new place": ("suspected", (waiter(200), stand(200, 499)), (1,)),
    "for half of the script's own limit": ("hung", (waiter(301), stand(301, 499)), (1,)),
    "and the script has no limit": ("suspected", (waiter(3000), stand(3000, 499, timeout_s=0)), (1,)),
    "in a loop": ("hung", (waiter(301), stand(301, 499, kind=StandKind.CIRCLING)), (1,)),
    "known place": ("suspected", (waiter(29), stand(29, 499, longest_s=2.0)), (1,)),
    "known place for 30 s": ("hung", (waiter(30), stand(30, 499, longest_s=2.0)), (1,)),
    "five times the longest stay there": ("suspected", (waiter(99), stand(99, 499, longest_s=20.0)), (1,)),
    "and over it": ("hung", (waiter(101), stand(101, 499, longest_s=20.0)), (1,)),
    "one rank on any node knows the place": (
        "hung", (stand(31, key=5), stand(31, key=5, longest_s=1.0), stand(31, key=5)), ()),
    "one moves": ("suspected", (waiter(40), waiter(40), None), (2,)),
    "half of them move": ("suspected", (waiter(40), waiter(40), None, None), (2, 3)),
    "most of them move": ("suspected", (waiter(40), None, None), ()),
    "one is stopped": ("suspected", (waiter(6), stand(6, kind=StandKind.STOPPED)), (1,)),
    "for ten seconds": ("hung", (waiter(10), stand(10, kind=StandKind.STOPPED)), (1,)),
    "while others train on": ("suspected", (None, stand(60, kind=StandKind.STOPPED)), (1,)),
    "somebody stopped all": ("suspected", (stand(60, kind=StandKind.STOPPED),) * 2, ()),
    "and leaves it so": ("hung", (stand(121, kind=StandKind.STOPPED),) * 2, ()),
    "frozen": ("hung", (waiter(31), stand(31, kind=StandKind.FROZEN)), (1,)),
    "frozen for less": ("suspected", (waiter(29), stand(29, 499, kind=StandKind.FROZEN)), (1,)),
    "holds the GIL": ("suspected", (waiter(299), stand(299, 499, kind=StandKind.HOLDS_GIL)), (1,)),
    "holds it for half of the limit": ("hung", (waiter(300), stand(300, 499, kind=StandKind.HOLDS_GIL)), (1,)),
    "two wait for each other": (
        "hung", (stand(10, counts=((7, 5), (8, 6))), stand(10, counts=((7, 6), (8, 5)))), ()),
    "for less than ten seconds": (
        "-", (stand(9, counts=((7, 5), (8, 6))), stand(9, counts=((7, 6), (8, 5)))), ()),
    "one of four is in another group": (
        "hung",
        (*[stand(10, counts=((7, 6), (8, 5)))] * 3, stand(10, counts=((7, 5), (8, 6)))), (3,)),
    "counts that are too far apart say nothing": ("suspected", (waiter(20, 5000), stand(20, 1)), ()),
    "several are behind": ("suspected", (waiter(12), waiter(12), stand(12, 499), stand(12, 499)), (2, 3)),
    "most are behind": ("suspected", (waiter(12, 501), *[stand(12, 499)] * 3), ()),
    "all in the same call, equal counts": ("hung", (waiter(31), waiter(31), waiter(31)), ()),
    "equal counts, one does not wait": (
        "hung", (waiter(61), waiter(61), stand(61, idle=True, place="train.py:4 in load")), (2,)),
    "equal counts, one waits elsewhere": (
        "hung", (*[waiter(61)] * 3, stand(61, idle=True, place="x.py:4 in barrier", key=4)), (3,)),
    "all work at a new place, nobody waits": ("-", (stand(3000, place="eval.py:1 in f"),) * 2, ()),
    "all idle at a new place": ("hung", (stand(60, idle=True),) * 2, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_gang_is_judged(name: str) -> None:
    expected, stands, named = CASES[name]
    found = ask(*stands)
    assert verdict(found) == expected
    assert (found.named if found is not None else ()) == named


def test_a_rank_without_a_sampler_is_never_hung_by_this_rule() -> None:
    found = judge([Sample(0, waiter(600)), Sample(1, None, is_sampled=False)], SCENE)
    assert found is not None and not found.hung and found.named == ()


def test_before_it_is_steady_only_what_cannot_heal_counts() -> None:
    early = replace(SCENE, is_steady=False)
    assert verdict(ask(waiter(600, 20), stand(600, 19), scene=early)) == "suspected"
    assert verdict(ask(waiter(1800, 20), stand(1800, 19), scene=early)) == "hung", "as long as a start may take"
    assert verdict(ask(waiter(600, 120), stand(600, 119), scene=early)) == "hung", "100 collectives are a start's end"
    assert verdict(ask(waiter(11, 20), stand(11, 19, kind=StandKind.STOPPED), scene=early)) == "hung"


def test_what_the_user_says_is_the_limit_of_all_but_a_stopped_rank() -> None:
    def with_limit(limit_s: float) -> GangScene:
        return replace(SCENE, policy=replace(POLICY, timeout_s=limit_s))

    assert verdict(ask(waiter(700), stand(700, 499), scene=with_limit(1200))) == "suspected"
    assert verdict(ask(waiter(8), stand(8, 499), scene=with_limit(8))) == "hung"
    assert verdict(ask(waiter(11), stand(11, kind=StandKind.STOPPED), scene=with_limit(1200))) == "hung"
    assert ask(waiter(11), stand(11, kind=StandKind.STOPPED), scene=with_limit(0)) is None


def test_after_a_rank_has_ended_whoever_waits_for_others_waits_in_vain() -> None:
    ended = replace(SCENE, some_ended=True)
    assert verdict(ask(waiter(10), waiter(10), scene=ended)) == "hung"
    assert ask(stand(59, idle=True, place="upload.py:3 in put"), scene=ended) is None


def test_an_evaluation_that_the_script_declares_may_take_long_at_new_places() -> None:
    declared = replace(SCENE, long_phase_s=3600.0)
    assert verdict(ask(waiter(601), stand(601, 499), scene=declared)) == "suspected"
    assert verdict(ask(waiter(3600), stand(3600, 499), scene=declared)) == "hung"


def test_in_an_evaluation_that_is_known_an_idle_rank_has_what_was_learnt_and_a_busy_one_more() -> None:
    known = replace(SCENE, long_phase_s=240.0)
    assert verdict(ask(waiter(239), stand(239, 499, idle=True), scene=known)) == "suspected"
    assert verdict(ask(waiter(240), stand(240, 499, idle=True), scene=known)) == "hung"
    assert verdict(ask(waiter(3599), stand(3599, 499), scene=known)) == "suspected"


def test_the_time_that_is_told_is_that_of_the_rank_whose_limit_decides() -> None:
    """On a crowded node waits for a CPU do not count, and the rank that waits for another one stood for less."""
    found = ask(waiter(50), stand(62, 499, idle=True), waiter(70, 499))
    assert found is not None and found.hung
    assert (found.stood_s, found.decided_s, found.limit_s) == (50, 62, 60)
    crossed = ask(stand(11, counts=((1, 5), (2, 6))), stand(12, counts=((1, 6), (2, 5))))
    assert crossed is not None and (crossed.decided_s, crossed.limit_s) == (11, 10)


def test_without_collectives_new_places_keep_todays_limits() -> None:
    bare = stand(100, counts=(), idle=True)
    assert ask(bare, bare) is None
    assert verdict(ask(bare._replace(stood_s=120.0))) == "hung"
    assert ask(bare._replace(stood_s=3599.0, idle=False)) is None


def test_time_counts_from_when_the_disk_answered_again() -> None:
    assert ask(waiter(600), stand(600, 499), scene=replace(SCENE, counts_from_s=9.0)) is None


def test_only_one_rank_of_a_place_carries_its_name_and_all_are_read_with_it() -> None:
    stopped = waiter(20)._replace(kind=StandKind.STOPPED, place="")
    told = without_repeated_places({3: stopped, 0: waiter(20), 1: waiter(20), 2: stand(20, 499, place="b.py:1 in g")})
    assert [one.place for one in told.values()] == ["", WAITS, "", "b.py:1 in g"]
    told = {rank: told[rank] for rank in range(4)}
    found = ask(*told.values())
    assert found is not None and [found.place_of(rank) for rank in range(4)] == [WAITS, WAITS, "b.py:1 in g", ""]


FEWER = "issued 499 collectives where others issued 500"


@pytest.mark.parametrize(
    ("stands", "words"),
    [
        (
            (waiter(12), waiter(12), stand(12, 499, place="a.py:3 in f")),
            f"rank 2 on n1 has stood in a.py:3 in f for 12 s and {FEWER}; 2 ranks wait",
        ),
        (
            (waiter(12), stand(9, 499), stand(9, 499), waiter(12)),
            f"rank 1 on n0 (and 1 more rank) has stood for 9 s and {FEWER}; 2 ranks wait",
        ),
        ((waiter(40), None), "rank 1 on n0 moves while the others stand; 1 rank waits"),
        ((waiter(40), waiter(40)), f"2 of 2 ranks have not moved for 40 s in {WAITS}"),
        ((stand(60, kind=StandKind.STOPPED),) * 2, "2 of 2 ranks have not moved for 60 s"),
        ((waiter(40), None, None, None), f"1 of 4 ranks has not moved for 40 s in {WAITS}"),
        ((None, stand(60, kind=StandKind.STOPPED)), "rank 1 on n0 has stood for 60 s and is stopped (state T)"),
    ],
)  # fmt: skip
def test_people_are_told_who_where_and_since_when(stands: tuple[Stand | None, ...], words: str) -> None:
    found = ask(*stands)
    assert found is not None
    assert sentence(found, {rank: f"n{rank // 2}" for rank in range(len(stands))}) == words
