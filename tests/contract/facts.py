"""What is true of a run afterwards, whatever the world: asserted in the same way by every test of the contract."""

from __future__ import annotations

import re

from tests.contract.driver import Status, WorldDriver

SENTENCE_CHARS_MIN = 15
WALL_SET_BACK_MAX_S = 12 * 3600  # by a test
NOT_FOR_PEOPLE = re.compile(r"\bNone\b|<[A-Z]\w+\.|\bobject at 0x|\bTrue\b|\bFalse\b|\{\}|\[\]")


def ended(one: WorldDriver, code: int, state: str, deadline_s: float = 90.0) -> Status:
    """It ends by itself with this exit code and state, and each sentence of it was written for people."""
    assert one.end(deadline_s) == code, one.told()
    status = one.status()
    assert status["state"] == state and status["exit_code"] == code, one.told()
    sentence(status["reason"])
    for attempt in status["attempts"]:
        assert attempt["ended"] is not None, attempt
        assert attempt["ended"] >= attempt["started"] - WALL_SET_BACK_MAX_S - 1, attempt
        sentence(attempt["reason"])
    for out in status["excluded"]:
        sentence(out["reason"])
        assert out["until"] > out["since"], out
    numbers = [attempt["number"] for attempt in status["attempts"]]
    assert numbers == sorted(set(numbers)), numbers
    return status


def sentence(text: str) -> None:
    """Long enough to say something, and nothing in it that only a programmer reads."""
    assert len(text) >= SENTENCE_CHARS_MIN and " " in text, text
    assert not NOT_FOR_PEOPLE.search(text), text


def evidence(text: str, *words: str) -> None:
    """The sentence has the evidence in it."""
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"


def one_gang(one: WorldDriver, slept: tuple[int, ...] = ()) -> list[int]:
    """No rank did a step of an older attempt once a newer one had begun, and none went twice over a step.

    By the ranks' own account. One that ``slept`` in the middle of a step may end that very step when it wakes, and the
    next: for these, the others gave their part before they were killed. Returns the attempts that stepped.
    """
    newest = -1
    done: dict[tuple[int, int, int], int] = {}
    late = [*slept, *slept]
    for row in one.steps():
        if row.attempt < newest and row.rank in late:
            late.remove(row.rank)
            continue
        assert row.attempt >= newest, f"{row} after attempt {newest} had stepped\n{one.told()}"
        newest = row.attempt
        before = done.setdefault((row.attempt, row.rank, row.step), row.pid)
        assert before == row.pid, f"{row}: process {before} did that step of that attempt too"
    return sorted({row.attempt for row in one.steps()})


def adopted(one: WorldDriver, before: dict[int, int]) -> None:
    """The same processes are still the gang, and they make steps."""
    assert one.ranks() == before, one.told()
    step = max(row.step for row in one.steps())
    one.wait_for_step(step + 3)
    assert one.ranks() == before, one.told()


def nobody_left(one: WorldDriver) -> None:
    """No rank lives, and none comes back."""
    assert one.ranks() == {}, one.told()
