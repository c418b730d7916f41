"""Each labelled failure is judged as a senior engineer would, but for those that are listed here with the reason."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.core.judgement.case import Case, read_all
from tests.core.judgement.figures import SPARES, TITLES, wrong
from tests.core.judgement.player import play

# Development cases that are judged wrongly today, by why. A case that is judged rightly must leave the list.
KNOWN_WRONG: dict[str, tuple[str, ...]] = {
    "a fabric on which no node sets up connections may come back, so the whole budget is spent on it": (
        "ib-modify-qp-timed-out-everywhere",
    ),
}
_WRONG = {name: why for why, names in KNOWN_WRONG.items() for name in names}
FOLDERS = ("cases", "held_out", "held_out_2", "held_out_3", "held_out_4", "held_out_5")


@pytest.mark.parametrize("case", read_all("cases"), ids=lambda case: case.file)
def test_a_failure_is_judged_rightly(case: Case) -> None:
    found = {TITLES[spares]: wrong(case, play(case, spares)) for spares in SPARES}
    is_wrong = any(found.values())
    if case.file in _WRONG:
        assert is_wrong, f"{case.file} is judged rightly now: take it out of KNOWN_WRONG"
    else:
        assert not is_wrong, f"{case.file}: {found}"


def test_the_list_of_wrong_ones_names_cases() -> None:
    names = [name for names in KNOWN_WRONG.values() for name in names]
    assert sorted(names) == sorted(set(names) & {case.file for case in read_all("cases")})


@pytest.mark.parametrize(("one", "other"), list(combinations(FOLDERS, 2)))
def test_no_case_is_in_two_parts(one: str, other: str) -> None:
    sources = [{case.header["source"] for case in read_all(folder)} for folder in (one, other)]
    assert not sources[0] & sources[1], "whoever writes rules must not have read what checks them"
