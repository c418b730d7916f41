"""Whose fault it was: a table of evidence and what must be concluded of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.model import (
    Cause,
    Evidence,
    Failure,
    Hang,
    NodeFinding,
    RankExit,
    RankObservation,
    Sighting,
    Verdict,
)
from tests.core.blame_cases import error, fell, judge, placed, victim


def test_own_exception_blames_nobody() -> None:
    verdict = judge(Evidence(exits=(fell(report=error()), victim(at=10.1))))
    assert (verdict.cause, verdict.failure, verdict.blamed, verdict.suspects) == (
        Cause.RANK_ERROR,
        Failure.SCRIPT,
        (),
        ("n1",),
    )
    assert verdict.sentence == "rank 1 on n1 raised ValueError: bad batch 17 at step 120 (exit code 1)"
    assert verdict.signature == "sig-a" and not verdict.final


@pytest.mark.parametrize(
    ("exit_", "cause", "sentence"),
    [
        (
            fell(signal=9),
            Cause.SIGNAL,
            "rank 1 on n1 was killed by SIGKILL (9) at step 120 and nobody said why (not the memory cgroup)",
        ),
        (fell(signal=15), Cause.SIGNAL, "rank 1 on n1 was killed by SIGTERM (15) at step 120 and nobody said why"),
        (fell(signal=11), Cause.SIGNAL, "rank 1 on n1 was killed by SIGSEGV (11) at step 120"),
        (fell(signal=64), Cause.SIGNAL, "rank 1 on n1 was killed by signal 64 at step 120"),
        (
            fell(signal=9, oom=True),
            Cause.OOM,
            "rank 1 on n1 ran out of memory at step 120: the job's memory cgroup killed it (SIGKILL (9))",
        ),
        (fell(code=3), Cause.RANK_ERROR, "rank 1 on n1 ended with exit code 3 at step 120 and no traceback"),
        (
            fell(code=137),
            Cause.RANK_ERROR,
            "rank 1 on n1 ended with exit code 137 (a shell's word for SIGKILL (9)) at step 120 and no traceback",
        ),
        (fell(code=250), Cause.RANK_ERROR, "rank 1 on n1 ended with exit code 250 at step 120 and no traceback"),
        (
            fell(code=None),
            Cause.RANK_ERROR,
            "rank 1 on n1 ended with an unknown exit code at step 120 and no traceback",
        ),
        (fell(code=0), Cause.LEFT_EARLY, "rank 1 on n1 ended with exit code 0 at step 120 while the others ran on"),
    ],
)
def test_how_one_rank_fell(exit_: RankExit, cause: Cause, sentence: str) -> None:
    verdict = judge(Evidence(exits=(victim(at=10.3), exit_)))
    assert (verdict.cause, verdict.blamed, verdict.sentence) == (cause, (), sentence)


def test_the_first_to_fall_of_itself_is_the_story() -> None:
    exits = (
        victim(0, "n2", at=9.0),
        fell(5, "n3", code=None, signal=9, by_us=True, at=9.5),
        fell(2, "n2", signal=9, at=10.5),
        fell(1, "n1", report=error(), at=10.0),
    )
    assert judge(Evidence(exits=exits)).suspects == ("n1",)


def test_same_exception_on_two_nodes_at_once_suspects_no_node() -> None:
    exits = (fell(1, "n1", report=error()), fell(2, "n1", report=error()), fell(3, "n2", report=error(), at=10.01))
    assert judge(Evidence(exits=exits)).suspects == ()
    other = (fell(1, "n1", report=error()), fell(3, "n2", report=error(sig="sig-b"), at=10.01), fell(4, "n2", at=10.02))
    assert judge(Evidence(exits=other)).suspects == ("n1",)


@pytest.mark.parametrize(
    ("number", "signature"),
    [(28, "sig-a"), (30, "sig-a"), (122, "sig-a"), (5, ""), (116, "")],
)
def test_storage_speaks_through_an_exception(number: int, signature: str) -> None:
    full = error(f"[Errno {number}] said the disk: '/scratch/x'", kind="OSError")
    verdict = judge(Evidence(exits=(fell(report=full),)))
    assert (verdict.cause, verdict.failure, verdict.suspects, verdict.signature) == (
        Cause.STORAGE,
        Failure.STORAGE,
        (),
        signature,
    )


@pytest.mark.parametrize(
    ("kind", "message", "cause", "signature"),
    [
        ("gangrun.training.state.CheckpointError", "step 9 was not saved: rank 0: No space left on device",
         Cause.STORAGE, "sig-a"),
        ("CheckpointError", "step 9 was not saved: rank 3: Stale file handle", Cause.STORAGE, ""),
        ("torch.distributed.checkpoint.api.CheckpointException", "ranks 0\nOSError: [Errno 28] No space left on device",
         Cause.STORAGE, "sig-a"),
        ("CheckpointError", "step 9 is damaged: a checksum does not hold", Cause.RANK_ERROR, "sig-a"),
        ("RuntimeError", "the log says: No space left on device", Cause.RANK_ERROR, "sig-a"),
    ],
)  # fmt: skip
def test_storage_speaks_through_what_saves(kind: str, message: str, cause: Cause, signature: str) -> None:
    verdict = judge(Evidence(exits=(fell(report=error(message, kind=kind)),)))
    assert (verdict.cause, verdict.signature) == (cause, signature)


def test_full_disk_twice_stops_as_storage() -> None:
    full = error("[Errno 28] No space left on device", kind="OSError")
    verdict = judge(Evidence(exits=(fell(report=full),)), sightings=(Sighting("sig-a", 2, 120, ()),))
    assert verdict.final and verdict.failure is Failure.STORAGE and "it is the storage's" in verdict.sentence


def test_foreign_text_stays_on_one_line() -> None:
    nasty = error("line one\nline two\x1b[31m" + "x" * 900)
    sentence = judge(Evidence(exits=(fell(report=nasty),))).sentence
    assert "\n" not in sentence and "\x1b" not in sentence and len(sentence) < 400


# ---- victims ---------------------------------------------------------------------------------------------------------


def test_only_victims_blame_nobody() -> None:
    verdict = judge(Evidence(exits=(victim(3, "n2", 10.2), victim(0, "n1", 10.1))))
    assert (verdict.cause, verdict.blamed, verdict.suspects, verdict.signature) == (Cause.VICTIMS_ONLY, (), (), "")
    assert verdict.sentence == (
        "2 ranks lost a peer in a collective at step 120, rank 0 on n1 first:"
        " [../gloo/pair.cc:534] Connection closed by peer; which rank left them is not known"
    )


def test_victims_name_the_rank_that_a_stall_names() -> None:
    seen = (RankObservation(0, "n1", "S", 5, 0.0), RankObservation(1, "n2", "T", 5, 0.0))
    verdict = judge(Evidence(exits=(victim(0, "n1"),), hang=Hang(130.0, 120.0, seen)))
    assert (verdict.cause, verdict.suspects) == (Cause.VICTIMS_ONLY, ("n2",))
    assert "rank 1 on n2 is stopped" in verdict.sentence


def test_victims_name_the_ranks_that_ended_with_0_before_them() -> None:
    evidence = Evidence(exits=(victim(0, "n1"),))
    verdict = judge(evidence, finished=frozenset({3, 1}))
    assert (verdict.cause, verdict.blamed, verdict.suspects, verdict.final) == (Cause.LEFT_EARLY, (), (), False)
    assert verdict.sentence == (
        "rank 1, rank 3 ended with exit code 0 while others still trained; then 1 rank lost a peer in a collective"
        " at step 120, rank 0 on n1 first: [../gloo/pair.cc:534] Connection closed by peer"
    )
    again = judge(evidence, finished=frozenset({1}), sightings=(Sighting(verdict.signature, 2, 120, ()),))
    assert again.final and again.failure is Failure.SCRIPT and "it is the code's" in again.sentence
    farther = judge(evidence, finished=frozenset({1}), sightings=(Sighting(verdict.signature, 2, 60, ()),))
    assert not farther.final, "a run that gets on is given another try"


def test_victims_name_the_silent_node() -> None:
    verdict = judge(Evidence(exits=(victim(0, "n1"),), silent={"n2": 8.0}))
    assert (verdict.cause, verdict.blamed) == (Cause.NODE_SILENT, ("n2",))


def test_nothing_seen() -> None:
    assert judge(Evidence(), step=-1).sentence == "all ranks went down and nothing said why"
    ours = judge(Evidence(exits=(fell(by_us=True),)))
    assert ours.sentence == "all ranks went down at step 120 and nothing said why"


# ---- nodes -----------------------------------------------------------------------------------------------------------


def test_hardware_outranks_everything_but_a_start_from_zero() -> None:
    xid = NodeFinding("n2", "xid", True, "XID 79: GPU 3 fell off the bus", 9.0)
    warn = NodeFinding("n1", "temperature", False, "82 C", 9.0)
    verdict = judge(Evidence(exits=(fell(report=error()),), findings=(warn, xid, replace(xid, at=9.5))))
    assert (verdict.cause, verdict.failure, verdict.blamed) == (Cause.HARDWARE, Failure.NODE, ("n2",))
    assert "hardware failed on n2: XID 79: GPU 3 fell off the bus (xid)" in verdict.sentence
    over = judge(Evidence(findings=(xid,), started_over=(0, 100)))
    assert over.final and over.cause is Cause.STARTED_OVER and "first step seen was 0" in over.sentence


def test_hardware_on_the_only_node_is_still_the_nodes() -> None:
    xid = NodeFinding("n1", "xid", True, "XID 79", 9.0)
    assert judge(Evidence(findings=(xid,), silent={"n1": 1.0}), nodes_count=1).blamed == ("n1",)


def test_hardware_and_silence_together_blame_both() -> None:
    xid = NodeFinding("n2", "xid", True, "XID 79", 9.0)
    assert judge(Evidence(findings=(xid,), silent={"n1": 9.0}), nodes_count=10).blamed == ("n1", "n2")
    many = {f"m{index}": 9.0 for index in range(3)}
    assert judge(Evidence(findings=(xid,), silent=many), nodes_count=10).blamed == ("n2",)


def test_silence_names_the_ranks_that_were_held() -> None:
    verdict = judge(Evidence(silent={"n2": 8.0}))
    assert (verdict.blamed, verdict.sentence) == (("n2",), "no heartbeat from n2 (ranks 2-3) at step 120")
    one = judge(Evidence(silent={"n2": 8.0}), placement=placed("n1", "n2", per_node=1), step=-1)
    assert one.sentence == "no heartbeat from n2 (rank 1)"
    assert judge(Evidence(silent={"n9": 8.0})).sentence == "no heartbeat from n9 at step 120"
    assert judge(Evidence(silent={"n2": 8.0}), placement=None).sentence == "no heartbeat from n2 at step 120"


def test_silence_of_the_only_node_is_its_agents() -> None:
    verdict = judge(Evidence(silent={"n1": 8.0}), nodes_count=1)
    assert (verdict.cause, verdict.blamed) == (Cause.NODE_SILENT, ())
    assert "the agent is stuck, not the node" in verdict.sentence


@pytest.mark.parametrize(
    ("times", "nodes_count", "blamed_count"),
    [
        ([0.0, 1.0, 10.0], 14, 0),  # more than a fifth of 14 is 3
        ([0.0, 1.0, 10.0], 15, 3),  # exactly a fifth is not more
        ([0.0, 1.0, 10.1], 10, 3),  # not within ten seconds
        ([0.0, 1.0], 4, 2),  # fewer than three say nothing
        ([0.0, 1.0, 2.0, 90.0], 10, 1),  # the late one is not part of it
        ([0.0, 50.0, 51.0, 52.0], 10, 1),  # nor the early one
    ],
)
def test_shared_service_rule_for_silence(times: list[float], nodes_count: int, blamed_count: int) -> None:
    silent = {f"n{index}": at for index, at in enumerate(times)}
    verdict = judge(Evidence(silent=silent), nodes_count=nodes_count)
    assert len(verdict.blamed) == blamed_count
    if not blamed_count:
        assert verdict.failure is Failure.SCHEDULER
        assert "3 nodes of 14 (n[0-2]) failed in the same way within 10 s" in verdict.sentence


@pytest.mark.parametrize(
    ("check", "cause", "failure"),
    [("storage_mounts", Cause.STORAGE, Failure.STORAGE), ("ib_link", Cause.HARDWARE, Failure.SCHEDULER)],
)
def test_shared_service_rule_for_findings(check: str, cause: Cause, failure: Failure) -> None:
    findings = tuple(NodeFinding(f"n{index}", check, True, "gone", float(index)) for index in range(4))
    verdict = judge(Evidence(findings=findings), nodes_count=8)
    assert (verdict.cause, verdict.failure, verdict.blamed) == (cause, failure, ())
    own = NodeFinding("n7", "xid", True, "XID 79", 2.0)
    assert judge(Evidence(findings=(*findings, own)), nodes_count=8).blamed == ("n7",)


def test_agent_died_is_a_suspicion_only() -> None:
    verdict = judge(Evidence(agents_died=("n1", "n1"), exits=(victim(),)))
    assert (verdict.cause, verdict.blamed, verdict.suspects) == (Cause.AGENT_DIED, (), ("n1",))
    several = judge(Evidence(agents_died=("n2", "n1")))
    assert several.suspects == () and several.sentence.startswith("agents died on n[1-2]")


def test_start_failed() -> None:
    verdict = judge(Evidence(start_failed=("n1", "no such file: pythn")))
    assert (verdict.cause, verdict.failure, verdict.suspects) == (Cause.START_FAILED, Failure.NODE, ("n1",))
    assert verdict.sentence == "the ranks could not be started on n1: no such file: pythn"
    nobody = judge(Evidence(start_failed=("", "took too long")))
    assert (nobody.failure, nobody.suspects) == (Failure.SCHEDULER, ())


def test_start_failed_twice_in_the_same_way_on_one_box_is_final() -> None:
    first = judge(Evidence(start_failed=("n1", "pid 123: no such file")), nodes_count=1, step=-1)
    before = blame_sighting(first, 0, -1)
    again = judge(Evidence(start_failed=("n1", "pid 456: no such file")), nodes_count=1, step=-1, sightings=(before,))
    assert again.final and "it is the set-up's" in again.sentence and again.failure is Failure.SCRIPT
    evidence = Evidence(start_failed=("n1", "pid 456: no such file"))
    assert not judge(evidence, nodes_count=2, step=-1, sightings=(before,)).final, "perhaps this node's"
    elsewhere = Evidence(start_failed=("n2", "pid 456: no such file"))
    assert judge(elsewhere, nodes_count=2, step=-1, sightings=(before,)).final


def blame_sighting(verdict: Verdict, attempt: int, step: int) -> Sighting:
    return Sighting(verdict.signature, attempt, step, verdict.suspects)
