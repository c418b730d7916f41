"""``gangrun status``: one run, all runs, as JSON and as a page, and what it says of runs that nobody holds."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from datetime import timezone
from pathlib import Path

import msgspec
import pytest

from gangrun.adapters.fs.journal import note_ranks
from gangrun.adapters.fs.run_dir import write_spec
from gangrun.core.events import CancelRequested, CheckpointSeen, ProgressMarked, StepHeld
from gangrun.core.model import CheckpointRef, Level, MemoryStep, Node, Phase, Refill, RefillStage
from gangrun.display.explain_page import explained
from gangrun.display.explain_page import page as explain_page
from gangrun.display.status_page import PageFormat, device_words, overview, page
from gangrun.runs.snapshot import read
from gangrun.runs.status import OwnerStatus, Status, SupervisorStatus, device_tests, status_of
from gangrun.wire.spec import CheckpointSpec
from tests.command_line import Call, golden
from tests.runs.builder import BEGAN, ERROR, Builder
from tests.runs.stories import cancelled, failed, fall, restarted, running, succeeded

LOOK = PageFormat(BEGAN + 3600, 100, zone=timezone.utc)


def frozen(story: Builder) -> Status:
    """A status without what differs from machine to machine."""
    status = status_of(read(story.paths), BEGAN)
    status.directory = status.directory.replace(str(story.paths.root.parent), "/runs")
    if status.owner:
        status.owner = OwnerStatus(job="local-box-1-1", host="HOST", pid=1, alive=True)
    return status


@pytest.mark.parametrize("life", [running, restarted, failed, succeeded, cancelled])
def test_the_json_is_what_the_page_about_it_says(runs: Path, life) -> None:
    text = json.dumps(msgspec.to_builtins(frozen(life(runs))), indent=2, sort_keys=True)
    golden(f"status-{life.__name__}.json", text + "\n")


@pytest.mark.parametrize("words", [[], ["--all"]])
def test_what_is_printed_keeps_to_the_schema(runs: Path, gangrun: Call, words: list[str]) -> None:
    restarted(runs)
    found = gangrun("status", "--json", *words).json
    assert msgspec.convert(found["runs"][0] if words else found, Status, strict=True).state == "RUNNING"


def test_a_full_file_system_is_told_while_the_run_goes_on(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, over = running(runs), succeeded(runs, run="20251118-110640-other")
    full = os.statvfs_result((4096, 4096, 100, 1, 1, 100, 100, 100, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    (note,) = status_of(read(alive.paths), BEGAN).notes
    assert note == f"the file system of {alive.paths.root} is full: nothing new is recorded until somebody frees space"
    told = " ".join(" ".join(page(status_of(read(alive.paths), BEGAN), LOOK)).split())
    assert f"! {note}" in told
    shown = " ".join(" ".join(explain_page(explained(read(alive.paths, timeline=True), BEGAN), LOOK)).split())
    assert f"! {note}" in shown, "it is nothing that the journal lacks"

    assert status_of(read(over.paths), BEGAN).notes == ()
    monkeypatch.undo()
    assert status_of(read(alive.paths), BEGAN).notes == ()


@pytest.mark.parametrize("columns", [80, 100])
def test_a_page_fits_the_terminal(runs: Path, columns: int) -> None:
    lines = page(frozen(failed(runs)), PageFormat(BEGAN + 3600, columns, zone=timezone.utc))
    golden(f"status-{columns}.txt", "\n".join(lines) + "\n")
    assert max(len(line) for line in lines) <= columns


@pytest.mark.parametrize(
    ("refill", "words"),
    [
        (Refill(1, 0.0), "1: Slurm is being asked for one node more"),
        (
            Refill(1, 0.0, RefillStage.QUEUED, "77", "Resources"),
            "1: job 77 waits in the queue for one node (Resources: ",
        ),
        (Refill(1, 0.0, RefillStage.QUEUED, "77", "Odd"), "1: job 77 waits in the queue for one node (Odd)"),
        (Refill(1, 0.0, RefillStage.QUEUED, "77"), "1: job 77 has its node, whose agent has not joined yet"),
        (Refill(1, 0.0, RefillStage.HERE, "77", "", "m0"), "1: job 77 brought m0"),
    ],
)
def test_a_page_says_where_a_refill_is(runs: Path, refill: Refill, words: str) -> None:
    story = running(runs)
    roster = replace(story.state.roster, refills=(refill,), refills_count=1)
    story.state = replace(story.state, roster=roster)
    story.supervisor(took_over=False)
    (line,) = [line for line in page(status_of(read(story.paths), BEGAN), LOOK) if line.startswith("  refill ")]
    assert line.removeprefix("  refill").strip().startswith(words)


def test_a_run_without_an_owner_is_said_to_be_abandoned(runs: Path, gangrun: Call) -> None:
    story = Builder(runs).supervisor().up().owner()
    status = gangrun("status", "--json").json
    assert status["abandoned"] is True
    assert status["state"] == Phase.RUNNING.value
    assert status["reason"] == story.state.reason
    page_said = gangrun("status").out
    assert "no process runs it any more" in page_said
    assert f"gangrun resume {story.run}" in " ".join(page_said.split())


def test_another_process_with_the_owners_number_is_not_the_owner(runs: Path, gangrun: Call) -> None:
    Builder(runs).supervisor().up().owner(pid=os.getpid(), ticks=1)
    assert gangrun("status", "--json").json["abandoned"] is True


def test_an_owner_elsewhere_is_not_called_dead(runs: Path, gangrun: Call) -> None:
    Builder(runs).supervisor().up().owner(host="another-host")
    status = gangrun("status", "--json").json
    assert status["abandoned"] is False
    assert status["owner"]["alive"] is None
    assert "has written nothing for" in gangrun("status").out


def test_live_figures_are_newer_than_the_journal_but_only_of_this_attempt(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    assert gangrun("status", "--json").json["step"] == 12
    assert gangrun("status", "--json").json["loss"] == 2.5
    story.live(
        step=13, loss="NaN", total_steps=1013, steps_per_s=2.5, grad_norm=0.5, tokens=10**6, tokens_per_s=20500.0
    )
    found = gangrun("status", "--json").json
    assert (found["loss"], found["eta_s"], found["tokens"]) == ("NaN", 400.0, 10**6)
    said = gangrun("status").out
    assert "step        13 of 1013, 2.5 steps/s, done in 6 min\n" in said
    assert "training    loss NaN, gradient norm 0.5, 20.5k tokens/s\n" in said
    story.live(step=13, standbys={"count": 3, "memory_bytes": 3 << 28, "nodes": "n[1-2]"})
    assert gangrun("status", "--json").json["standbys"] == {"count": 3, "memory_bytes": 3 << 28, "nodes": "n[1-2]"}
    assert "standbys    3 on n[1-2], 0.8 GiB of memory; --no-warm keeps none\n" in gangrun("status").out
    story.live(step=13, standbys=[3])
    assert gangrun("status", "--json").json["standbys"] is None
    story.live(attempt=7, step=99, loss=1.0)
    assert gangrun("status", "--json").json["step"] == 0
    assert gangrun("status", "--json").json["loss"] is None


@pytest.mark.parametrize(
    ("parity", "count", "words"),
    [
        ("", 1, "step 9, on the nodes themselves; survives any lost node"),
        ("", 0, "step 9, on the nodes themselves; survives no lost node (degraded: 1 asked for)"),
        ("8+2", 2, "step 9, on the nodes themselves; survives any 2 lost nodes"),
        ("8+2", 1, "step 9, on the nodes themselves; survives any lost node (degraded: 2 asked for)"),
        ("", None, "step 9, on the nodes themselves\n"),
    ],
)
def test_how_many_lost_nodes_a_step_in_memory_survives(
    runs: Path, gangrun: Call, parity: str, count: int | None, words: str
) -> None:
    story = running(runs)
    spec = msgspec.structs.replace(story.spec, checkpoint=CheckpointSpec("d", memory=True, memory_parity=parity))
    story.paths.spec.unlink()
    write_spec(story.disk, story.paths, spec)
    story.live(kept_step=9, **({} if count is None else {"kept_losses_count": count}))
    asked = int(parity[-1:] or 1)
    expected = None if count is None else {"lost_nodes": count, "asked": asked}
    assert gangrun("status", "--json").json["memory_bears"] == expected
    assert words in gangrun("status").out


def test_a_step_that_ranks_loaded_from_memory_survives_no_lost_node_until_it_is_on_disk(
    runs: Path, gangrun: Call
) -> None:
    story = fall(running(runs))
    save = MemoryStep(0, 30, "ab", is_shared=True, lacking=(story.nodes[1],))
    story.on(StepHeld(1, save, tuple(story.nodes))).again()
    words = "step 30, on the nodes themselves; survives no lost node (degraded: 1 asked for)"
    assert words in gangrun("status").out
    story.on(CheckpointSeen(CheckpointRef(30, "/ckpt/step-30", Level.VERIFIED)))
    assert gangrun("status", "--json").json["memory_step"] is None


def test_all_runs_newest_first(runs: Path, gangrun: Call) -> None:
    succeeded(runs, run="20261118-100000-first", name="first")
    restarted(runs, run="20261118-110000-other", name="second", now=BEGAN + 5000)
    said = gangrun("status", "--all")
    assert [line.split()[0] for line in said.out.splitlines()] == [
        "run",
        "20261118-110000-other",
        "20261118-100000-first",
    ]
    listed = gangrun("status", "--all", "--json").json["runs"]
    assert [one["name"] for one in listed] == ["second", "first"]


def test_one_unreadable_run_does_not_hide_the_others(runs: Path, gangrun: Call) -> None:
    succeeded(runs, run="20261118-100000-good")
    broken = Builder(runs, run="20261118-110000-bad").supervisor()
    broken.paths.journal(1).write_bytes(b"\x00garbage\n" * 3)
    said = gangrun("status", "--all")
    assert said.code == 0
    assert "UNREADABLE" in said.out
    assert "SUCCEEDED" in said.out


def test_the_table_gives_the_reason_only_where_it_has_room(runs: Path) -> None:
    status = frozen(failed(runs))
    assert "reason" not in overview([status], PageFormat(BEGAN, 80))[0]
    assert "reason" in overview([status], PageFormat(BEGAN, 140))[0]


def test_watching_without_a_terminal_prints_lines_until_the_end(runs: Path, gangrun: Call) -> None:
    story = succeeded(runs)
    said = gangrun("status", "--watch")
    assert said.code == 0
    assert said.out.count("\n") == 1
    assert f"SUCCEEDED, step 0: {story.state.reason}" in said.out


def test_options_that_exclude_each_other_are_refused(runs: Path, gangrun: Call) -> None:
    succeeded(runs)
    assert gangrun("status", "--watch", "--json").error["kind"] == "usage"
    assert gangrun("status", "--all", "x").code == 2


def test_no_run_yet(runs: Path, gangrun: Call) -> None:
    said = gangrun("status")
    assert said.code == 5
    assert "no run yet" in said.err
    assert gangrun("status", "--all").code == 0
    assert gangrun("status", "--all", "--json").json == {"schema": 1, "runs": []}


def test_looking_again_tells_the_same_as_looking_anew(runs: Path) -> None:
    from gangrun.core.events import CheckpointSeen, ProgressMarked
    from gangrun.runs.follow import Follower
    from tests.runs.stories import STEP_20

    story = running(runs)
    follower = Follower(story.paths)
    for event in (ProgressMarked(0, 5), CheckpointSeen(STEP_20), ProgressMarked(0, 25)):
        story.on(event, 60)
        assert status_of(follower.look(), BEGAN) == status_of(read(story.paths), BEGAN)
    story.supervisor()
    assert status_of(follower.look(), BEGAN).supervisor == SupervisorStatus(term=2, node="n0")
    story.finished()
    assert follower.look().ended


def test_looking_again_outlives_a_file_system_that_fails_for_a_while(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gangrun.adapters.fs.disk import Disk
    from gangrun.core.events import ProgressMarked
    from gangrun.runs.follow import Follower

    story, now, broken = running(runs), 0.0, ""

    def before(self: Disk, op: str, path: Path) -> None:
        if broken and (op, path.name) in (("read", broken), ("names", broken)):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(Disk, "before", before)
    follower = Follower(story.paths, now=lambda: now)
    good = follower.look()
    story.on(ProgressMarked(0, 5), 60)
    story.paths.journal(2).touch()
    broken = story.paths.journal(2).name  # the first journal's new records were read by then
    assert follower.look() == good
    broken = ""
    good = follower.look()
    assert status_of(good, BEGAN) == status_of(read(story.paths), BEGAN)
    broken = story.paths.jobs.name
    now = 100.0
    assert follower.look() == good
    now = 159.0
    assert follower.look() == good
    now = 160.0
    with pytest.raises(OSError, match="Stale"):
        follower.look()
    with pytest.raises(OSError, match="Stale"):
        Follower(story.paths).look()


def node(name: str, tested: str = "", trial: str = "") -> Node:
    return Node(name, "i", "b", 1, checked=None if trial else True, tested=tested, trial=trial)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("n0")], ""),
        ([node("n0", "0 wrong in 4 products")], "n0 passed the test: 0 wrong in 4 products"),
        ([node(f"n{k}", "0 wrong") for k in range(11)], "n[0-10] passed the test"),
        (
            [node("n0", "0 wrong"), node("n2", trial="attempt 0: hang"), node("n1", "0 wrong", "attempt 1: signal")],
            "n0 passed the test: 0 wrong; n1 is being tested (attempt 1: signal); n2 is being tested (attempt 0: hang)",
        ),
    ],
)
def test_devices_that_were_tested_are_told_on_one_line(nodes: list[Node], words: str) -> None:
    tests = list(device_tests({one.name: one for one in nodes}))
    assert device_words(tests) == words
    assert {one.state for one in tests} <= {"testing", "passed"}


def test_an_ended_run_shows_its_last_step_and_its_last_checkpoint(runs: Path, gangrun: Call, home: Path) -> None:
    ckpt = home / "ckpt"
    story = Builder(runs, checkpoint_dir=str(ckpt)).supervisor().up().live(step=12, loss=2.5)
    seen = CheckpointRef(20, str(ckpt / "step-20"), Level.VERIFIED)
    story.on(CheckpointSeen(seen), 60).on(ProgressMarked(0, 41), 30)

    def committed(step: int, at: float) -> None:
        folder = ckpt / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / ".metadata").write_bytes(b"x")
        os.utime(folder, (at, at))

    committed(20, story.now - 30)
    committed(40, story.now)
    committed(60, story.now + 3600)  # of a run that came later
    (ckpt / "step-50.tmp").mkdir()
    assert gangrun("status", "--json").json["checkpoint"]["step"] == 20  # of a run that goes on the supervisor says it
    story.on(CancelRequested("eve")).stopped()
    status = gangrun("status", "--json").json
    assert status["exit_code"] is not None
    assert (status["step"], status["loss"]) == (41, None)
    assert status["checkpoint"] == {"step": 40, "path": str(ckpt / "step-40"), "level": "unread", "seen": story.now - 2}
    assert "step 40, unread" in gangrun("status").out
    shutil.rmtree(ckpt)
    assert gangrun("status", "--json").json["checkpoint"]["step"] == 20


def test_the_last_step_of_an_ended_run_is_not_below_its_last_checkpoint(runs: Path, gangrun: Call, home: Path) -> None:
    """Of a script that reports no steps: of those that it saved, the supervisor had seen step 20 last."""
    folder = home / "ckpt" / "step-40"
    story = Builder(runs, checkpoint_dir=str(folder.parent), reports=False).supervisor().up()
    story.on(CheckpointSeen(CheckpointRef(20, str(home / "ckpt" / "step-20"), Level.VERIFIED)), 60)
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(b"x")
    os.utime(folder, (story.now, story.now))
    assert gangrun("status", "--json").json["step"] == 20
    story.on(CancelRequested("eve")).stopped()
    status = gangrun("status", "--json").json
    assert (status["checkpoint"]["step"], status["step"]) == (40, 40)


def test_what_a_frameworks_file_tells_counts_for_a_run_that_reports_nothing(runs: Path, home: Path) -> None:
    at = 1_795_000_005.0
    folder = home / "ckpt"
    for step, name, changed in ((10, "checkpoint-10", at - 90), (20, "checkpoint-20", at)):
        path = folder / name / "trainer_state.json"
        path.parent.mkdir(parents=True)
        told = {"global_step": step, "max_steps": 60, "log_history": [{"loss": 2.5}]}
        path.write_text(json.dumps(told))
        os.utime(path, (changed, changed))
    story = succeeded(runs, checkpoint_dir=str(folder), reports=False)
    status = status_of(read(story.paths), BEGAN)
    assert (status.step, status.log_step, status.total_steps, status.loss) == (None, 20, 60, 2.5)


@pytest.mark.parametrize("reports", [False, True])
def test_a_resume_that_nothing_shows_is_said_to_be_unknown(runs: Path, reports: bool) -> None:
    story = Builder(runs, reports=reports).supervisor().up(CheckpointRef(20, "/ckpt/step-20", Level.VERIFIED))
    notes = [status_of(read(story.paths), BEGAN + after_s).notes for after_s in (30.0, 120.0)]
    words = "whether the script resumed from step 20 is not known: it reports, prints and writes no step"
    assert [words in one for one in notes] == [False, not reports]


def test_ranks_are_shown_with_node_pid_step_and_state(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    rows = {"n0": [(0, 4711, "R", 12), (1, 4712, "D", 11)], "n1": [(2, 4713, "S", 12)]}
    note_ranks(story.disk, story.paths, 1, 0, rows)
    found = gangrun("status", "--ranks", "--json").json["ranks"]
    assert [(one["rank"], one["node"], one["pid"], one["step"], one["state"]) for one in found] == [
        (0, "n0", 4711, 12, "running"),
        (1, "n0", 4712, 11, "stuck in the kernel"),
        (2, "n1", 4713, 12, "waiting"),
        (3, "n1", None, None, "not known yet"),
    ]
    assert gangrun("status", "--json").json["ranks"] is None
    page_lines = gangrun("status", "--ranks").out.splitlines()
    assert "  1     n0    4712  11    stuck in the kernel" in page_lines
    gpus = {0: [3, 97, 40 << 10, 80 << 10, 1980, 0, 600, 700, 16, 5, 61], 1: [0, *[-1] * 10], 2: [1] * 99}
    note_ranks(story.disk, story.paths, 1, 0, rows, gpus)
    first, silent, newer, _ = (one["gpu"] for one in gangrun("status", "--ranks", "--json").json["ranks"])
    assert (first["gpu"], first["memory_used_bytes"], first["clock_reasons"]) == (3, 40 << 30, 0)
    assert silent == {name: 0 if name == "gpu" else None for name in first} and newer is None
    page_lines = gangrun("status", "--ranks").out.splitlines()
    assert "  0     n0    4711  12    3    97 %  40 GiB  1980 MHz  600 W  61 °C  running" in page_lines
    assert "  1     n0    4712  11    0    -     -       -         -      -      stuck in the kernel" in page_lines
    story.exit(2, signal=9).exit(0, error=ERROR).exit(1, signal=15, by_us=True)
    found = gangrun("status", "--ranks", "--json").json["ranks"]
    states = {one["rank"]: (one["pid"], one["state"]) for one in found}
    assert states[2] == (4713, "ended (killed by SIGKILL (9))")
    assert states[1] == (4712, "ended (stopped by gangrun with SIGTERM (15))")
    assert states[0] == (4711, "ended (exit code 1)")
    note_ranks(story.disk, story.paths, 1, 7, rows)  # of another attempt
    assert gangrun("status", "--ranks", "--json").json["ranks"][0]["pid"] is None


GPUS = {
    "count": 8, "busy_percent": 93.4, "busy_min_percent": 41, "memory_used_bytes": 61 << 30, "memory_bytes": 80 << 30,
    "power_w": 5150, "temperature_c": 71, "slowed_count": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (GPUS, "GPUs        8, 93 % busy (least 41 %), at most 61 of 80 GiB used, 5150 W, 71 °C, 1 slowed down"),
        (GPUS | {"count": 1, "power_w": 31_000}, "GPU         93 % busy, 61 of 80 GiB used, 31 kW, 71 °C, 1 slowed"),
        ({"count": 2}, "GPUs        2"),
        ({"busy_percent": 93}, ""),  # of another version
        ("much", ""),
        (None, ""),
    ],
)
def test_gpus_are_shown_if_there_are_any(runs: Path, gangrun: Call, gpu: object, words: str) -> None:
    story = running(runs)
    story.live(step=13, **({} if gpu is None else {"gpu": gpu}))
    assert [line for line in gangrun("status").out.splitlines() if "GPU" in line] == (
        [line for line in gangrun("status").out.splitlines() if line.startswith(f"  {words}")] if words else []
    )
    assert (gangrun("status", "--json").json["gpu"] is not None) is bool(words)


def test_a_rank_that_finished_shows_the_step_at_which_it_did(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    note_ranks(story.disk, story.paths, 1, story.state.attempt.number, {"n0": [(0, 4711, "R", 12)]})
    story.finished(step=60)
    found = gangrun("status", "--ranks", "--json").json["ranks"]
    assert [one["step"] for one in found] == [60] * 4, "the last heartbeat knew 12, and of three ranks nothing"


def test_ranks_of_a_run_that_has_ended_or_not_begun(runs: Path, gangrun: Call) -> None:
    succeeded(runs)
    found = gangrun("status", "--ranks", "--json").json["ranks"]
    assert {one["state"] for one in found} == {"ended (exit code 0)"} and len(found) == 4
    Builder(runs, run="20261119-000000-young", now=BEGAN + 9)
    assert gangrun("status", "--ranks", "--json").json["ranks"] == []
    assert "no rank was started yet" in gangrun("status", "--ranks").out
    assert gangrun("status", "--ranks", "--all").code == 2
