"""What stands still and wakes again (agent, supervisor, warden), who takes over meanwhile, and clocks that jump."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.fs.terms import FsTerms
from tests.local.evidence import alive, each_step_once, journal, kinds, never_two_gangs, process_words
from tests.local.harness import Box
from tests.waiting import stays, until


def interrupt(box: Box) -> None:
    """End a run that would go on for ever."""
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    assert box.end(40) == 130, box.told()


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Callable[[str], Box]]:
    """Several runs side by side: what takes 20 s in each takes 20 s in all."""
    made: list[Box] = []

    def make(name: str) -> Box:
        (tmp_path / name).mkdir()
        made.append(Box(tmp_path / name))
        return made[-1]

    try:
        yield make
    finally:
        for box in made:
            box.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whoever_of_us_sleeps_for_20_s_the_ranks_are_untouched(boxes: Callable[[str], Box]) -> None:
    sleepers = {}
    for part in ("entry.agent", "entry.supervisor", "warden.py"):
        box = boxes(part)
        box.step(2, steps=100_000)
        sleepers[part] = box
    for box in sleepers.values():
        box.wait_for_step(5, deadline_s=60)
    asleep = {part: box.one(part) for part, box in sleepers.items()}
    for pid in asleep.values():
        os.kill(pid, signal.SIGSTOP)
    ranks = {part: [box.pid_of(rank) for rank in (0, 1)] for part, box in sleepers.items()}
    stays(lambda: all(alive(pid) for pids in ranks.values() for pid in pids), 20, "all ranks live")
    reached = {part: len(box.rows()) for part, box in sleepers.items()}
    for pid in asleep.values():
        os.kill(pid, signal.SIGCONT)
    for part, box in sleepers.items():
        box.wait_for_step(reached[part] + 40)
        assert [box.pid_of(rank) for rank in (0, 1)] == ranks[part], part
        assert len(box.status()["attempts"]) == 1, part
        assert not any(kind in {"NodeLost", "ProgressStalled", "RankExited"} for kind in kinds(box)), (part, kinds(box))
        interrupt(box)
        each_step_once(box, 0)


def holder(box: Box) -> tuple[int, str, int]:
    """(term, node, pid) of the newest claim."""
    claim = FsTerms(RunPaths(box.run_dir()), SystemClock(), Disk()).newest()
    assert claim is not None
    return claim.term, claim.node, claim.pid


def wait_for_term(box: Box, term: int, deadline_s: float = 40) -> tuple[int, str, int]:
    """Until somebody holds ``term`` or a later one and the journal says so."""
    box.until_status(f"term {term}", lambda status: (status["supervisor"] or {"term": 0})["term"] >= term, deadline_s)
    return holder(box)


def tickets_of(box: Box, term: int) -> list[str]:
    """Names of the tickets taken in a term, wherever its seal has put them."""
    terms = box.run_dir() / ".gangrun" / "terms"
    return sorted(path.name for name in (f"{term}.acts", f"{term}.acts.sealed") for path in (terms / name).glob("*"))


def family_of(box: Box, node: str) -> list[int]:
    """The warden, the agent and, where there is one, the supervisor of a host."""
    found = []
    for pid in box.left():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        text = " ".join(words)
        ours = "entry.agent" in text or "entry.supervisor" in text
        if ours and (f'"node": "{node}"' in text if "node/warden.py" in text else node in words):
            found.append(pid)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_hosts_outlive_a_sleeping_a_killed_and_a_lost_supervisor(box: Box) -> None:
    box.step(1, "--nodes", "3", "--local-hosts", steps=100_000)
    box.wait_for_step(5, deadline_s=60)
    ranks = [box.pid_of(rank) for rank in range(3)]

    # asleep: the others take over by promises, adopt the gang, and the sleeper leaves when it wakes
    term, _, sleeper = holder(box)
    os.kill(sleeper, signal.SIGSTOP)
    wait_for_term(box, term + 1)
    taken = tickets_of(box, term)
    os.kill(sleeper, signal.SIGCONT)
    until(lambda: not alive(sleeper), 15, f"the old supervisor leaves\n{box.told()}")
    until(lambda: f"supervisor #{term} leaves" in process_words(box), 10, process_words(box))
    reached = len(box.rows())
    until(lambda: len(box.rows()) > reached + 40, 20, "the gang steps on")
    assert tickets_of(box, term) == taken, "the deposed one acted"
    assert [box.pid_of(rank) for rank in range(3)] == ranks

    # killed: the same, at once
    term, _, victim = holder(box)
    os.kill(victim, signal.SIGKILL)
    term, lost, _ = wait_for_term(box, term + 1)
    assert [box.pid_of(rank) for rank in range(3)] == ranks
    assert len(box.status()["attempts"]) == 1

    # lost: warden, agent and supervisor of the holder's host die together; its rank is gone, so the gang starts anew
    for pid in family_of(box, lost):
        with contextlib.suppress(ProcessLookupError):  # the warden's death takes the others with it
            os.kill(pid, signal.SIGKILL)
    until(lambda: not all(map(alive, ranks)), 5, "its rank dies with it")
    box.wait_for_step(3, attempt=1, deadline_s=90)
    # which agent makes the next supervisor is open: the lost host is brought back and may win
    assert holder(box)[0] > term, "somebody took over"
    interrupt(box)
    assert never_two_gangs(box, 3) == [0, 1]
    each_step_once(box, 0)
    status = box.status()
    assert status["excluded"] == []
    assert [attempt["number"] for attempt in status["attempts"]] == [0, 1]


def explained(box: Box) -> list[str]:
    """The lines of ``gangrun explain``."""
    return box.gangrun("explain", "--runs-dir", str(box.runs)).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wall_clock_that_jumps_an_hour_either_way_changes_no_verdict_and_no_order(box: Box) -> None:
    wall = box.folder / "wall"
    wall.write_text("0")
    box.environment["FAULT_WALL_OFFSET"] = str(wall)

    def jump(seconds: int) -> None:
        wall.with_suffix(".new").write_text(str(seconds))
        wall.with_suffix(".new").replace(wall)

    box.step(2, "--nodes", "2", "--local-hosts", steps=100_000)
    box.wait_for_step(5, deadline_s=60)
    ranks = [box.pid_of(rank) for rank in range(4)]
    jump(3600)
    reached = len(box.rows())
    until(lambda: len(box.rows()) > reached + 30, 30, "ranks step on after the jump ahead")
    os.kill(box.one("entry.supervisor"), signal.SIGKILL)  # the next term begins an hour ahead
    wait_for_term(box, 2, 90)
    jump(-3600)
    reached = len(box.rows())
    until(lambda: len(box.rows()) > reached + 30, 30, "ranks step on after the jump back")
    os.kill(holder(box)[2], signal.SIGKILL)  # and this one an hour before it
    wait_for_term(box, 3, 90)
    assert [box.pid_of(rank) for rank in range(4)] == ranks
    os.kill(ranks[3], signal.SIGKILL)
    box.wait_for_step(3, attempt=1, deadline_s=60)
    interrupt(box)
    assert never_two_gangs(box, 4) == [0, 1]
    records: list[Any] = journal(box)
    at = [record.at for record in records]
    assert at == sorted(at), "the run clock went back"
    walls = [record.wall for record in records]
    assert max(walls) - min(walls) > 7000, "the jumps were there"
    assert not any(record.kind in {"NodeLost", "ProgressStalled", "DeadlinePassed"} for record in records[:-12]), kinds(
        box
    )
    text = "\n".join(explained(box))
    order = [text.index(words) for words in ("supervisor #2", "supervisor #3", "attempt 1")]
    assert order == sorted(order), text
