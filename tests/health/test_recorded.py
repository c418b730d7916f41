"""Readings that were kept, judged again: a check that changes its mind about one shows here.

``measured`` ones are of a real machine; ``played`` ones came through the real pynvml from the driver library of the
tests, since no GPU stood behind them.
"""

from __future__ import annotations

import json

import pytest

from gangrun.health.framework.check import Severity
from gangrun.health.framework.readings import plain_reading
from tests.health.looks import RECORDED, family, look, recorded

# file -> what is not well in it; what the hardware cannot say is unknown and not listed
EXPECTED: dict[str, dict[str, Severity]] = {
    "measured-box-host": {"host_clock": Severity.WARN, "host_limits": Severity.WARN, "host_load": Severity.WARN},
    "measured-box-storage": {},
    "played-a100": {},
    "played-a100-double-bit-error": {"gpu_ecc": Severity.FAIL, "gpu_remapped": Severity.WARN},
    "played-b200": {},
    "played-b200-link-down": {"gpu_recovery": Severity.FAIL, "nvlink_state": Severity.FAIL},
    "played-h100": {},
    "played-h100-fell-off-the-bus": {"gpu_lost": Severity.FAIL},
    "played-h100-remapping-failed": {"gpu_remapped": Severity.FAIL},
}


def test_every_file_is_judged() -> None:
    assert sorted(path.stem for path in RECORDED.glob("*.json")) == sorted(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_reading_is_judged_as_ever(name: str) -> None:
    kept = recorded(name)
    verdicts = {check.name: look(check.name, kept) for check in family(kept.family).checks}
    bad = {check: one.severity for check, one in verdicts.items() if one.severity in (Severity.WARN, Severity.FAIL)}
    assert bad == EXPECTED[name]
    assert all(len(one.words) < 250 and "\n" not in one.words for one in verdicts.values())
    assert json.loads((RECORDED / f"{name}.json").read_text("utf-8")) == plain_reading(kept)


def test_an_older_card_is_unknown_where_it_cannot_say() -> None:
    kept = recorded("played-a100")
    for name in ("gpu_recovery", "gpu_sram", "gpu_fabric", "gpu_throttled"):
        verdict = look(name, kept)
        assert (verdict.severity, verdict.words) == (Severity.UNKNOWN, "this GPU does not measure it"), name
