"""Each labelled failure is judged as a senior engineer would, but for those that are listed here with the reason."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from tests.core.judgement.case import Case, read_all
from tests.core.judgement.figures import SPARES, TITLES, healthy_excluded, page, played_all, wrong
from tests.core.judgement.player import play

DOCS_PAGE = Path(__file__).parents[3] / "docs" / "judgement.md"

# Development cases that are judged wrongly today, by why. A case that is judged rightly must leave the list.
KNOWN_WRONG: dict[str, tuple[str, ...]] = {}
_WRONG = {name: why for why, names in KNOWN_WRONG.items() for name in names}
FOLDERS = ("cases", "held_out", "held_out_2")
ALL = [case for folder in FOLDERS for case in read_all(folder)]


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


@pytest.mark.parametrize("tests", [True, False], ids=["tests of suspects", "no tests"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_healthy_node_is_excluded(folder: str, tests: bool) -> None:
    runs = [run for runs in played_all(folder, tests=tests).values() for run in runs]
    found = {case.file for case, played in runs if healthy_excluded(case, played)}
    assert not found


@pytest.mark.parametrize("case", [case for case in ALL if case.header.get("falls") == "all"], ids=lambda c: c.file)
def test_it_does_not_matter_which_of_many_ranks_falls_first(case: Case) -> None:
    seen = [play(case, 1, turn=turn) for turn in (0, 1, 4)]
    assert len({(one.concluded, one.restarts_count, one.succeeded, one.excluded) for one in seen}) == 1, seen


def test_the_page_tells_what_the_player_sees() -> None:
    told = "python -m tests.core.judgement.figures --page > docs/judgement.md"
    assert DOCS_PAGE.read_text("utf-8") == page(KNOWN_WRONG), told
