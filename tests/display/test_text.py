"""Tables of text: they fit the terminal, whatever the names in them."""

from __future__ import annotations

import pytest

from gangrun.display.text import table

HEAD = ("run", "name", "size", "why")
LONG = "a-name-of-a-run-that-somebody-made-of-all-its-hyperparameters_lr3e-4_bs2048_wd0.1_seed17_again"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_long_name_gives_way_and_nothing_of_it_is_lost(columns: int) -> None:
    lines = table(
        HEAD, [("20261122-215712-iltt4", LONG, "49.8 kB", "it ended three days ago, and nobody needs it")], columns
    )
    assert max(map(len, lines)) <= columns
    text = "".join(lines).replace(" ", "")
    assert all(word in text for word in ("name", "size", "needs"))
    at = lines[0].index("name"), lines[0].index("size")
    assert "".join(line[at[0] : at[1]].strip() for line in lines[1:]) == LONG


def test_columns_are_as_wide_as_they_must_be_if_there_is_room() -> None:
    assert table(HEAD, [("r1", "short", "1 B", "ended")], 80) == [
        "  run  name   size  why",
        "  r1   short  1 B   ended",
    ]
