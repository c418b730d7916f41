"""All labelled failures together: nobody healthy is excluded, the order does not matter, and the docs tell the figures.

These play each case many times, so they run without the tracing of branches, beside the other quick tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.judgement.case import Case, read_all
from tests.core.judgement.figures import healthy_excluded, page, played_all
from tests.core.judgement.player import play
from tests.core.judgement.test_judgement import FOLDERS, KNOWN_WRONG

DOCS_PAGE = Path(__file__).parents[3] / "docs" / "judgement.md"
# A GPU that another process holds for a while (two); a proxy that cuts connections; a damaged input file that the
# ranks of one node read.
KNOWN_EXCLUDED = {
    "foreign-process-gone-at-the-next-try",
    "foreign-process-all-devices-busy-left-by-last-job",
    "network-connection-abort-through-the-proxy",
    "storage-cgns-reads-children-that-do-not-match",
}
ALL = [case for folder in FOLDERS for case in read_all(folder)]


@pytest.mark.slow
def test_no_other_healthy_node_is_excluded_and_the_page_tells_the_figures() -> None:
    """Together, so that one process plays each case once."""
    assert excluded_for_nothing(tests=True) == KNOWN_EXCLUDED
    told = "python -m tests.core.judgement.figures --page > docs/judgement.md"
    assert DOCS_PAGE.read_text("utf-8") == page(KNOWN_WRONG), told


@pytest.mark.slow  # so that another process begins with it, beside the one above
def test_without_tests_of_suspects_no_other_healthy_node_is_excluded_either() -> None:
    assert excluded_for_nothing(tests=False) == KNOWN_EXCLUDED


def excluded_for_nothing(*, tests: bool) -> set[str]:
    runs = [run for folder in FOLDERS for of in played_all(folder, tests=tests).values() for run in of]
    return {case.file for case, played in runs if healthy_excluded(case, played)}


@pytest.mark.parametrize("case", [case for case in ALL if case.header.get("falls") == "all"], ids=lambda c: c.file)
def test_it_does_not_matter_which_of_many_ranks_falls_first(case: Case) -> None:
    seen = [play(case, 1, turn=turn) for turn in (0, 1, 4)]
    assert len({(one.concluded, one.restarts_count, one.succeeded, one.excluded) for one in seen}) == 1, seen
