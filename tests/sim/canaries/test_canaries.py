"""With any one rule of the protocol taken out, some small world fails; with all of them in, none does.

``SEEDS`` were found by search (``python -m tests.sim.canaries.hunt``). A change elsewhere may move them: then the test
looks a little further before it complains, and the search says which seeds to write here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.canaries.canary import MUTANTS, breaks_with, breaks_without
from tests.sim.canaries.seeds import SEEDS
from tests.sim.canaries.table import page

FURTHER_COUNT = 150
PAGE = Path(__file__).parents[3] / "docs" / "canaries.md"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_taken_out_is_seen(name):
    mutant = MUTANTS[name]
    for seed in (*SEEDS[name], *range(FURTHER_COUNT)):
        if breaks_without(name, seed) in mutant.breaks and not breaks_with(name, seed):
            return
    pytest.fail(f"nothing fails without this rule: {mutant.rule}")


@pytest.mark.parametrize("name", MUTANTS)
def test_with_the_rule_in_nothing_breaks(name):
    assert {seed: breaks_with(name, seed) for seed in SEEDS[name]} == dict.fromkeys(SEEDS[name], "")


def test_every_mutant_has_its_seeds():
    assert set(SEEDS) == set(MUTANTS)


def test_a_mutant_leaves_everything_as_it_was():
    for mutant in MUTANTS.values():
        places = [(owner, name) for owner, name, _ in mutant.swaps()]
        before = [vars(owner)[name] for owner, name in places]
        with mutant.installed():
            assert [vars(owner)[name] for owner, name in places] != before
        assert [vars(owner)[name] for owner, name in places] == before, mutant.name


def test_the_table_of_canaries_is_that_of_the_mutants():
    assert PAGE.read_text("utf-8") == page(), "python -m tests.sim.canaries.table > docs/canaries.md"
