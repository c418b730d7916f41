"""The journal's lines: what goes in comes out; what is torn, alien or newer is refused in words and never crashes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.actions import CheckNodes, StartGang, SubmitSuccessor
from gangrun.core.events import CheckpointSeen, NodeSilent, ProgressStalled, RankExited, Stamped
from gangrun.core.evidence import ErrorReport, Evidence, Hang, NodeFinding, RankExit, RankObservation, RankStack
from gangrun.core.machine.succession import first_state
from gangrun.core.model import Attempt, CheckpointRef, Level, Origin, Placement, RunState, Seat, Shape, Slot
from gangrun.core.nodes.placement import seated
from gangrun.core.policy import Policy
from gangrun.core.versions import Ranks
from gangrun.wire import kinds
from gangrun.wire import record as wire
from gangrun.wire.record import NewerSchema, Record, RecordError, TornRecord
from tests.core.life import Life, saved

RECORD = Record(1, 2, 3, 4.5, 6.0, "NodeSilent", {"node": "n1", "since": 1.0}, reason='"quoted" ☃\nand broken')
LINE = wire.encode(RECORD)


def sealed(body: bytes) -> bytes:
    """A line whose checksum holds, whatever is in it."""
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def test_one_line_one_record() -> None:
    assert LINE.count(b"\n") == 1
    assert LINE.endswith(b"\n")
    assert wire.decode(LINE) == RECORD
    assert wire.decode(LINE.rstrip(b"\n")) == RECORD


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "cut off"),
        (LINE[:-9], "cut off"),
        (LINE[: len(LINE) // 2], "cut off"),
        (LINE.replace(b"n1", b"n2"), "checksum"),
        (LINE[:-3] + b'0"}\n', "checksum"),
        (b"\x00" * 400, "cut off"),
        (sealed(b'{"v":'), "not JSON"),
        (sealed(b'{"v":1,"kind":"\xff\xfe"'), "not JSON"),
        (sealed(b'{"v":1,"event":' + b"[" * 100_000), "not JSON"),
        (sealed(b"[1"), "not JSON"),
        (sealed(b'{"kind":"x"'), "no schema version"),
        (sealed(b'{"v":"1"'), "no schema version"),
        (sealed(b'{"v":1,"kind":7'), "wrong shape"),
        (sealed(b'{"v":1,"term":1'), "wrong shape"),
    ],
)
def test_torn_lines_are_refused_with_the_reason(line: bytes, words: str) -> None:
    with pytest.raises(TornRecord, match=words):
        wire.decode(line)


def test_a_line_of_schema_1_is_read_without_the_fields_that_went() -> None:
    seen = {"rank": 3, "node": "n1", "state": "T", "step": 7, "idle_s": 130.0, "cpu_rate": 0.0}
    old = {"attempt": 0, "stalled_s": 130.0, "limit_s": 120.0, "observations": [seen]}
    origin = {"job": "j", "job_restart": 0, "node": "n1", "boot_id": "b", "incarnation": "i", "seq": 4}
    fields = {"v": 1, "term": 1, "n": 1, "at": 0.0, "wall": 0.0, "kind": "ProgressStalled"}
    read = wire.decode(sealed(msgspec.json.encode({**fields, "event": old, "origin": origin})[:-1]))
    assert read.origin == origin
    stalled = kinds.event_of(read.kind, read.event)
    assert stalled == ProgressStalled(0, 130.0, 120.0, (RankObservation(3, "n1", "T", 7, 0.0),))


def test_a_line_of_a_newer_gangrun_is_not_guessed_at() -> None:
    newer = sealed(msgspec.json.encode({"v": wire.SCHEMA + 1, "something": "new"})[:-1])
    with pytest.raises(NewerSchema, match=f"schema {wire.SCHEMA + 1} is newer"):
        wire.decode(newer)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    for line in (data, sealed(data)):
        with suppress(RecordError):
            wire.decode(line)


@given(st.integers(0, len(LINE) - 2), st.integers(1, 255))
def test_one_flipped_byte_is_always_seen(at: int, by: int) -> None:
    hurt = bytearray(LINE)
    hurt[at] ^= by
    with pytest.raises(RecordError):
        wire.decode(bytes(hurt))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.dictionaries(
    st.sampled_from([*RunState.__slots__, "attempt", "step", "exit", "checkpoint", "node", "since", "x"]),
    json_values,
    max_size=5,
)


@given(st.sampled_from([*kinds._EVENTS, *kinds._ACTIONS, "Nonsense"]), fields)
def test_any_shape_is_an_event_or_an_action_or_refused(kind: str, data: dict[str, Any]) -> None:
    for read in (kinds.event_of, kinds.action_of):
        with suppress(RecordError):
            read(kind, data)


@given(fields)
def test_any_patch_gives_a_state_or_is_refused(patch: dict[str, Any]) -> None:
    whole = wire.snapshot(RunState(run="r", shape=Shape(1, 1, 1, 1)))
    records = [
        Record(1, 1, 0, 0.0, 0.0, "Snapshot", patch=whole),
        Record(1, 1, 1, 0.0, 0.0, "NodeSilent", patch=patch),
    ]
    with suppress(RecordError):
        assert wire.replay(records) is not None


def test_events_and_actions_come_back_as_they_were() -> None:
    died = RankExited(3, RankExit(1, "n1", None, 9, True, False, None, 4.5))
    assert kinds.event_of("RankExited", wire.builtins(died)) == died
    error = ErrorReport("RuntimeError", "save failed", "s", "Traceback ...", False, ("OSError: [Errno 28] full: '/a'",))
    raised = RankExited(3, RankExit(1, "n1", 1, error=error, at=4.5, tail=("a", "RuntimeError: x"), written_at=4.25))
    assert kinds.event_of("RankExited", wire.sparse(raised)) == raised
    older = {"kind": "RuntimeError", "message": "save failed", "signature": "s", "traceback": "Traceback ..."}
    plain = {"attempt": 3, "exit": {"rank": 1, "node": "n1", "code": 1, "error": older, "at": 4.5}}
    of_older = RankExit(1, "n1", 1, error=replace(error, chain=()), at=4.5)
    assert kinds.event_of("RankExited", plain) == RankExited(3, of_older), "an older journal has none of these fields"
    start = StartGang(1, seated(["n0", "n1"], Shape(2, 2, 2, 1)), CheckpointRef(4, "/c/step-4", Level.VERIFIED))
    written = kinds.act(start, 7)
    assert (written.kind, written.n) == ("StartGang", 7)
    assert kinds.action_of(written.kind, written.args) == start
    with pytest.raises(RecordError, match="unknown event 'CheckNodes'"):
        kinds.event_of("CheckNodes", wire.builtins(CheckNodes(("n0",))))
    with pytest.raises(RecordError, match="action SubmitSuccessor"):
        kinds.action_of("SubmitSuccessor", {"seq": "one"})
    assert kinds.action_of("SubmitSuccessor", {"seq": 1, "exclude": ["n1"], "reason": "x"}) == SubmitSuccessor(
        1, ("n1",), "x"
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not_come_in_nowhere_and_make_nothing_unreadable(number: float) -> None:
    with pytest.raises(RecordError, match=r"NodeSilent.*infinite"):
        kinds.event_of("NodeSilent", {"node": "n1", "since": number})
    with pytest.raises(RecordError, match="infinite"):
        kinds.event_of("ProgressStalled", {"attempt": 0, "observations": [{"cpu_rate": number}, ("x", number)]})
    state = RunState(run="r", shape=Shape(1, 1, 1, 1), updated_at=number)
    snapshot = Record(1, 1, 0, 0.0, 0.0, "Snapshot", patch=wire.snapshot(state))
    back = wire.replay([wire.decode(wire.encode(snapshot))])
    assert back is not None
    assert math.isfinite(back.updated_at)


def test_a_file_name_that_is_not_utf8_does_not_stop_the_journal() -> None:
    seen = CheckpointSeen(CheckpointRef(4, "/c/\udcff/step-4", Level.COMPLETE))
    line = wire.encode(Record(1, 1, 1, 0.0, 0.0, "CheckpointSeen", event=wire.builtins(seen)))
    assert wire.decode(line).event["checkpoint"]["path"] == "/c/\\udcff/step-4"


def test_a_patch_holds_what_changed_and_what_went() -> None:
    life = Life().launching(saved(4))
    before = life.state
    assert wire.diff(before, before) == {}
    life.on(NodeSilent("n1", 1.0))
    assert set(wire.diff(before, life.state)) == {"nodes", "updated_at"}
    assert set(wire.diff(before, life.state)["nodes"]) == {"n1"}
    life.exit(0)
    patch = wire.diff(before, life.state)
    assert patch["deadlines"]["start"] is None
    plain = wire.snapshot(before)
    after = wire.advance(plain, (Record(2, 1, 1, 0.0, 0.0, "RankExited", patch=patch),))
    assert after is not None and wire.state_of(after) == life.state
    assert wire.state_of(plain) == before, "the argument stays as it was"


def test_what_is_equal_has_not_changed_whatever_object_it_is_and_in_whatever_order() -> None:
    life = Life(2)
    life.join()
    state = life.state
    turned = dict(reversed([(name, replace(node)) for name, node in state.roster.nodes.items()]))
    same = {name: replace(node) for name, node in state.roster.nodes.items()}
    for nodes in (turned, same):
        equal = replace(state, shape=replace(state.shape), roster=replace(state.roster, nodes=nodes))
        assert wire.diff(state, equal) == {}


def test_the_journal_has_no_groups_and_its_names_stay() -> None:
    """Journals of earlier releases have these names, and so do patches of theirs."""
    names = """absent after alerts alone anomalies attempt attempt_step attempts best_step bringing brought_attempt
        budget cancelled_by checkpoint cleared condemned crashed_count data_changes deadlines divergences evidence
        excluded expected failure fence_nodes fence_until finished generation gone_at held hurried job leaving
        logged_step loss loss_rank marks measured_save_s move network nodes observed_step phase placement poisoned
        printed_step race race_back race_followed race_world_size reach ready_s reason refill_failed_at
        refill_failures_count refill_until refills refills_count refills_off reports resume resume_request run
        running_since savers saving seq shape slowing stage steps_told stopped store_stalled_since submitting
        suspected_at suspicion term total_steps trained_s tries_count updated_at waited_for_nodes"""
    state = Life().launching(saved(4)).state
    assert sorted(wire.snapshot(state)) == names.split()
    assert wire.snapshot(state)["checkpoint"]["step"] == 4
    least = {"run": "r", "shape": wire.builtins(Shape(1, 1, 1, 1))}
    assert wire.state_of({**least, "of_a_later_release": 1}) == RunState("r", Shape(1, 1, 1, 1))


def test_replay_begins_at_the_newest_snapshot() -> None:
    state = first_state(RunState(run="r", shape=Shape(1, 1, 1, 1)), 1.0, Policy())
    snapshot = Record(1, 1, 0, 0.0, 0.0, "Snapshot", patch=wire.snapshot(state))
    patched = Record(1, 1, 1, 0.0, 0.0, "NodeSilent", patch={"attempt": 5, "marks": {"n0": ["i", 3]}})
    silent = Record(1, 1, 2, 0.0, 0.0, "NodeHeard")
    assert wire.replay([]) is None
    assert wire.replay([patched]) is None
    later = wire.replay([patched, snapshot, patched, silent])
    assert later is not None
    assert (later.attempt.number, later.marks) == (5, {"n0": ("i", 3)})
    assert wire.replay([snapshot, patched, snapshot]) == state
    with pytest.raises(RecordError, match="snapshot"):
        wire.replay([Record(1, 1, 0, 0.0, 0.0, "Snapshot", patch={"run": 7})])
    with pytest.raises(RecordError, match="nodes does not fit"):
        wire.replay([snapshot, Record(1, 1, 1, 0.0, 0.0, "x", patch={"nodes": None})])


def test_every_event_has_a_name_in_the_journal() -> None:
    assert Stamped(NodeSilent("n0", 1.0)).origin is None
    assert {"NodeSilent", "TermTaken"} <= set(kinds._EVENTS)
    assert {"StartGang", "EndJob"} <= set(kinds._ACTIONS)


# ---- what a snapshot carries of the terms before it ----


def snapshot_of(event: dict[str, Any]) -> Record:
    return Record(2, 5, 0, 0.0, 0.0, "Snapshot", event)


def test_a_snapshot_carries_what_a_successor_needs_of_all_terms_before_it() -> None:
    carried = wire.Inherited(7, 6, ("n3",))
    records = (snapshot_of(wire.builtins(carried)), Record(2, 5, 1, 1.0, 1.0, "NodeLost", {"node": "n1"}))
    assert wire.inherited(records) == carried
    assert wire.History(records).lost() == ("n1", "n3")
    assert wire.History(records, ("half of it cannot be read",)).lost() is None
    assert wire.History((snapshot_of(wire.builtins(wire.Inherited(7, 6, None))),)).lost() is None


def test_a_snapshot_of_an_older_gangrun_carries_nothing() -> None:
    older = (snapshot_of({}), Record(2, 5, 1, 1.0, 1.0, "NodeLost", {"node": "n1"}))
    assert wire.inherited(older) is None and wire.inherited(older[1:]) is None and wire.inherited(()) is None
    assert wire.History(older).lost() == ("n1",)


# ---- records carry what is new ----


def written(life: Life, event: Any, origin: Origin | None = None, n: int = 1) -> Record:
    """The record of one event, as a supervisor writes it."""
    before = life.state
    life.on(event, origin=origin)
    said = None if origin is None else wire.told_of(origin)
    record = Record(wire.SCHEMA, 1, n, life.now, life.now, type(event).__name__, wire.sparse(event), said)
    return wire.decode(wire.encode(msgspec.structs.replace(record, patch=wire.change(before, life.state, record))))


def test_a_record_has_what_is_new_and_nothing_twice() -> None:
    life = Life(ranks=8).running(saved(4))
    plain: dict[str, Any] | None = wire.snapshot(life.state)
    first = wire.snapshot(life.state)
    node = life.state.roster.nodes["n0"]
    origins = [Origin(life.state.job, "n0", node.boot_id, node.incarnation, seq) for seq in (1, 2, 3)]
    records = []
    for rank, origin in enumerate(origins):
        records.append(written(life, life.died(rank), origin))
        plain = wire.advance(plain, records[-1:])
        assert plain is not None and wire.state_of(plain) == life.state
    assert records[-1].patch == {"evidence+": {"exits+": "event"}}
    assert records[-1].event == {
        "attempt": 0,
        "exit": {"rank": 2, "node": "n0", "code": 1, "at": life.died(2).exit.at - 0.1},
    }
    repeated = written(life, life.died(2), origins[-1])
    assert repeated.patch == {"marks": {}, "updated_at": life.state.updated_at}, "counted before: nothing changes"
    assert wire.advance(plain, (repeated,)) == plain
    assert first == wire.snapshot(Life(ranks=8).running(saved(4)).state), "what was given stays as it was"


def test_what_grows_is_cut_where_it_begins_to_differ() -> None:
    state = Life(ranks=8).running(saved(4)).state
    exits = tuple(RankExit(rank, "n0", 1) for rank in range(4))
    finding = NodeFinding("n0", "gpu", True, "broken")
    steps = [
        Evidence(exits=exits[:2], silent={"n0": 1.0}),
        Evidence(exits=exits, silent={"n0": 1.0, "n1": 2.0}, findings=(finding,), hang=Hang(1.0, 2.0, ())),
        Evidence(
            exits=(exits[0], exits[2]), silent={"n1": 2.0}, hang=Hang(1.0, 2.0, (), (RankStack(0, "n0", "f", ""),))
        ),
        Evidence(),
    ]
    plain: dict[str, Any] | None = wire.snapshot(state)
    for evidence in steps:
        after = replace(state, attempt=replace(state.attempt, evidence=evidence, finished=Ranks.of(range(len(exits)))))
        patch = wire.diff(state, after)
        plain = wire.advance(plain, (Record(wire.SCHEMA, 1, 1, 0.0, 0.0, "Looking", patch=patch),))
        assert plain is not None and wire.state_of(plain) == after
        state = after
    finished = replace(state, attempt=replace(state.attempt, finished=state.attempt.finished.added(9)))
    assert wire.diff(state, finished) == {"finished+": [9]}
    assert wire.diff(finished, replace(finished, attempt=replace(finished.attempt, finished=Ranks()))) == {
        "finished": []
    }


def test_ranks_that_ended_are_ranges_and_were_numbers() -> None:
    """Schema 3 had each number; records of any schema add to what is there."""
    state = Life(ranks=8).running(saved(4)).state
    many = replace(state, attempt=replace(state.attempt, finished=Ranks.of((0, 1, 2, 5))))
    assert wire.snapshot(many)["finished"] == [[0, 2], 5] and wire.diff(state, many) == {"finished+": [[0, 2], 5]}
    for written in ([0, 1, 2, 5], [[0, 2], 5]):
        first = Record(3, 1, 0, 0.0, 0.0, "Snapshot", patch={**wire.snapshot(state), "finished": written})
        later = wire.replay([first, Record(3, 1, 1, 0.0, 0.0, "RankFinished", patch={"finished+": [3]})])
        assert later is not None and later.attempt.finished == {0, 1, 2, 3, 5}
    for broken in (["x"], [[1]], 7):
        with pytest.raises(RecordError, match="snapshot"):
            wire.state_of({**wire.snapshot(state), "finished": broken})


def test_a_journal_of_the_schema_before_is_read_as_it_was() -> None:
    """Its patches hold lists whole, and what a record says of its origin is in them or did not happen."""
    life = Life(ranks=8).running(saved(4))
    records = [Record(2, 1, 0, 0.0, 0.0, "Snapshot", patch=wire.snapshot(life.state))]
    for rank in range(3):
        before = life.state
        life.exit(rank)
        patch = {name: wire.snapshot(life.state)[name] for name in ("evidence", "phase", "reason", "updated_at")}
        patch |= {key: value for key, value in wire.diff(before, life.state).items() if not key.endswith("+")}
        said = {"job": "j1", "node": "n0", "boot_id": "b", "incarnation": "i9", "seq": rank}
        records.append(Record(2, 1, rank + 1, 0.0, 0.0, "RankExited", {}, said, patch=patch))
    assert wire.replay(records) == life.state


def test_a_patch_that_does_not_fit_is_refused() -> None:
    plain = wire.snapshot(Life().running().state)
    for patch in ({"attempts+": 7}, {"evidence+": {"exits+": {"from": "x"}}}, {"run+": [1]}):
        with pytest.raises(RecordError, match="does not fit"):
            wire.advance(plain, (Record(wire.SCHEMA, 1, 1, 0.0, 0.0, "Looking", patch=patch),))
    assert wire.advance(None, (RECORD,)) is None


def placed(nodes: Sequence[str], slots_count: int = 1, ranks_count: int = 4) -> Placement:
    """As many slots on each node, and ranks in each slot."""
    slots = [Slot(node, index) for node in nodes for index in range(slots_count)]
    seats = tuple(Seat(slot, k * ranks_count, ranks_count) for k, slot in enumerate(slots))
    return Placement(seats, len(seats) * ranks_count)


MANY = [f"node{number:04}" for number in range(1, 4097)]
UNEVEN = Placement((Seat(Slot("n1", 0), 0, 2), Seat(Slot("n2", 0), 2, 1)), 3)


@pytest.mark.parametrize(
    ("placement", "nodes"),
    [
        (placed(MANY), "node[0001-4096]"),
        (placed(["n0", "n1"], slots_count=8, ranks_count=1), "n[0-1]"),
        (placed([*MANY[:9], "node4097", *MANY[10:]]), "node[0001-0009,4097],node[0011-4096]"),
        (placed(["b", "a,b"]), None),
        (placed(["n1", "n[2"]), None),
        (UNEVEN, None),
        (Placement((Seat(Slot("n1", 0), 0, 2), Seat(Slot("n1", 2), 2, 2)), 4), None),
        (Placement((Seat(Slot("n1", 0), 0, 2), Seat(Slot("n2", 0), 2, 2)), 5), None),
        (Placement((Seat(Slot("n1", 0), 0, 1), Seat(Slot("n2", 0), 1, 1), Seat(Slot("n2", 1), 2, 1)), 3), None),
        (Placement((), 0), None),
    ],
)
def test_a_placement_is_written_as_a_folded_list_if_that_says_all(placement: Placement, nodes: str | None) -> None:
    plain = wire.plain_placement(placement)
    assert plain.get("nodes") == nodes
    state = replace(RunState("r", Shape(1, 1, 1, 1)), attempt=Attempt(placement=placement))
    assert wire.state_of(wire.snapshot(state)) == state
    before = RunState("r", Shape(1, 1, 1, 1))
    patch = wire.diff(before, state)
    assert patch["placement"] == plain
    assert wire.state_of({**wire.snapshot(before), **patch}).attempt.placement == placement
    action = StartGang(1, placement, None)
    written = kinds.act(action, 1)
    assert kinds.action_of(written.kind, written.args) == action
    assert nodes is None or len(msgspec.json.encode(written)) < 250


def test_a_placement_of_an_older_journal_lists_every_seat() -> None:
    old = {**wire.snapshot(RunState("r", Shape(1, 1, 1, 1))), "placement": wire.builtins(placed(["n1", "n2"]))}
    assert wire.state_of(old).attempt.placement == placed(["n1", "n2"])


def test_nodes_of_a_placement_that_are_no_list_are_told() -> None:
    damaged = {"nodes": "n[1", "slots": 1, "ranks": 1}
    with pytest.raises(RecordError, match=r"placement: .*bracket"):
        wire.state_of({**wire.snapshot(RunState("r", Shape(1, 1, 1, 1))), "placement": damaged})
    with pytest.raises(RecordError, match="placement: "):
        kinds.action_of("StartGang", {"attempt": 1, "placement": damaged, "resume": None})
