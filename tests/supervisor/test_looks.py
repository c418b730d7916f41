"""When the checkpoint directory is looked into: the loop asks as ``CheckpointPolling`` says."""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.events import FlushDue
from gangrun.core.model import Phase, RunState, SavedProgress, Shape
from gangrun.core.policy import Policy
from gangrun.supervisor.heartbeats import Row
from gangrun.supervisor.opening import RunFacts
from gangrun.supervisor.progress import NEVER, CheckpointPolling, GangProgress
from gangrun.wire.messages import Hello, PeerAddress, RankSample
from gangrun.wire.spec import CheckpointSpec
from tests.supervisor.ports_in_memory import HandCheckpoints

WAITS = RunState(run="r", shape=Shape(2, 2, 1, 1), checkpoints=SavedProgress(best_step=4))
RUNS = replace(WAITS, phase=Phase.RUNNING, attempt=replace(WAITS.attempt, number=0))
SAVES = replace(RUNS, phase=Phase.STOPPING, underway=replace(RUNS.underway, saving=True))


def looks(every_s: float = 10.0, state: RunState = WAITS) -> tuple[CheckpointPolling, list[tuple[str, int]]]:
    checkpoints = HandCheckpoints(post=lambda item: None)
    return made_of(checkpoints, state, checkpoint=CheckpointSpec("d", look_every_s=every_s))[0], checkpoints.asked


def made_of(
    checkpoints: HandCheckpoints, state: RunState, **facts: CheckpointSpec
) -> tuple[CheckpointPolling, GangProgress]:
    progress = GangProgress(Policy(), 100.0)
    told = replace(RunFacts(run="r", shape=state.shape, job="j"), **facts)  # type: ignore[arg-type]
    return CheckpointPolling(checkpoints, told, state, 100.0, progress), progress


def test_now_and_then_while_ranks_train_and_often_while_all_wait_for_a_save() -> None:
    made, asked = looks()
    assert made.due(WAITS) == NEVER
    made.follow(WAITS, RUNS, 101.0)
    assert made.due(RUNS) == 111.0
    made.look(RUNS, 110.0)
    assert asked == []
    made.look(RUNS, 111.0)
    assert (asked, made.due(RUNS)) == ([("look", 4)], 121.0)
    made.follow(RUNS, SAVES, 112.0)
    assert (asked.pop(), made.due(SAVES)) == (("await save", -1), 113.0)
    made.follow(SAVES, SAVES, 112.5)
    made.look(SAVES, 113.0)
    assert (asked, made.due(SAVES)) == ([("look", 4), ("look", 4)], 114.0)
    assert made.due(replace(SAVES, underway=replace(SAVES.underway, saving=False))) == NEVER


def test_a_supervisor_that_takes_over_meanwhile_does_the_same() -> None:
    made, asked = looks(state=SAVES)
    assert (asked, made.due(SAVES)) == ([("await save", -1)], 101.0)


def test_without_a_directory_never() -> None:
    made, asked = looks(every_s=0.0)
    made.follow(WAITS, RUNS, 101.0)
    made.follow(RUNS, SAVES, 102.0)
    made.look(SAVES, 200.0)
    assert asked == [] and made.due(RUNS) == made.due(SAVES) == NEVER


def row(step: int, kept_step: int) -> Row:
    reading = RankSample(0, step, 2, step, 0, 0.0, "R", kept_step=kept_step)
    hello = Hello("n0", "j", "b", "i", 1, 1, 0, (), PeerAddress("n0", "x", "k"))
    return Row(hello, 0.0, 0.0, attempt=0, readings=(reading,))


def test_a_flush_is_due_when_the_disk_has_had_nothing_new_for_so_long_and_memory_has() -> None:
    made, progress = made_of(
        HandCheckpoints(post=lambda item: None), WAITS, checkpoint=CheckpointSpec(memory=True, flush_every_s=60.0)
    )
    assert made.due(WAITS) == NEVER
    progress.begin(0, 100.0)
    made.follow(WAITS, RUNS, 100.0)
    assert made.due(RUNS) == 160.0
    assert made.due(replace(RUNS, store_stalled_since=1.0)) == NEVER
    assert made.look(RUNS, 159.0) == []
    assert made.look(RUNS, 160.0) == [], "nothing is in memory"
    assert made.due(RUNS) == 161.0
    progress.observe(row(9, 8), 161.0)
    assert made.look(RUNS, 161.0) == [FlushDue(0, 8)]
    assert made.due(RUNS) == 221.0
    newer = replace(RUNS, checkpoints=replace(RUNS.checkpoints, best_step=8))
    made.follow(RUNS, newer, 180.0)
    assert made.due(newer) == 240.0, "somebody wrote to the disk"
    assert made.look(newer, 240.0) == []


def test_without_the_setting_nothing_is_flushed() -> None:
    made, progress = made_of(HandCheckpoints(post=lambda item: None), RUNS, checkpoint=CheckpointSpec())
    progress.begin(0, 100.0)
    progress.observe(row(9, 8), 161.0)
    assert (made.due(RUNS), made.look(RUNS, 1e6)) == (NEVER, [])
