"""Whose fault a failure was, for the first time and once more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.events import AgentJoined
from gangrun.core.evidence import (
    Collective,
    ErrorReport,
    Evidence,
    Hang,
    NodeFinding,
    RankExit,
    RankObservation,
    RankStack,
)
from gangrun.core.model import Cause, Failure, Placement, Seat, Sighting, Slot, Verdict
from gangrun.core.nodes import roster, standing
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame, blame_hang
from tests.core.life import Life

# ---- evidence in few words -------------------------------------------------------------------------------------------


POLICY = Policy()
TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    f()\nValueError: bad batch 17\n'
)


def placed(*names: str, per_node: int = 2) -> Placement:
    seats = tuple(Seat(Slot(name, 0), index * per_node, per_node) for index, name in enumerate(names))
    return Placement(seats, per_node * len(names))


FULL = "known: storage-full"
TWO = placed("n1", "n2")


def error(
    message: str = "bad batch 17", *, kind: str = "ValueError", sig: str = "sig-a", collective: bool = False
) -> ErrorReport:
    return ErrorReport(kind, message, sig, TRACEBACK, collective)


def fell(
    rank: int = 1,
    node: str = "n1",
    *,
    code: int | None = 1,
    signal: int | None = None,
    oom: bool = False,
    by_us: bool = False,
    report: ErrorReport | None = None,
    at: float = 10.0,
) -> RankExit:
    return RankExit(rank, node, None if signal else code, signal, oom, by_us, report, at)


def victim(rank: int = 0, node: str = "n2", at: float = 10.0) -> RankExit:
    lost = error("[../gloo/pair.cc:534] Connection closed by peer", kind="RuntimeError", sig="gloo", collective=True)
    return fell(rank, node, report=lost, at=at)


def judge(
    evidence: Evidence,
    *,
    attempt: int = 3,
    step: int = 120,
    sightings: tuple[Sighting, ...] = (),
    suspicion: dict[str, int] | None = None,
    nodes_count: int = 2,
    placement: Placement | None = TWO,
    policy: Policy = POLICY,
    finished: frozenset[int] = frozenset(),
) -> Verdict:
    return blame.judge(
        evidence,
        attempt=attempt,
        attempt_step=step,
        placement=placement,
        sightings=sightings,
        suspicion=suspicion or {},
        nodes_count=nodes_count,
        policy=policy,
        finished=finished,
    )


# ---- whose fault it was ----------------------------------------------------------------------------------------------


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


WARNED = "[rank1]:[W1128 12:02:06.6 reducer.cpp:1529] Warning: find_unused_parameters=True was specified"


@pytest.mark.parametrize(
    ("exit_", "cause", "sentence"),
    [
        (
            fell(signal=9),
            Cause.KILLED,
            (
                "rank 1 on n1 was killed by SIGKILL (9) at step 120; who sent it is not known,"
                " but it was not the job's memory limit"
            ),
        ),
        (
            fell(signal=15),
            Cause.KILLED,
            "rank 1 on n1 was killed by SIGTERM (15) at step 120; who sent it is not known",
        ),
        (
            replace(fell(signal=15), tail=("bye", "/site/tree.py:21: `isinstance` is old", "  return f(x)", WARNED)),
            Cause.KILLED,
            "rank 1 on n1 was killed by SIGTERM (15) at step 120: bye; who sent it is not known",
        ),
        (fell(signal=11), Cause.SIGNAL, "rank 1 on n1 was killed by SIGSEGV (11) at step 120"),
        (fell(signal=64), Cause.SIGNAL, "rank 1 on n1 was killed by signal 64 at step 120"),
        (
            fell(signal=9, oom=True),
            Cause.OOM,
            "rank 1 on n1 ran out of memory at step 120: the job's memory cgroup killed it (SIGKILL (9))",
        ),
        (
            replace(fell(signal=9, oom=True), memory="3 s before, rank 1 held 60 GB, rank 0 held 3.1 GB"),
            Cause.OOM,
            (
                "rank 1 on n1 ran out of memory at step 120: the job's memory cgroup killed it (SIGKILL (9));"
                " 3 s before, rank 1 held 60 GB, rank 0 held 3.1 GB"
            ),
        ),
        (fell(code=3), Cause.RANK_ERROR, "rank 1 on n1 ended with exit code 3 at step 120 and no traceback"),
        (
            fell(code=139),
            Cause.RANK_ERROR,
            "rank 1 on n1 ended with exit code 139 (how a shell reports SIGSEGV (11)) at step 120 and no traceback",
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
    ("number", "signature", "suspects"),
    [(28, FULL, ("n1",)), (30, FULL, ("n1",)), (122, "known: quota", ("n1",)), (5, "", ("n1",)), (121, "", ("n1",))],
)
def test_storage_speaks_through_an_exception(number: int, signature: str, suspects: tuple[str, ...]) -> None:
    full = error(f"[Errno {number}] said the disk", kind="OSError")
    verdict = judge(Evidence(exits=(fell(report=full),)))
    assert (verdict.cause, verdict.failure, verdict.suspects, verdict.signature) == (
        Cause.STORAGE,
        Failure.STORAGE,
        suspects,
        signature,
    )


@pytest.mark.parametrize(
    ("kind", "message", "cause", "signature"),
    [
        ("gangrun.training.state.CheckpointError", "step 9 was not saved: rank 0: No space left on device",
         Cause.STORAGE, FULL),
        ("CheckpointError", "step 9 was not saved: rank 3: Stale file handle", Cause.STORAGE, ""),
        ("torch.distributed.checkpoint.api.CheckpointException", "ranks 0\nOSError: [Errno 28] No space left on device",
         Cause.STORAGE, FULL),
        ("CheckpointError", "step 9 is damaged: a checksum does not hold", Cause.RANK_ERROR, "sig-a"),
        ("RuntimeError", "write(): fd 29 failed with No space left on device", Cause.STORAGE, FULL),
        ("ValueError", "the log has a gap", Cause.RANK_ERROR, "sig-a"),
    ],
)  # fmt: skip
def test_storage_speaks_through_what_saves(kind: str, message: str, cause: Cause, signature: str) -> None:
    verdict = judge(Evidence(exits=(fell(report=error(message, kind=kind)),)))
    assert (verdict.cause, verdict.signature) == (cause, signature)


def test_full_disk_twice_stops_as_storage() -> None:
    full = error("[Errno 28] No space left on device", kind="OSError")
    verdict = judge(Evidence(exits=(fell(report=full),)), sightings=(Sighting(FULL, 2, 120, ()),))
    assert verdict.final and verdict.failure is Failure.STORAGE and "the storage is at fault" in verdict.sentence


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


def test_what_the_watchdog_of_nccl_wrote_is_put_together_behind_the_sentence_on_victims() -> None:
    def told(seq: int, *, is_open: bool) -> tuple[Collective, ...]:
        return (Collective("0", seq, "nccl:all_reduce", "1000", seq, is_open),)

    late = replace(victim(1, "n1", 10.4), by_us=True, collectives=told(60, is_open=False))
    exits = (replace(victim(0, "n1", 10.1), collectives=told(61, is_open=True)), victim(3, "n2", 10.2), late)
    verdict = judge(Evidence(exits=exits))
    assert verdict.cause is Cause.VICTIMS_ONLY
    assert verdict.sentence.endswith(
        "; collective 61 of group 0 is all_reduce of 1000, which rank 1 did not enter (newest 60)"
    )


ADDRESSES = {"10.0.0.3": "n3", "fe80::966d:ae03:8b:df54": "n3", "10.0.0.1": "n1"}


@pytest.mark.parametrize(
    "text",
    [
        "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:12345",
        "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::ffff:10.0.0.3]:12345",
        "NET/IB : Got completion from peer 10.0.0.3<54862> with status=12 opcode=0 len=0 vendor err 129",
        "NET/IB : Got completion from peer fe80::966d:ae03:8b:df54%ib0<33397> with error 12, vendor err 129",
        "NCCL WARN Call to recv from 10.0.0.3<33759> failed : Connection reset by peer",
        "socketStartConnect: Connect to 10.0.0.3<39537> failed : NCCL socket closed, Connection refused",
        "socketProgress: Connection closed by remote peer n3.cluster.example<49152>",
        "[c10d] sendBytes failed on SocketImpl(fd=6, addr=[::ffff:10.0.0.1]:5476, remote=[::ffff:10.0.0.3]:29500)",
        "[c10d] The client socket has timed out after 600s while trying to connect to (n3, 29500).",
    ],
)
def test_the_node_whose_address_others_name_is_the_one_to_look_at(text: str) -> None:
    lost = error(text, kind="torch.distributed.DistBackendError", sig="lost", collective=True)
    exits = (fell(0, "n1", report=lost), replace(victim(2, "n2"), at=10.5))
    verdict = blame.judge(
        Evidence(exits=exits),
        attempt=3,
        attempt_step=120,
        placement=placed("n1", "n2", "n3", "n4"),
        sightings=(),
        suspicion={},
        nodes_count=4,
        policy=POLICY,
        addresses=ADDRESSES,
    )
    assert (verdict.cause, verdict.suspects, verdict.rank) == (Cause.VICTIMS_ONLY, ("n3",), 4), verdict.sentence
    assert verdict.sentence.endswith("rank 4 on n3 is suspected, as other ranks name it or its node")


def test_the_rank_that_a_barrier_misses_is_the_one_to_look_at() -> None:
    """Whatever the other ranks end with."""
    missed = error("[Rank 0]: Ranks 3 failed to pass monitoredBarrier in 1800000 ms", kind="RuntimeError", sig="b")
    exits = (fell(0, "n1", report=missed), fell(1, "n1", report=missed, at=10.1), victim(2, "n2", at=10.2))
    verdict = judge(Evidence(exits=exits))
    assert (verdict.rank, verdict.suspects) == (3, ("n2",)), verdict.sentence
    assert "rank 3 on n2 is suspected, as other ranks name it or its node" in verdict.sentence


def test_who_shares_the_gpus_of_all_nodes_is_the_gang_itself() -> None:
    """On one node it would be a process of somebody else."""
    full = error(
        "CUDA out of memory. GPU 0 has a total capacity of 79.25 GiB of which 118.06 MiB is free. Process 265 has 77.30"
        " GiB memory in use. Including non-PyTorch memory, this process has 1.83 GiB memory in use.",
        kind="torch.OutOfMemoryError",
    )
    one, all_nodes = fell(1, "n1", report=full), (fell(1, "n1", report=full), fell(3, "n2", report=full, at=10.1))
    assert judge(Evidence(exits=(one,))).cause is Cause.FOREIGN_PROCESS
    assert judge(Evidence(exits=all_nodes)).cause is Cause.GPU_MEMORY


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ("Connection refused: n3/10.0.0.3:7337", Cause.NETWORK),
        ("HTTPConnectionPool(host='n3.cluster', port=80): Max retries exceeded", Cause.NETWORK),
        ("HTTPConnectionPool(host='10.0.0.3', port=80): Max retries exceeded", Cause.NETWORK),
        ("HTTPConnectionPool(host='n1', port=80): Max retries exceeded", Cause.SERVICE),
        ("HTTPConnectionPool(host='10.0.0.9', port=80): Max retries exceeded", Cause.SERVICE),
    ],
)
def test_a_service_on_another_node_of_the_gang_is_a_rank(asked: str, cause: Cause) -> None:
    """What it asks of itself, or of a node that is not of the gang, is a service."""
    first = fell(0, "n1", report=error(asked, kind="requests.exceptions.ConnectionError", sig="asked"))
    told = fell(0, "n1")
    verdicts = [
        blame.judge(
            Evidence(exits=(one,)), attempt=3, attempt_step=120, placement=placed("n1", "n2", "n3"), sightings=(),
            suspicion={}, nodes_count=3, policy=POLICY, addresses=ADDRESSES,
        )
        for one in (first, replace(told, tail=(f"requests.exceptions.ConnectionError: {asked}",)))
    ]  # fmt: skip
    assert [verdict.cause for verdict in verdicts] == [cause, cause], verdicts[0].sentence
    means = "another node of the gang" if cause is Cause.NETWORK else "a service outside the gang"
    assert all(f"this means {means} that does not answer" in verdict.sentence for verdict in verdicts)


def test_an_address_that_several_nodes_have_names_none() -> None:
    life = Life(2)
    for name, own in (("n0", "10.0.0.1"), ("n1", "10.0.0.2")):
        life.on(AgentJoined(name, f"i-{name}", f"b-{name}", 2, (own, "172.17.0.1")))
    assert roster.named_by(life.state) == {"10.0.0.1": "n0", "10.0.0.2": "n1"}


WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=50) ran for 600011 milliseconds"


@pytest.mark.parametrize(
    ("also", "cause"),
    [
        ("", Cause.HANG),
        ("NET/IB : Got completion from peer 10.0.0.9<5> with status=12 opcode=0", Cause.VICTIMS_ONLY),
    ],
)
def test_ranks_whose_watchdog_ended_them_hung_unless_what_moves_bytes_failed(also: str, cause: Cause) -> None:
    report = error(WATCHDOG, kind="torch.distributed.DistBackendError", sig="lost", collective=True)
    other = error(also or WATCHDOG, kind="torch.distributed.DistBackendError", sig="lost", collective=True)
    verdict = judge(Evidence(exits=(fell(0, "n1", report=report), fell(3, "n2", at=10.5, report=other))))
    assert (verdict.cause, verdict.blamed) == (cause, ())
    words = "waited too long in a collective" if cause is Cause.HANG else "lost a peer in a collective"
    assert verdict.sentence.startswith(f"2 ranks {words} at step 120")


def test_a_launch_that_fails_on_another_node_too_is_the_codes() -> None:
    report = error("CUDA error: unspecified launch failure", kind="RuntimeError")
    before = Sighting("device: gpu-launch", 2, 120, ("n2",))
    verdict = judge(Evidence(exits=(fell(report=report),)), sightings=(before,))
    assert (verdict.cause, verdict.failure, verdict.final) == (Cause.RANK_ERROR, Failure.SCRIPT, True)
    assert "the code is at fault" in verdict.sentence


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
    assert again.final and again.failure is Failure.SCRIPT and "the code is at fault" in again.sentence
    farther = judge(evidence, finished=frozenset({1}), sightings=(Sighting(verdict.signature, 2, 60, ()),))
    assert not farther.final, "a run that gets on is given another try"


def test_victims_name_the_silent_node() -> None:
    verdict = judge(Evidence(exits=(victim(0, "n1"),), silent={"n2": 8.0}))
    assert (verdict.cause, verdict.blamed) == (Cause.NODE_SILENT, ("n2",))


def test_nothing_seen() -> None:
    assert judge(Evidence(), step=-1).sentence == "all ranks ended and none reported a cause"
    ours = judge(Evidence(exits=(fell(by_us=True),)))
    assert ours.sentence == "all ranks ended at step 120 and none reported a cause"


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
    assert several.suspects == () and several.sentence.startswith("the agents on n[1-2] died")


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
    assert again.final and "the environment is at fault" in again.sentence and again.failure is Failure.SCRIPT
    evidence = Evidence(start_failed=("n1", "pid 456: no such file"))
    assert not judge(evidence, nodes_count=2, step=-1, sightings=(before,)).final, "perhaps this node's"
    elsewhere = Evidence(start_failed=("n2", "pid 456: no such file"))
    assert judge(elsewhere, nodes_count=2, step=-1, sightings=(before,)).final


def blame_sighting(verdict: Verdict, attempt: int, step: int) -> Sighting:
    return Sighting(verdict.signature, attempt, step, verdict.suspects)


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
        assert "attempt 2 failed in the same way" in verdict.sentence
        assert "f() | ValueError: bad batch 17" in verdict.sentence


def test_same_again_says_where() -> None:
    def said(before: Sighting, nodes_count: int = 2, step: int = 120) -> str:
        evidence = Evidence(exits=(fell(report=error()),))
        return judge(evidence, sightings=(before,), nodes_count=nodes_count, step=step).sentence

    assert "at the same step (120)" in said(Sighting("sig-a", 2, 120, ("n1",)))
    assert "on another node (n2 before, n1 now)" in said(Sighting("sig-a", 2, 90, ("n2",)))
    assert "with no progress since" in said(Sighting("sig-a", 2, 130, ("n1",)), nodes_count=1)


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
    sightings = (Sighting(first.signature, 0, before_step, ("n2",)),) if first.signature else ()
    assert judge(Evidence(exits=(exit_,)), attempt=1, step=step, sightings=sightings).final is final


@pytest.mark.parametrize("exit_", [fell(code=3), fell(signal=11), fell(report=error("unit 3", kind="FluxError"))])
def test_the_same_at_one_step_of_one_node_moves_the_rank_first(exit_: RankExit) -> None:
    """A node whose disk is full when a checkpoint is saved fails at the same step each time, too."""
    first = judge(Evidence(exits=(exit_,)), attempt=0)
    again = judge(Evidence(exits=(exit_,)), attempt=1, sightings=(Sighting(first.signature, 0, 120, ("n1",)),))
    assert (again.final, again.moves, again.suspects) == (False, True, ("n1",))


def test_a_report_without_signature_gets_one_from_its_words() -> None:
    verdict = judge(Evidence(exits=(fell(report=error("batch 17 of 30", sig="")),)))
    assert verdict.signature == "error: ValueError: batch N of N"
    silent = error(sig="")
    again = judge(
        Evidence(exits=(fell(report=replace(silent, traceback=" \n")),)),
        sightings=(Sighting("error: ValueError: bad batch N", 1, 120, ()),),
    )
    assert again.final and again.sentence.endswith("another attempt would fail too")


@pytest.mark.parametrize("signal", [7, 11])
def test_poor_hardware_that_ranks_fell_on_twice_goes(signal: int) -> None:
    poor = NodeFinding("n1", "gpu_clock", False, "slow", 9.0, poor=True)
    evidence = Evidence(exits=(fell(signal=signal),), findings=(poor,))
    verdict = judge(evidence, suspicion={"n1": 1, "n2": 4}, nodes_count=3)
    assert (verdict.blamed, blame.on_doubt_only(verdict, evidence)) == (("n1",), ("n1",))
    assert verdict.sentence.endswith("n1 was suspected for the 2nd time, so it is blamed")
    assert judge(evidence, suspicion={"n1": 11}, nodes_count=3).sentence.endswith("for the 12th time, so it is blamed")
    assert judge(evidence, suspicion={"n2": 4}, nodes_count=3).blamed == ()
    assert judge(evidence, suspicion={"n1": 4}, nodes_count=2).blamed == (), "no spare: it stays"
    assert judge(evidence, suspicion={"n1": 4}, nodes_count=2, policy=Policy(can_requeue=True)).blamed == ("n1",)
    assert judge(evidence, suspicion={"n1": 4}, nodes_count=1).blamed == (), "there is no other node"
    hard = NodeFinding("n1", "xid", True, "XID 79", 9.0)
    broken = Evidence(findings=(hard,))
    assert blame.on_doubt_only(judge(broken, suspicion={"n1": 1}), broken) == ()


@pytest.mark.parametrize(
    ("exit_", "nodes_count", "moves"),
    [
        (fell(signal=11), 2, True),
        (fell(code=17), 2, True),
        (fell(report=error(kind="RuntimeError")), 2, True),
        (fell(report=error()), 2, False),  # Python raises it for a bug
        (fell(signal=9), 2, False),  # somebody sent it
        (fell(signal=11), 1, False),
    ],
)
def test_a_rank_that_falls_first_twice_is_moved_not_its_node_excluded(
    exit_: RankExit, nodes_count: int, moves: bool
) -> None:
    placement = TWO if nodes_count == 2 else placed("n1", per_node=4)
    verdict = judge(Evidence(exits=(exit_,)), suspicion={"n1": 1}, nodes_count=nodes_count, placement=placement)
    assert (verdict.moves, verdict.blamed) == (moves, ())


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


@pytest.mark.parametrize(
    ("states", "steps", "frames", "named"),
    [
        ("SSTS", (5, 5, 5, 5), ("a", "a", "a", "a"), [2]),
        ("SDSS", (5, 5, 5, 5), ("a", "a", "a", "b"), [1]),
        ("SSSS", (4, 5, 5, 5), ("a", "a", "a", "b"), [3]),
        ("SSSS", (4, 5, 5, 5), ("a", "a", "a", "a"), [0]),
        ("SSSS", (5, 5, 5, 5), ("a", "a", "a", "a"), []),
    ],
)
def test_who_differs_in_a_hang_is_whom_its_verdict_names(
    states: str, steps: tuple[int, ...], frames: tuple[str, ...], named: list[int]
) -> None:
    seen = tuple(RankObservation(rank, f"n{rank}", states[rank], steps[rank], 0.0) for rank in range(4))
    hang = Hang(130.0, 120.0, seen, tuple(RankStack(rank, f"n{rank}", frames[rank], "") for rank in range(4)))
    assert [one.rank for one in blame_hang.differing(hang)] == named
    suspects = blame_hang.verdict(hang, 5).suspects
    assert suspects == tuple(f"n{rank}" for rank in named)


def test_hang_with_two_ranks_names_whoever_waits_for_nobody() -> None:
    where = (RankStack(0, "n1", WAIT, ""), RankStack(1, "n2", "sleep (train.py:3)", ""))
    verdict = judge(Evidence(hang=Hang(130.0, 120.0, (), where)), step=-1)
    assert verdict.suspects == ("n2",) and verdict.sentence.startswith("no progress for 130 s (limit 120 s): rank 1")


def test_hang_names_the_rank_that_issued_fewer_collectives_before_the_odd_one_by_stack() -> None:
    fewer = "issued 8 collectives where others issued 9"
    observed = (CALM[0], CALM[1], replace(CALM[2], place="train.py:3 in load", sign=fewer), CALM[3])
    hang = Hang(30.0, 30.0, observed, stacks(WAIT, "save (x.py:1)", "load (data.py:9)", WAIT))
    verdict = blame_hang.verdict(hang, 5)
    assert verdict.suspects == ("n2",) and verdict.rank == 2
    assert verdict.sentence.endswith(f": rank 2 on n2 is in train.py:3 in load, {fewer}")
    assert [one.rank for one in blame_hang.differing(hang)] == [2]
    absent = replace(hang, observations=(*observed[:2], replace(observed[2], place=""), CALM[3]), stacks=())
    assert blame_hang.verdict(absent, 5).sentence.endswith(f"rank 2 on n2 is not there, {fewer}")


def test_many_ranks_stuck_in_the_kernel_are_the_storages() -> None:
    verdict = judge(Evidence(hang=Hang(130.0, 120.0, seen(("n1", "D", 7), ("n2", "D", 7)))))
    assert (verdict.failure, verdict.suspects) == (Failure.STORAGE, ())


def test_same_deadlock_at_the_same_step_is_the_codes() -> None:
    hang = Evidence(hang=Hang(130.0, 120.0, CALM, stacks(WAIT, WAIT, "odd (a.py:3)", WAIT)))
    first = judge(hang, attempt=0)
    sightings = (Sighting(first.signature, 0, 120, ("n9",)),)
    assert judge(hang, attempt=1, sightings=sightings).final
    assert not judge(hang, attempt=1, step=121, sightings=sightings).final
    here = judge(hang, attempt=1, sightings=(Sighting(first.signature, 0, 120, first.suspects),))
    assert not here.final and here.moves, "its node may be at fault"
    stopped = Evidence(hang=Hang(130.0, 120.0, seen(("n1", "T", 7))))
    assert judge(stopped).signature == "", "whoever stopped a rank twice has not shown that the code is wrong"


@pytest.mark.parametrize(
    ("before", "nodes_count", "final"),
    [
        (Sighting("device: gpu-fault", 2, 120, ("n1",)), 2, False),  # the same node of several: perhaps its GPU
        (Sighting("device: gpu-fault", 2, 120, ("n2",)), 2, True),  # two sick GPUs with one traceback: the code
        (Sighting("device: gpu-fault", 2, 120, ("n1",)), 1, True),
    ],
)
def test_what_a_sick_gpu_says_is_not_the_codes_at_once(before: Sighting, nodes_count: int, final: bool) -> None:
    report = error("CUDA error: an illegal memory access was encountered", kind="RuntimeError")
    verdict = judge(Evidence(exits=(fell(report=report),)), sightings=(before,), nodes_count=nodes_count)
    assert verdict.final is final and verdict.signature == "device: gpu-fault"
