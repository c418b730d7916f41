"""A run's time by class: it sums to the whole, for run and nodes, and the useful part is what was trained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import mark_cancelled
from gangrun.core.events import CheckpointSeen, FirstStepSeen, NodeLost, ProgressMarked
from gangrun.core.model import CheckpointRef, Level
from gangrun.core.text import SAVE_TIMES
from gangrun.planning.accounts import TimeUse
from gangrun.runs import report
from gangrun.runs.ledger import Ledger, account_of, ledger_of, steps_kept
from gangrun.runs.report import Flops, failures_by_cause, node_failures, report_of
from gangrun.runs.snapshot import read
from gangrun.runs.status import status_of
from gangrun.sim import FaultPlan, Kind, Script, Setup, World
from gangrun.sim.sweep import failing
from gangrun.wire.record import Record
from gangrun.wire.saves import SavesTold, encode
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.stories import failed, fall, restarted, succeeded

ENDS = ("SUCCEEDED", "FAILED", "CANCELLED")


def ms(record: Record) -> int:
    return round(1000 * record.at)


def job_spans(records: list[Record]) -> dict[str, tuple[int, int]]:
    """When each job held the run, from the journal alone."""
    found: dict[str, tuple[int, int]] = {}
    job = ""
    for record in records:
        if record.kind == "TermTaken" and record.outcome == "applied":
            job = record.event["job"]
            found.setdefault(job, (ms(record), ms(record)))
        if job:
            found[job] = found[job][0], ms(record)
            ended = record.outcome == "applied" and any(act.kind == "EndJob" for act in record.actions)
            job = "" if ended or record.phase in ENDS else job
    return found


def members(records: list[Record]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    job = ""
    for record in records:
        if record.outcome != "applied":
            continue
        if record.kind == "TermTaken":
            job = record.event["job"]
        if record.kind in {"AgentJoined", "AgentRejoined"}:
            found.setdefault(job, set()).add(record.event["node"])
    return found


def sums_hold(records: list[Record], state, wanted_count: int) -> Ledger:
    found = ledger_of(records, state, wanted_count=wanted_count)
    assert all(took > 0 for took in found.run_ms.values())
    over = next((ms(one) for one in records if one.outcome == "applied" and one.phase in ENDS), ms(records[-1]))
    assert found.whole_ms == over - ms(records[0]), found.run_ms
    spans, of_job = job_spans(records), members(records)
    for node in set().union(*of_job.values()) if of_job else ():
        whole = sum(spans[job][1] - spans[job][0] for job, nodes in of_job.items() if node in nodes)
        assert sum(found.nodes_ms.get(node, {}).values()) == whole, (node, found.nodes_ms)
    assert found.queued_node_ms == found.run_ms.get(TimeUse.QUEUE, 0) * wanted_count
    return found


def test_classes_sum_to_the_whole_whatever_fails() -> None:
    seen: set[TimeUse] = set()
    for seed in range(30):
        world = failing(seed)
        took = world.run()
        assert took.state is not None
        found = sums_hold(world.checker.records, took.state, 2)
        seen |= found.run_ms.keys() | {use for times in found.nodes_ms.values() for use in times}
    assert seen >= {
        TimeUse.USEFUL,
        TimeUse.LOST,
        TimeUse.PREFLIGHT,
        TimeUse.LOADING,
        TimeUse.COMPILE,
        TimeUse.STOPPING,
        TimeUse.IDLE_SPARE,
    }


def test_classes_sum_to_the_whole_whatever_nodes_and_networks_do() -> None:
    seen: set[TimeUse] = set()
    for seed in range(12):
        world = World(
            Setup.of(4, script=Script(steps_count=120), requeue=True), FaultPlan.random(seed, 4, 4, 60.0), seed
        )
        took = world.run()
        assert took.state is not None
        found = sums_hold(world.checker.records, took.state, 4)
        seen |= found.run_ms.keys() | {use for times in found.nodes_ms.values() for use in times}
    assert seen >= {TimeUse.QUEUE, TimeUse.NOTICING, TimeUse.WAITING, TimeUse.START_UP, TimeUse.UNUSABLE}


def run_world(kind: Kind, **changed: object) -> tuple[World, Ledger]:
    usual = Setup.of(4, script=Script(steps_count=150, victims_after_s=300.0))
    setup = replace(usual, **{"spares_count": 1, "pool_count": 5, **changed})  # type: ignore[arg-type]
    world = World(setup, FaultPlan().fail_at(40.0, kind, node=1, rank=1), 3)
    took = world.run()
    assert took.state is not None and took.state.phase.value == "SUCCEEDED"
    return world, sums_hold(world.checker.records, took.state, 4)


@pytest.mark.parametrize("kind", [Kind.KILL_NODE, Kind.KILL_RANK])
def test_what_is_useful_is_what_the_steps_took(kind: Kind) -> None:
    """150 steps of a second, with a save of 0.3 s after every tenth."""
    _, found = run_world(kind)
    assert found.run_ms[TimeUse.USEFUL] / 1000 == pytest.approx(150 + 15 * 0.3, abs=5)
    assert 1 <= found.run_ms[TimeUse.LOST] / 1000 <= 12  # since the newest save
    spare = found.nodes_ms["n0004"]
    if kind is Kind.KILL_RANK:
        assert set(found.nodes_ms) == {f"n{k:04d}" for k in range(5)}
        assert spare[TimeUse.IDLE_SPARE] >= found.run_ms[TimeUse.USEFUL]
    else:
        dead = found.nodes_ms["n0001"]
        assert dead[TimeUse.UNUSABLE] / 1000 > 100 and TimeUse.UNUSABLE not in spare
        assert 1 <= found.run_ms[TimeUse.NOTICING] / 1000 <= 6
        assert spare[TimeUse.USEFUL] / 1000 > 100


def test_a_window_is_the_end_of_the_ledger() -> None:
    world, whole = run_world(Kind.KILL_RANK)
    state, records = world.checker.replayed(), world.checker.records
    assert state is not None
    last = ledger_of(records, state, wanted_count=4, window_ms=30_000)
    assert last.whole_ms == 30_000 and last.until_ms == whole.until_ms
    assert last.useful_share is not None and last.useful_share > 0.9  # it trained to its end
    assert ledger_of(records, state, wanted_count=4, window_ms=10**9).run_ms == whole.run_ms
    assert ledger_of([], state, wanted_count=4).useful_share is None


@pytest.mark.parametrize("kind", [Kind.KILL_NODE, Kind.KILL_RANK])
def test_each_step_of_a_run_that_ended_well_counts_once(kind: Kind) -> None:
    world, found = run_world(kind)
    state = world.checker.replayed()
    assert state is not None and len(state.attempts) == 2
    kept = steps_kept(state, state.attempt.step)
    assert sum(kept.values()) == 151 and all(kept.values()), "step 0 is told before the first of 150 is trained"
    account = account_of(world.checker.records, state)
    assert account.steps_since(account.began_ms, kept) == pytest.approx(151)
    assert account.steps_since(account.until_ms, kept) == 0
    assert 10 < account.steps_since(account.until_ms - 30_000, kept) <= 31  # a step of a second, and saves
    assert account.gpu_ms(account.began_ms, account.until_ms, tuple(TimeUse), 4) == found.whole_ms * 4
    useful_ms = found.run_ms[TimeUse.USEFUL]
    assert account.gpu_ms(account.began_ms, account.until_ms, (TimeUse.USEFUL,), 4) == useful_ms * 4


def test_an_older_checkpoint_takes_steps_of_several_attempts_back(runs) -> None:
    """Attempt 0 does steps 0 to 31, attempt 1 goes on from 20 to 40, attempt 2 from 10 to 15."""
    story = restarted(runs)
    story.on(ProgressMarked(1, 40), 30)
    fall(story).again(CheckpointRef(10, "/ckpt/step-10", Level.VERIFIED)).on(ProgressMarked(2, 15), 5)
    assert steps_kept(story.state, 15) == {0: 11, 1: 0, 2: 5}
    assert steps_kept(story.state, 17) == {0: 11, 1: 0, 2: 7}, "news that the journal does not have yet"


def lost_share(story: Builder, attempt: int) -> float:
    """Of what an attempt trained."""
    account = account_of(read(story.paths, timeline=True).records, story.state)
    spent = Counter[TimeUse]()
    for one in account.segments:
        if one.at.attempt == attempt and one.at.use is not None:
            spent[one.at.use] += one.ended_ms - one.began_ms
    return spent[TimeUse.LOST] / (spent[TimeUse.LOST] + spent[TimeUse.USEFUL])


def test_what_an_older_checkpoint_takes_back_is_lost_of_each_attempt(runs) -> None:
    """Attempt 0 does steps 0 to 31, attempt 1 goes on from 20 to 40, attempt 2 from 10."""
    story = restarted(runs)
    story.on(ProgressMarked(1, 40), 30)
    assert lost_share(story, 0) == pytest.approx(11 / 32, abs=0.01)
    fall(story).again(CheckpointRef(10, "/ckpt/step-10", Level.VERIFIED)).on(ProgressMarked(2, 15), 5)
    assert lost_share(story, 0) == pytest.approx(21 / 32, abs=0.01)
    assert lost_share(story, 1) == 1.0


def test_an_attempt_that_came_to_no_step_takes_nothing_back(runs) -> None:
    """The script decides by itself where it goes on; attempt 1 falls before it tells, attempt 2 goes on from 20."""
    story = Builder(runs, reports=False).supervisor().up().on(FirstStepSeen(0, 0), 1).on(ProgressMarked(0, 31), 31)
    fall(story).again(None).exit(2, signal=9)
    for rank in (0, 1, 3):
        story.exit(rank, signal=15, by_us=True)
    story.stopped().again(None).on(FirstStepSeen(2, 21), 1).on(ProgressMarked(2, 40), 20)
    assert lost_share(story, 0) == pytest.approx(11 / 32, abs=0.01)
    assert steps_kept(story.state, 40) == {0: 21, 1: 0, 2: 20}


def test_a_save_whose_step_is_not_known_keeps_a_share_of_the_steps(runs) -> None:
    story = Builder(runs).supervisor().up()
    began = story.state.attempts[0].started
    timed = round(1000 * (began + 60))
    assert timed in SAVE_TIMES
    story.on(FirstStepSeen(0, 0), 1).on(ProgressMarked(0, 29), 59)
    story.on(CheckpointSeen(CheckpointRef(timed, "/ckpt/latest", Level.COMPLETE)), 1).on(ProgressMarked(0, 59), 59)
    fall(story).again(CheckpointRef(timed, "/ckpt/latest", Level.COMPLETE)).on(FirstStepSeen(1, 30), 1)
    story.on(ProgressMarked(1, 59), 60)
    assert steps_kept(story.state, story.state.attempt.step) == {0: 30, 1: 0}
    assert steps_kept(story.state, 59) == {0: 30, 1: 30}, "as the figures beside the journal tell"


def test_mfu_counts_each_step_once_and_is_larger_over_useful_time(runs, gangrun: Call) -> None:
    story = failed(runs)  # steps 0 to 31, then 21 to 31, of which 0 to 20 are kept; 4 ranks
    page = gangrun("report", story.run, "--step-flops", "100T", "--gpu-flops", "25 tflops", "--window", "1h")
    found = gangrun(
        "report", story.run, "--step-flops", "1e14", "--gpu-flops", "2.5e13", "--window", "1h", "--json"
    ).json
    mfu, useful_s = found["mfu"], next(one["run_s"] for one in found["uses"] if one["use"] == "useful")
    assert (mfu["steps"], mfu["step_flops"], mfu["gpu_flops"]) == (21, 1e14, 2.5e13)
    assert mfu["whole"] == pytest.approx(21 / found["whole_s"]) == pytest.approx(mfu["window"])
    assert mfu["useful"] == pytest.approx(21 / useful_s)
    shares = [f"{100 * mfu[name]:.1f} %" for name in ("whole", "window", "useful")]
    words = f"MFU {shares[0]} of all time; {shares[1]} of the last 1 h; {shares[2]} of useful time (21 steps kept)"
    assert words in " ".join(page.out.split()), page.out
    assert "MFU" not in gangrun("report", story.run).out
    assert gangrun("report", story.run, "--json").json["mfu"] is None


def test_the_window_of_mfu_has_only_its_own_steps(runs) -> None:
    reading = read(failed(runs).paths, timeline=True)
    whole_s = report_of(reading, None, None).whole_s
    over_all = report_of(reading, 10 * whole_s, None, Flops(1.0, 1.0)).mfu
    recent = report_of(reading, 20.0, None, Flops(1.0, 1.0)).mfu
    assert over_all is not None and over_all.window == over_all.whole
    assert recent is not None and recent.window == 0, "all that it did in the end is lost"
    assert recent.whole == over_all.whole


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--step-flops", "1e15"), "--step-flops gives the MFU only together with --gpu-flops"),
        (("--gpu-flops", "989T"), "--gpu-flops gives the MFU only together with --step-flops"),
        (("--step-flops", "many", "--gpu-flops", "1T"), "--step-flops: 'many' is not a number of FLOPs"),
        (("--step-flops", "0", "--gpu-flops", "1T"), "--step-flops: '0' must be more than 0, and finite"),
        (("--step-flops", "1e999", "--gpu-flops", "1T"), "must be more than 0, and finite"),
        (("--all", "--step-flops", "1e15", "--gpu-flops", "1T"), "--all adds up every run"),
    ],
)
def test_half_of_what_mfu_needs_is_refused(runs, gangrun: Call, given: tuple[str, ...], said: str) -> None:
    story = restarted(runs)
    took = gangrun("report", *([] if "--all" in given else [story.run]), *given)
    assert took.code == 2 and said in took.err


def test_moves_and_preemptions_are_no_failures() -> None:
    for seed in range(30):
        world = failing(seed)
        state = world.run().state
        assert state is not None
        other = {"moved", "grown", "requeued", "not started", "job ended", "succeeded", "cancelled", ""}
        assert other.isdisjoint(failures_by_cause(state))
        counted = sum(failures_by_cause(state).values()) + sum(one.outcome in other for one in state.attempts)
        assert counted == len(state.attempts)


def test_what_a_failed_run_did_after_its_newest_checkpoint_is_lost(runs) -> None:
    reading = read(failed(runs).paths, timeline=True)
    assert reading.state is not None
    found = sums_hold(list(reading.records), reading.state, 2)
    # attempt 0 trained steps 0 to 31 in 91 s, and attempt 1 steps 21 to 31; of both only up to step 20 was kept
    assert found.run_ms[TimeUse.USEFUL] / 1000 == pytest.approx(90 * 21 / 32, abs=1)
    assert found.run_ms[TimeUse.LOST] / 1000 == pytest.approx(90 * 11 / 32 + 30, abs=2)


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize(("began_again_at", "kept_steps_count"), [(21, 21), (0, 0), (1, 1)])
def test_a_script_that_resumes_by_itself_has_lost_what_it_repeats(
    runs, began_again_at: int, kept_steps_count: int, printed: bool
) -> None:
    """Nobody told it a checkpoint: its first step tells where it went on. Steps that begin anew tell nothing else."""
    story = Builder(runs, reports=False).supervisor().up()
    story.on(FirstStepSeen(0, 0, printed=printed), 1).on(ProgressMarked(0, 31, printed=printed), 90)
    fall(story).again().on(FirstStepSeen(1, began_again_at, printed=printed), 1)
    reading = read(story.paths, timeline=True)
    assert reading.state is not None
    found = sums_hold(list(reading.records), reading.state, 2)
    assert found.run_ms[TimeUse.LOST] / 1000 == pytest.approx(90 * (1 - kept_steps_count / 32), abs=3)
    assert status_of(reading, story.now).lost_s == pytest.approx(found.run_ms[TimeUse.LOST] / 1000, abs=12)


def test_a_resumed_run_does_not_count_the_time_between(runs) -> None:
    story = failed(runs)
    before = ledger_of(read(story.paths, timeline=True).records, story.state, wanted_count=2)
    story.now += 5000
    story.job = "local-box-2-2"
    story.supervisor()
    reading = read(story.paths, timeline=True)
    assert reading.state is not None
    assert ledger_of(reading.records, reading.state, wanted_count=2).whole_ms - before.whole_ms <= 2000


def test_a_node_that_is_lost_and_then_excluded_failed_once(runs) -> None:
    story = Builder(runs).supervisor().up()
    story.on(NodeLost("n1", story.now - 5, "its lease is over"), 5).stopped()
    found = list(node_failures(read(story.paths, timeline=True).records))
    assert found == [("n1", "its lease is over")]


def test_a_report_sums_up_and_prices(runs, gangrun: Call) -> None:
    story = restarted(runs)
    found = gangrun("report", story.run, "--gpu-hour-price", "3", "--window", "1h", "--json").json
    assert sum(one["run_s"] for one in found["uses"]) == pytest.approx(found["whole_s"])
    paid = [one for one in found["uses"] if one["use"] != "queue"]
    assert sum(one["node_s"] for one in paid) == pytest.approx(found["node_s"])
    assert sum(one["whole_s"] for one in found["nodes"]) == pytest.approx(found["node_s"])
    assert found["gpu_h"] == pytest.approx(found["node_s"] * 2 / 3600)
    assert found["cost"] == pytest.approx(3 * found["gpu_h"]) == pytest.approx(sum(one["cost"] for one in paid))
    assert found["window"]["ettr"] == pytest.approx(found["ettr"])
    assert found["failures"] == {"rank error": 1} and found["recoveries"] == 1
    assert found["saved_gpu_h"] == pytest.approx(4 * 40 / 60, rel=0.02)
    page = gangrun("report", story.run, "--gpu-hour-price", "3").out
    assert "failures    1 (1 rank error)" in page and "\nuseful " in page and "The run goes on" in page
    assert "$" not in gangrun("report", story.run).out


def test_all_runs_together_name_causes_and_nodes(runs, gangrun: Call) -> None:
    restarted(runs)
    succeeded(runs, run="20261118-110641-other")
    story = Builder(runs, run="20261118-110642-third").supervisor().up()
    story.on(NodeLost("n1", story.now - 5, "its lease is over"), 5).stopped()
    broken = Builder(runs, run="20261118-110643-torn").supervisor()
    broken.paths.journal(1).write_bytes(b"torn\n")
    found = gangrun("report", "--all", "--json").json
    assert {one["run"] for one in found["runs"]} >= {"20261118-110640-abcde", "20261118-110642-third"}
    assert [one["node"] for one in found["nodes"]] == ["n1"] and found["nodes"][0]["times"] == 1
    causes = {one["cause"]: one["failures"] for one in found["causes"]}
    assert causes["rank error"] == 1
    assert found["node_mtbf_s"] == pytest.approx(found["node_s"] / sum(causes.values()))
    assert {one["kind"]: one["failures"] for one in found["kinds"]} == {"program": 1, "node": 1}
    assert all(one["node_mtbf_s"] == pytest.approx(found["node_s"] / one["failures"]) for one in found["kinds"])
    (lost,) = found["nodes"]
    held = sum(
        one["whole_s"]
        for run in found["runs"]
        for one in gangrun("report", run["run"], "--json").json["nodes"]
        if one["node"] == "n1"
    )
    assert lost["held_s"] == pytest.approx(held) and held > 0
    assert (found["recoveries"], found["saved_cost"]) == (1, None)
    assert found["saved_gpu_h"] == pytest.approx(4 * 40 / 60, rel=0.02)
    assert len(found["unreadable"]) == 1 and "20261118-110643-torn" in found["unreadable"][0]
    page = gangrun("report", "--all", "--gpu-hour-price", "3").out
    assert "rank error" in page and "not counted, because they cannot be read:" in page
    words = " ".join(page.split())
    assert "2.7 GPU-hours, $7.97: 1 recovery, compared with restarts by hand (40 min each)" in words
    assert "whose failures one per node in" in words and "node times once in lost or excluded, because n1 1 " in words
    assert gangrun("report", "--all", "--window", "1h").code == 2


def test_every_cause_is_of_a_kind_and_no_run_saves_nothing(runs, gangrun: Call) -> None:
    assert report._KIND_OF.keys() == report.FAILURE_OUTCOMES
    assert "saved       nothing yet" in gangrun("report", "--all").out


def test_a_run_that_was_killed_by_its_cancel_does_not_go_on(runs, gangrun: Call) -> None:
    story = Builder(runs).supervisor().up()
    mark_cancelled(Disk(), story.paths, "eve", 0.0)
    said = gangrun("report").out
    assert "(train), CANCELLED" in said
    assert "The run goes on" not in said
    assert gangrun("report", "--all", "--json").json["runs"][0]["state"] == "CANCELLED"


def test_a_run_without_a_journal_says_so(runs, gangrun: Call) -> None:
    story = Builder(runs)
    said = gangrun("report", story.run)
    assert said.code == 3 and "no supervisor has begun" in said.err


def test_stalls_of_saves_are_taken_from_what_was_kept() -> None:
    world, before = run_world(Kind.KILL_RANK)
    state, records = world.checker.replayed(), world.checker.records
    assert state is not None
    found = ledger_of(records, state, wanted_count=4, stalled_ms={1: 3_300, 7: 5_000})
    assert found.run_ms[TimeUse.SAVING] == pytest.approx(3_300, abs=5)
    assert found.whole_ms == before.whole_ms and found.run_ms[TimeUse.LOST] == before.run_ms[TimeUse.LOST]
    for node, times in found.nodes_ms.items():
        assert sum(times.values()) == sum(before.nodes_ms[node].values())
        assert (TimeUse.SAVING in times) is (node != "n0004")  # a spare saves nothing
    half = ledger_of(records, state, wanted_count=4, stalled_ms={0: 10**9})
    assert half.run_ms[TimeUse.LOST] == before.run_ms[TimeUse.LOST]


def test_a_report_has_the_stalls_that_the_checkpointer_told(runs, tmp_path, gangrun: Call) -> None:
    story = restarted(runs, checkpoint_dir=str(tmp_path / "ckpt"))
    folder = tmp_path / "ckpt" / ".gangrun" / story.run
    folder.mkdir(parents=True)
    told = SavesTold(1, 0.0, 300.0, "", stalled=((0, 6.0),))
    (folder / "saves.json").write_bytes(encode(told))
    uses = {one["use"]: one["run_s"] for one in gangrun("report", story.run, "--json").json["uses"]}
    assert uses["checkpoint stall"] == pytest.approx(6.0 * uses["useful"] / (uses["useful"] + uses["lost"]), rel=0.2)
