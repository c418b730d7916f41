"""The real supervisor is killed, or stopped and woken later, at positions spread over everything that it writes.

A position lies before or after each operation that changes the run directory: claim, seal, journal, fsync, ticket.
The simulator goes through all of them (``tests/sim/test_positions``); this is the sample that keeps it honest.
Several runs go on at once, since each spends its time in waiting for a take-over.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gangrun.node import processes
from tests.local.evidence import each_step_once, never_two_gangs
from tests.local.harness import Box
from tests.waiting import until

STEPS = 60
AT_ONCE = 4
KILLED_AT = (1, 4, 14, 27, 35, 54, 77, 90)
STOPPED_AT = (6, 24, 48, 70)


def begin(folder: Path, how: str, k: int) -> tuple[Box, Path]:
    folder.mkdir()
    box = Box(folder)
    control = folder / "position"
    control.write_text(f"{how} {k}")
    box.environment["FAULT_KILL_AT"] = str(control)
    box.step(2, "--fence-after", "16", "--silence-after", "3", steps=STEPS)
    return box, control


def ends_right(box: Box, control: Path, what: str) -> None:
    assert box.end(100) == 0, f"{what}\n{box.told()}"
    status = box.status()
    assert status["state"] == "SUCCEEDED", f"{what}: {status}"
    assert not control.exists(), f"{what}: that position was never reached"
    attempts = never_two_gangs(box, 2)
    for attempt in attempts:
        for rank in (0, 1):
            each_step_once(box, attempt, rank)
    assert box.rows()[-1][1] == STEPS - 1, what
    assert status["excluded"] == [], what
    assert not box.left(), f"{what}: {box.left()}"


def wake(box: Box, control: Path) -> None:
    """Once another has taken its place; or, where it was stopped before it said its first word, once it is stopped."""
    until(lambda: not control.exists(), 30, lambda: f"the position is reached\n{box.told()}")
    stopped = until(
        lambda: [pid for pid in box.process_ids("entry.supervisor") if state(pid) == "T"], 10, "it is stopped"
    )
    if list(box.work.glob("steps/rank-*.log")):
        until(
            lambda: len(list(box.run_dir().glob(".gangrun/terms/*.json"))) > 1, 30, lambda: f"a take-over\n{box.told()}"
        )
    os.kill(stopped[0], signal.SIGCONT)


def state(pid: int) -> str:
    found = processes.read_proc(pid)
    return "" if found is None else found.state


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("how", "positions"),
    [*(("kill", KILLED_AT[i : i + AT_ONCE]) for i in range(0, len(KILLED_AT), AT_ONCE)), ("stop", STOPPED_AT)],
)
def test_whatever_it_was_writing_the_run_ends_well(tmp_path: Path, how: str, positions: tuple[int, ...]) -> None:
    begun = [(k, *begin(tmp_path / f"at-{k:03d}", how, k)) for k in positions]
    try:
        if how == "stop":
            for _, box, control in begun:
                wake(box, control)
        for k, box, control in begun:
            ends_right(box, control, f"{how} at position {k}")
    finally:
        for _, box, _ in begun:
            box.close()
