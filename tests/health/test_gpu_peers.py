"""GPUs beside each other, their bus at work, and errors that come faster and faster."""

from __future__ import annotations

from typing import Any

import pytest

from gangrun.health.framework.check import Reading, Severity
from gangrun.health.framework.evidence import as_evidence
from tests.health.looks import look, reading, verdict_after

OK, WARN, UNKNOWN = Severity.OK, Severity.WARN, Severity.UNKNOWN
AT_WORK: dict[str, Any] = {
    "model": "H100", "uuid": "u", "power_limit_w": 700.0, "pcie_generation": 5, "pcie_generation_max": 5,
    "busy_percent": 99, "processes_count": 1,
}  # fmt: skip


def gpus(at: float = 1000.0, boot: str = "b", count: int = 4, **second: Any) -> Reading:
    values = {f"gpu {n}": {**AT_WORK, **(second if n == 1 else {})} for n in range(count)}
    kept = {place: {name: v for name, v in names.items() if v is not None} for place, names in values.items()}
    return reading(kept, at, boot)


SLOW: dict[str, Any] = {"pcie_generation": 1}
IDLE: dict[str, Any] = {"busy_percent": 4}
RESTING = reading({"gpu 0": {**AT_WORK, "busy_percent": 0, "pcie_generation": 1}})


@pytest.mark.parametrize(
    ("name", "now", "before", "severity", "words"),
    [
        ("gpu_power", gpus(power_limit_w=300.0, count=2), None, OK, ""),
        ("gpu_pcie_speed", gpus(**SLOW), gpus(0.0, **SLOW), WARN, "PCIe generation at work is 1"),
        ("gpu_pcie_speed", gpus(**SLOW, busy_percent=49), gpus(0.0, **SLOW), OK, ""),
        ("gpu_pcie_speed", RESTING, None, UNKNOWN, "no GPU is at work"),
        ("gpu_idle", gpus(**IDLE), gpus(0.0, **IDLE), WARN, "gpu 1: load while the GPUs beside it work is"),
        ("gpu_idle", gpus(**IDLE, processes_count=0), gpus(0.0, **IDLE), OK, ""),
        ("gpu_idle", gpus(count=3, **IDLE), gpus(0.0, count=3, **IDLE), UNKNOWN, "fewer than 3 GPUs are at work"),
        ("gpu_idle", gpus(busy_percent=None), None, OK, ""),  # one that is lost takes no other along
    ],
)  # fmt: skip
def test_beside_its_peers(name: str, now: Reading, before: Reading | None, severity: Severity, words: str) -> None:
    verdict = look(name, now, before)
    assert (verdict.severity, words in verdict.words) == (severity, True), verdict.words


def test_only_what_hardware_may_cause_makes_a_node_poor() -> None:
    slow = look("gpu_pcie_speed", gpus(**SLOW), gpus(0.0, **SLOW))
    idle = look("gpu_idle", gpus(**IDLE), gpus(0.0, **IDLE))
    assert [one.poor for one in as_evidence("n1", [slow, idle], 5.0)] == [True, False]


def corrected(*per_window: int, uuid: str = "u", step_s: float = 100.0) -> list[Reading]:
    """Looks every 100 s; each window takes so many errors, and the look that ends it begins the next."""
    counts = [7]
    for errors in per_window:
        counts += [counts[-1] + errors * k // 6 for k in range(1, 7)]
    looks = enumerate([*counts, counts[-1]])
    return [reading({"gpu 0": {"uuid": uuid, "ecc_corrected": count}}, k * step_s) for k, count in looks]


@pytest.mark.parametrize(
    ("per_window", "severity"),
    [
        ((6, 12, 24), WARN),  # 36, 72, 144 an hour
        ((3, 6, 12), OK),  # too few to tell
        ((12, 24, 40), OK),  # not twice as many
        ((6, 11, 24), OK),
        ((0, 12, 24), OK),
        ((12, 24), OK),
        ((6, 12, 24, 24), OK),  # it goes on, and grows no more
        ((24, 6, 12, 24), WARN),
    ],
)
def test_few_errors_that_come_faster_and_faster_are_a_sign(per_window: tuple[int, ...], severity: Severity) -> None:
    verdict = verdict_after("gpu_ecc_corrected", corrected(*per_window))
    assert verdict.severity is severity, verdict.words
    if severity is WARN:
        assert "which doubles every 10 min, is 144 (limit: below 100)" in verdict.words


def test_another_gpu_or_boot_has_another_past() -> None:
    now = corrected(6, 12, 24)
    swapped = corrected(6, 12, 24, uuid="v")[-1]
    assert verdict_after("gpu_ecc_corrected", [*now[:-1], swapped]).severity is not WARN
    booted = reading({"gpu 0": {"uuid": "u", "ecc_corrected": 99}}, 9000.0, "c")
    assert verdict_after("gpu_ecc_corrected", [*now[:-2], booted]).severity is UNKNOWN
