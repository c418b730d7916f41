"""An agent, a supervisor or a warden stands still and wakes again: the ranks train on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.local.evidence import alive, each_step_once, kinds
from tests.local.harness import Box
from tests.waiting import stays


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whoever_of_us_sleeps_for_12_s_the_ranks_are_untouched(boxes: Callable[[str], Box]) -> None:
    sleepers = {}
    for part in ("entry.agent", "entry.supervisor", "node/warden.py"):
        box = boxes(part.replace("/", "-"))
        box.step(2, "--silence-after", "2", "--fence-after", "24", steps=100_000)
        sleepers[part] = box
    for box in sleepers.values():
        box.wait_for_step(5, deadline_s=60)
    asleep = {part: box.one(part) for part, box in sleepers.items()}
    for pid in asleep.values():
        os.kill(pid, signal.SIGSTOP)
    ranks = {part: [box.pid_of(rank) for rank in (0, 1)] for part, box in sleepers.items()}
    stays(lambda: all(alive(pid) for pids in ranks.values() for pid in pids), 12, "all ranks live")
    reached = {part: len(box.rows()) for part, box in sleepers.items()}
    for pid in asleep.values():
        os.kill(pid, signal.SIGCONT)
    for part, box in sleepers.items():
        box.wait_for_step(reached[part] + 40)
        assert [box.pid_of(rank) for rank in (0, 1)] == ranks[part], part
        assert len(box.status()["attempts"]) == 1, part
        assert not any(kind in {"NodeLost", "ProgressStalled", "RankExited"} for kind in kinds(box)), (part, kinds(box))
        box.interrupt()
        each_step_once(box, 0)
