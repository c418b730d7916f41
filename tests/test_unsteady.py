"""Which red tests CI runs again, and what it says of them."""

from __future__ import annotations

import pytest

from tests.unsteady import MOST_AGAIN, Part, conclude, red_at_once

ONE = {"tests/a.py::one": "AssertionError: one\n--- log\nits log"}
GREEN = Part(0, 7, 1.0, {}, crashed=False)
RED = Part(1, 3, 2.0, ONE, crashed=False)
SEVERAL = {f"tests/a.py::test_{number}": "wrong" for number in range(MOST_AGAIN + 1)}


def never(test: str) -> bool:
    raise AssertionError(f"{test} was run again")


@pytest.mark.parametrize(
    ("red", "part", "why"),
    [
        pytest.param([], GREEN, "before or beside", id="lint"),
        pytest.param(["core"], RED, "core is red", id="core"),
        pytest.param(["sweep"], RED, "sweep is red", id="sweep"),
        pytest.param(["gone"], RED, "gone is red, but not only by tests", id="a session that never ended"),
        pytest.param(["quick"], GREEN, "not only by tests", id="red after its tests"),
        pytest.param(["quick"], RED._replace(crashed=True), "not only by tests", id="a dead worker"),
        pytest.param(["quick"], RED._replace(exit_status=2), "not only by tests", id="collection"),
        pytest.param(["quick"], RED._replace(exit_status=3), "not only by tests", id="pytest itself"),
        pytest.param(["quick"], RED._replace(failures=SEVERAL), f"more than {MOST_AGAIN}", id="many"),
    ],
)
def test_what_is_no_unsteadiness_is_red_at_once(red: list[str], part: Part, why: str) -> None:
    parts = {"core": part, "sweep": part, "quick": part, "serial": GREEN}
    assert why in red_at_once(red, parts)
    code, lines = conclude(red, parts, never)
    assert code == 1 and lines[0].startswith("CI is red: ") and lines[-1].endswith("s ====")


def test_a_test_that_is_green_alone_leaves_ci_green_and_is_shown() -> None:
    code, lines = conclude(["quick"], {"quick": RED, "serial": GREEN}, lambda test: True)
    assert code == 0
    told = "\n".join(lines)
    assert told.index("UNSTEADY") < told.index("tests/a.py::one") < told.index("AssertionError: one")
    assert "its log" in told and lines[-1] == "==== 11 passed, 1 rerun in 3.00s ===="


def test_a_test_that_is_red_twice_leaves_ci_red_beside_an_unsteady_one() -> None:
    other = RED._replace(failures={"tests/b.py::two": "two"})
    code, lines = conclude(["quick", "cluster"], {"quick": RED, "cluster": other}, lambda test: test in ONE)
    assert code == 1
    assert lines[0] == "CI is red: tests/b.py::two failed twice, the second time alone"
    assert lines[-1] == "==== 1 failed, 7 passed, 2 rerun in 4.00s ===="
