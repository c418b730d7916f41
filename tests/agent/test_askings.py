"""A signal that asks to end is counted as often as somebody meant it, however late its second way brings it."""

from __future__ import annotations

import signal

from gangrun.node.processes import Askings

SECOND_NS = 1_000_000_000


def test_what_comes_again_within_seconds_is_an_echo_and_what_comes_later_is_meant():
    now_ns = [5 * SECOND_NS]
    askings = Askings(lambda: now_ns[0])

    def came(number: int, at_s: float) -> list[int]:
        now_ns[0] = 5 * SECOND_NS + int(at_s * SECOND_NS)
        askings.note(number)
        return askings.signals

    term, interrupt = signal.SIGTERM, signal.SIGINT
    assert came(term, 0) == [term]
    assert came(term, 0.001) == [term]
    assert came(term, 2.5) == [term], "srun on a busy node hands it on late"
    assert came(interrupt, 2.6) == [term, interrupt]
    assert came(term, 3.1) == [term, interrupt, term], "an echo does not put off what is meant"
    assert came(term, 4) == [term, interrupt, term]


def test_a_closed_terminal_adds_nothing() -> None:
    now_ns = [0]
    askings = Askings(lambda: now_ns[0])
    for number in (signal.SIGHUP, signal.SIGHUP):
        askings.note(number)
        now_ns[0] += 60 * 10**9
    assert askings.signals == [signal.SIGHUP]
    askings.note(signal.SIGTERM)
    assert askings.signals == [signal.SIGHUP, signal.SIGTERM]
