"""Tracebacks on the terminal: whose are red, and whose are folded."""

from __future__ import annotations

from gangrun.display.live_view import FOLD_HOLD_S, FOLD_WHOLE_AFTER_S, ErrorFold, ShownLine


def traceback(rank: int, error: str = "ValueError: bad") -> list[str]:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', error]
    return [f"[n0:rank{rank} 18:26:55] {line}" for line in lines]


def red(lines: list[str]) -> list[ShownLine]:
    return [ShownLine(line, True) for line in lines]


def test_the_first_rank_to_fail_is_red_and_its_victims_are_folded() -> None:
    fold = ErrorFold()
    assert fold.take(["[n0:rank0 18:26:55] step 3"], 0.0) == [ShownLine("[n0:rank0 18:26:55] step 3")]
    assert fold.take(traceback(0, "RuntimeError: peer closed") + traceback(3), 0.0) == []
    fold.failed(3)
    fold.failed(0)  # a later one is none
    assert fold.take([], FOLD_WHOLE_AFTER_S / 2) == [], "more of it may come"
    folded = ShownLine("[n0:rank0 18:26:55] (3 lines folded: rank 3 failed first)")
    assert fold.take([], FOLD_WHOLE_AFTER_S) == [folded, *red(traceback(3))]


def test_a_traceback_that_ends_no_rank_is_shown_soon_and_only_the_first_one_red() -> None:
    fold = ErrorFold()
    fold.take(traceback(0), 0.0)
    assert fold.take(["[n0:rank1 18:26:55] step 4"], FOLD_HOLD_S / 2) == [ShownLine("[n0:rank1 18:26:55] step 4")]
    assert fold.settled(FOLD_HOLD_S) == red(traceback(0))
    fold.take(traceback(1), 10.0)
    assert fold.settled(10.0 + FOLD_HOLD_S) == [ShownLine(line) for line in traceback(1)]


def test_nothing_is_held_at_the_end() -> None:
    fold = ErrorFold()
    fold.take(traceback(0), 0.0)
    assert fold.settled(0.0, end=True) == red(traceback(0))
    assert fold.settled(9.0, end=True) == []
