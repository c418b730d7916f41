"""Ranks compute their neighbour's batch too: an odd one is found, and training does not notice."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.training.harness import run_program

pytestmark = pytest.mark.processes


def replayed(*cases: tuple[str, int, list[int]]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_program("replays.py", json.dumps(cases)).splitlines()]


def test_the_odd_rank_is_found_by_both_its_neighbours_and_of_two_both_are_told() -> None:
    """Batches differ on all ranks, dropout is random, BatchNorm has statistics: none of it is a difference."""
    healthy, one, pair, all_over = replayed(("ddp", 4, []), ("ddp", 3, [1]), ("ddp", 2, [0]), ("ddp", 4, [0, 2]))
    assert healthy == {"found": None, "steps": [2, 2, 5, 5, 8, 8], "told": []}
    found = one["found"]
    assert (found["odd"], found["copies_count"], found["agreeing_count"], found["replayed"]) == ([1], 3, 2, True)
    assert (found["step"], found["agreed_step"], found["name"]) == (8, 2, "loss")
    assert (pair["found"]["odd"], pair["found"]["copies_count"]) == ([0, 1], 2)
    assert (all_over["found"]["odd"], all_over["found"]["copies_count"]) == ([], 4), "no single device does this"


def test_what_cannot_be_compared_is_said_once() -> None:
    sharded, alone, random = replayed(("fsdp", 2, []), ("one alone", 3, []), ("not deterministic", 2, []))
    assert (sharded["found"], sharded["steps"]) == (None, [])
    assert [words.partition(":")[0] for words in sharded["told"]] == ["--sdc-check every=3 compares nothing"]
    assert (alone["found"], alone["steps"]) == (None, [2, 2, 5, 5, 8, 8])
    assert alone["told"] == ["--sdc-check every=3 compares 2 of 3 ranks: the others have other weights or devices"]
    assert (random["found"], random["steps"]) == (None, [2, 2])
    assert len(random["told"]) == 1 and "put_ does not have a deterministic implementation" in random["told"][0]
