"""What ranks wrote is compared between nodes before one of them is judged by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.core.events import RankExited
from gangrun.core.evidence import ErrorReport, Evidence, RankExit
from gangrun.core.machine.running import abridged
from gangrun.core.model import Cause, Verdict
from gangrun.core.recovery import blame, error_rules
from gangrun.core.recovery.error_rules import rule_of
from tests.core.life import Life
from tests.core.test_blame import POLICY, fell
from tests.core.test_error_rules import THREE, raised

# ---- ranks that are stopped tell what they had written ---------------------------------------------------------------


def stopped(life: Life, rank: int, *rows: str) -> RankExited:
    """As the supervisor hands it on."""
    died = RankExit(rank, life.names[rank // life.ranks], signal=15, by_us=True, mark=error_rules.NO_RULE, shown=rows)
    return abridged(life.state, RankExited(0, died))


def stopping(life: Life) -> Life:
    life.on(life.died(0))
    return life


def shown(life: Life) -> dict[str, tuple[str, ...]]:
    return dict(life.state.attempt.evidence.shown)


def test_two_nodes_are_kept_of_each_line_that_ranks_had_written_which_we_stopped():
    life = stopping(Life(nodes=4, ranks=2).running())
    life.on(stopped(life, 2, "gpu-missing/12ab!", "driver-mismatch/0001"))
    life.on(stopped(life, 3, "gpu-missing/12ab"))
    assert shown(life) == {"gpu-missing/12ab": ("n1",), "driver-mismatch/0001": ("n1",)}
    life.on(stopped(life, 4, "gpu-missing/12ab"))
    third = stopped(life, 6, "gpu-missing/12ab", "gpu-busy/0002")
    assert third.exit.shown == ("gpu-busy/0002",), "that two nodes show the rest is known"
    life.on(third)
    assert shown(life)["gpu-missing/12ab"] == ("n1", "n2") and shown(life)["gpu-busy/0002"] == ("n3",)
    assert set(life.state.attempt.stopped) == {2, 3, 4, 6} and len(life.state.attempt.evidence.exits) == 1


def test_lines_that_differ_on_every_rank_take_no_more_room():
    life = stopping(Life(nodes=2, ranks=40).running())
    for rank in range(1, 70):
        life.on(stopped(life, rank, f"gpu-missing/{rank:04x}", "driver-mismatch/0001"))
    assert len(shown(life)) == 64 and shown(life)["driver-mismatch/0001"] == ("n0", "n1")
    assert len(life.state.attempt.stopped) == 69


def test_an_agent_that_did_not_look_says_nothing_of_its_rank():
    life = stopping(Life(nodes=2, ranks=2).running())
    life.on(RankExited(0, RankExit(2, "n1", signal=15, by_us=True)))
    assert not life.state.attempt.stopped and not shown(life)


# ---- what stands on stderr: is it this node's own? -------------------------------------------------------------------

NO_GPU = "[W] CUDA initialization: Found no NVIDIA driver on your system"


def aborted(rank: int, *lines: str) -> RankExit:
    died = fell(rank, f"n{1 + rank // 2}", code=None, signal=6, at=10.0 + rank)
    return error_rules.marked(replace(died, tail=lines, written_at=9.9))


def verdict_on(*exits: RankExit, shown: tuple[str, ...] = (), stopped: tuple[int, ...] = ()) -> Verdict:
    rows = {entry.rstrip("!"): shown for died in exits for entry in died.shown} if shown else {}
    return blame.judge(
        Evidence(exits=exits, shown=rows), attempt=1, attempt_step=-1, placement=THREE, sightings=(), suspicion={},
        nodes_count=3, policy=POLICY, stopped=frozenset(stopped),
    )  # fmt: skip


def test_a_line_that_one_node_shows_is_that_nodes_if_the_others_were_heard() -> None:
    alone = verdict_on(aborted(3, NO_GPU), stopped=(0, 1, 2, 4, 5))
    assert (alone.cause, alone.blamed) == (Cause.HARDWARE, ("n2",)) and "on n2 only: n2 is at fault" in alone.sentence
    unheard = verdict_on(aborted(3, NO_GPU), stopped=(2,))
    assert unheard.blamed == () and "the code or n2 is at fault" in unheard.sentence


def test_a_line_that_healthy_ranks_wrote_too_tells_nothing() -> None:
    both = verdict_on(aborted(3, NO_GPU), shown=("n1", "n2"), stopped=(0, 1, 2, 4, 5))
    assert both.cause is Cause.SIGNAL and both.blamed == ()


def test_a_line_of_rank_0_alone_excludes_nobody() -> None:
    first = verdict_on(aborted(0, NO_GPU), stopped=(1, 2, 3, 4, 5))
    assert first.blamed == () and "the code or n1 is at fault" in first.sentence
    beside = verdict_on(aborted(0, NO_GPU), shown=("n1",), stopped=(1, 2, 3, 4, 5))
    assert beside.blamed == ("n1",), "another rank of its node shows it"


def test_words_of_the_script_itself_exclude_a_node_if_all_its_ranks_say_them() -> None:
    said = ("ValueError", "needs 8 gpus but config has 4")
    one = verdict_on(raised(*said, node="n2", rank=2), stopped=(0, 1, 3, 4, 5))
    assert (one.cause, one.blamed) == (Cause.HARDWARE, ())
    both = verdict_on(raised(*said, node="n2", rank=2), raised(*said, node="n2", rank=3), stopped=(0, 1, 4, 5))
    assert both.blamed == ("n2",)


LOCKED = "max locked memory       (kbytes, -l) unlimited"


@pytest.mark.parametrize(
    "ends",
    [
        {"error": ErrorReport("RuntimeError", "CUDA error: an illegal memory access was encountered", "ima")},
        {"error": ErrorReport("RuntimeError", "sizes do not match", "sizes")},
        {"code": None, "signal": 11},
        {"code": 17},
    ],
    ids=["a row of its own", "no row", "segv", "exit 17"],
)
def test_a_line_of_one_node_does_not_explain_what_ended_ranks_on_the_others_too(ends: dict[str, Any]) -> None:
    fallen = [replace(fell(rank, f"n{1 + rank // 2}", at=10.0 + rank), **ends) for rank in range(6)]
    with_line = [error_rules.marked(replace(died, tail=(LOCKED,))) for died in fallen[:2]]
    everywhere = verdict_on(*with_line, *fallen[2:])
    assert everywhere.blamed == () and "limit on locked" not in everywhere.sentence
    alone = verdict_on(*with_line, stopped=(2, 3, 4, 5))
    assert alone.blamed == ("n1",), "if no other node fails, it may be this line"


PEERS = (
    {"error": ErrorReport("DistBackendError", "NCCL error: unhandled cuda error", "nccl")},
    {"error": ErrorReport("RuntimeError", "a peer was gone", "gone", collective=True)},
    {"code": 1},
    {"code": None, "signal": 6},
    {"code": 137},
)


@pytest.mark.parametrize("ends", PEERS, ids=["nccl", "collective", "exit 1", "abort", "killed"])
def test_ranks_that_lost_a_peer_may_end_in_the_same_way_without_its_line(ends: dict[str, Any]) -> None:
    fallen = [error_rules.marked(replace(fell(rank, f"n{1 + rank // 2}"), **ends)) for rank in range(6)]
    said = error_rules.marked(replace(fallen[2], mark="", tail=("GPU is lost", "bye")))
    assert error_rules.compared((*fallen[:2], said, *fallen[3:]), {})[2].shown == said.shown != ()


def test_a_rank_that_lost_a_peer_is_a_victim_whatever_else_stands_on_its_stderr() -> None:
    gone = replace(fell(3, "n2"), error=ErrorReport("DistBackendError", "peer 1 is gone", collective=True))
    assert blame.is_victim(replace(gone, tail=(NO_GPU,)))
    known = replace(gone, error=ErrorReport("DistBackendError", "NCCL error 5: ncclInvalidUsage", collective=True))
    assert not blame.is_victim(known), "what its own words tell counts"


def test_memory_that_another_program_holds_is_read_from_stderr_too() -> None:
    held = "Process 8 has 70.00 GiB memory in use. this process has 5.00 GiB memory in use"
    found = rule_of(aborted(3, f"CUDA out of memory. {held}"))
    assert found is not None and found.name == "foreign-process"


def test_what_all_ranks_wrote_last_before_they_ended_themselves_is_their_cause() -> None:
    ends = [aborted(rank, NO_GPU) for rank in range(6)]
    together = verdict_on(*ends)
    assert (together.cause, together.blamed, together.final) == (Cause.ENVIRONMENT, (), True)
    earlier = verdict_on(*(replace(died, written_at=0.0) for died in ends))
    assert earlier.cause is Cause.SIGNAL, "nobody knows that they wrote it as they ended"


def test_a_crash_as_the_interpreter_ends_follows_from_what_stands_before_it() -> None:
    died = aborted(
        3, "RuntimeError: CUDA error: uncorrectable ECC error", "terminate called without an active exception"
    )
    found = rule_of(died)
    assert found is not None and found.name == "gpu-ecc"
