"""What holds down the clocks of GPUs at work: two looks warn, ten minutes beside faster peers fail."""

from __future__ import annotations

import pytest

from gangrun.health.framework.check import Reading, Severity, Value
from gangrun.health.framework.evidence import as_evidence, is_fatal
from tests.health.looks import look, reading, verdict_after

OK, WARN, FAIL, UNKNOWN = Severity.OK, Severity.WARN, Severity.FAIL, Severity.UNKNOWN
IDLE, POWER_CAP, HARDWARE, SOFT_HEAT, HEAT, BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80


def gpus(
    at: float,
    *reasons: int | None,
    mhz: float = 1980.0,
    busy: int = 99,
    count: int = 4,
    uuid: str = "u",
    boot: str = "b",
) -> Reading:  # fmt: skip
    """The first GPUs have these reasons and this clock, all others work well."""
    values: dict[str, dict[str, Value]] = {}
    for n in range(count):
        own: dict[str, Value] = {"uuid": f"{uuid}{n}", "busy_percent": busy, "sm_clock_mhz": 1980.0}
        reason = reasons[n] if n < len(reasons) else 0
        if n < len(reasons):
            own["sm_clock_mhz"] = mhz
        values[f"gpu {n}"] = {**own, **({"clock_reasons": reason} if reason is not None else {})}
    return reading(values, at, boot)


@pytest.mark.parametrize(
    ("before", "now", "severity", "words"),
    [
        (gpus(0.0, HEAT), gpus(15.0, HEAT), WARN, "gpu 0: the GPU is at work and slowed down by its own heat guard"),
        (gpus(0.0, HARDWARE), gpus(15.0, HARDWARE | BRAKE), WARN, "by the power brake: power supply or rack"),
        (gpus(0.0, HARDWARE), gpus(15.0, HARDWARE), WARN, "by its hardware"),
        (gpus(0.0, SOFT_HEAT), gpus(15.0, SOFT_HEAT), WARN, "for heat by the driver"),
        (gpus(0.0, BRAKE, BRAKE, BRAKE), gpus(15.0, BRAKE, BRAKE, BRAKE), WARN, "as 2 more at work here"),
        (gpus(0.0, POWER_CAP), gpus(15.0, POWER_CAP), OK, ""),
        (gpus(0.0, 0x2 | 0x10 | 0x100), gpus(15.0, 0x2 | 0x10 | 0x100), OK, ""),
        (gpus(0.0), gpus(15.0, HEAT), OK, ""),
        (gpus(0.0, POWER_CAP), gpus(15.0, HEAT), OK, ""),
        (gpus(0.0, HEAT, busy=3), gpus(15.0, HEAT), OK, ""),
        (gpus(0.0, HEAT, uuid="other"), gpus(15.0, HEAT), OK, ""),
        (gpus(0.0, HEAT, boot="a"), gpus(15.0, HEAT), OK, ""),
        (None, gpus(15.0, HEAT), OK, ""),
        (gpus(0.0, HEAT, busy=3), gpus(15.0, HEAT, busy=49), UNKNOWN, "no GPU is at work"),
        (None, gpus(15.0, None, count=1), UNKNOWN, "no GPU says"),
        (None, reading({"node": {}}), UNKNOWN, "no NVIDIA GPU here"),
    ],
)
def test_two_looks_running(before: Reading | None, now: Reading, severity: Severity, words: str) -> None:
    verdict = look("gpu_slowed", now, before)
    assert (verdict.severity, words in verdict.words) == (severity, True), verdict
    assert not any(is_fatal(found) for found in verdict.findings)


def minutes(*reasons: int, mhz: float = 1200.0, last: int = HEAT, count: int = 4) -> list[Reading]:
    """A look a minute with these reasons, and one more when the ten minutes are over."""
    looks = [gpus(60.0 * k, one, mhz=mhz, count=count) for k, one in enumerate((*reasons, last))]
    return [*looks, gpus(60.0 * len(looks) + 1.0, last, mhz=mhz, count=count)]


MOST, HALF = (HEAT, HEAT, 0) * 4, (HEAT, 0) * 6


@pytest.mark.parametrize(
    ("looks", "severity"),
    [
        (minutes(*MOST, *MOST), FAIL),
        (minutes(*MOST, *MOST, last=HARDWARE), FAIL),
        (minutes(*HALF, *HALF), WARN),  # not most of the time
        (minutes(*MOST, *MOST, mhz=1700.0), WARN),  # it keeps up with the others
        (minutes(*MOST, *MOST, count=2), WARN),  # too few to compare with
        (minutes(*MOST[:8]), WARN),  # ten minutes are not over
        (minutes(*[SOFT_HEAT] * 20, last=SOFT_HEAT), WARN),  # the driver's doing
        (minutes(*MOST, *MOST, last=0), OK),  # it is over
        (minutes(*MOST, *MOST)[::6], WARN),  # hardly looked at
    ],
)
def test_what_lasts_beside_faster_peers_is_broken(looks: list[Reading], severity: Severity) -> None:
    verdict = verdict_after("gpu_slowed", looks)
    assert verdict.severity is severity, verdict
    if severity is FAIL:
        assert "gpu 0: the GPU is slowed down" in verdict.words
        assert "1200 MHz while the GPUs beside it run at 1980" in verdict.words
        assert [one.fatal for one in as_evidence("n1", [verdict], 5.0)] == [True]


def test_another_card_or_boot_begins_its_own_history() -> None:
    for other in (gpus(1600.0, HEAT, mhz=1200.0, boot="c"), gpus(1600.0, HEAT, mhz=1200.0, uuid="new")):
        again = gpus(1615.0, HEAT, mhz=1200.0, boot=other.boot_id, uuid=str(other.facts.get("gpu 0", "uuid"))[:-1])
        assert verdict_after("gpu_slowed", [*minutes(*MOST, *MOST), other, again]).severity is WARN
