"""What readings of GPUs mean, by values: growth, peers, modes. How they are read: ``test_nvml``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.health.framework.check import CheckVerdict, Needs, Reading, Severity
from tests.health.looks import look, reading, verdict_after


def gpus(at: float = 1000.0, count: int = 4, places: dict[str, Any] | None = None, **changes: Any) -> Reading:
    """GPUs of one kind; ``changes`` go to the second of them."""
    values: dict[str, dict[str, Any]] = {f"gpu {n}": {"uuid": f"GPU-{n}"} for n in range(count)}
    for place in values:
        values[place] |= {name: 0 if isinstance(value, (int, float)) else value for name, value in changes.items()}
    values["gpu 1"] |= changes
    return reading({"node": {"gpus_count": count}, **values, **(places or {})}, at)


def seen(verdict: CheckVerdict) -> tuple[Severity, list[str]]:
    return verdict.severity, [finding.place for finding in verdict.findings]


def test_corrected_errors_count_by_rate_over_a_window() -> None:
    start = gpus(at=0.0, ecc_corrected=5_000_000)
    assert look("gpu_ecc_corrected", start).severity is Severity.UNKNOWN, "a count may be years old"
    slow = verdict_after("gpu_ecc_corrected", [start, gpus(at=300.0, ecc_corrected=5_000_080)])
    assert slow.severity is Severity.OK
    fast = verdict_after("gpu_ecc_corrected", [start, gpus(at=300.0, ecc_corrected=5_000_200)])
    assert seen(fast) == (Severity.WARN, ["gpu 1"])
    assert fast.findings[0].needs is Needs.NONE
    burst = verdict_after("gpu_ecc_corrected", [start, gpus(at=1.0, ecc_corrected=5_000_002)])
    assert burst.severity is Severity.OK, "two in a second are no rate"
    spread = [gpus(at=60.0 * n, ecc_corrected=5_000_000 + 25 * n) for n in range(7)]
    assert verdict_after("gpu_ecc_corrected", spread).severity is Severity.WARN, "no two looks show it, the window does"


def test_links_that_are_all_down_may_not_be_wired() -> None:
    places = {f"gpu {n} link 0": {"active": 0} for n in range(2)}
    assert look("nvlink_state", gpus(places=places)).severity is Severity.UNKNOWN
    places["gpu 0 link 0"] = {"active": 1}
    assert seen(look("nvlink_state", gpus(places=places))) == (Severity.FAIL, ["gpu 1 link 0"])


def heated(second: float, others: float, **more: Any) -> Reading:
    now = gpus(temperature_c=second, **more)
    values = {place: dict(names) for place, names in now.facts.values.items()}
    for place in ("gpu 0", "gpu 2", "gpu 3"):
        values[place]["temperature_c"] = others
        values[place].pop("margin_c", None)
        values[place].pop("slowdown_c", None)
    return reading(values)


def test_heat() -> None:
    assert look("gpu_temperature", heated(61, 50)).severity is Severity.OK
    beside = look("gpu_temperature", heated(63, 50))
    assert (seen(beside), "63 °C, and the difference to the GPUs beside it is 13 °C" in beside.words) == (
        (Severity.WARN, ["gpu 1"]), True,
    )  # fmt: skip
    assert look("gpu_temperature", heated(60, 60, margin_c=5)).severity is Severity.OK
    assert look("gpu_temperature", heated(60, 60, margin_c=-1)).severity is Severity.WARN
    assert look("gpu_temperature", heated(83, 80, slowdown_c=87)).severity is Severity.WARN, "without a margin"
    assert look("gpu_temperature", heated(60, 60, memory_temperature_c=95)).severity is Severity.WARN
    own_limit = heated(60, 60, memory_temperature_c=90, memory_most_c=90)
    assert look("gpu_temperature", own_limit).severity is Severity.WARN


def test_a_gpu_without_any_margin_for_minutes_is_broken() -> None:
    looks = [replace(heated(92, 90, margin_c=margin), at=60.0 * k) for k, margin in enumerate((0, -1, 0, 0, -2, 0))]
    assert verdict_after("gpu_temperature", looks).severity is Severity.FAIL
    assert (
        "time at the temperature at which it slows down (now 92 °C) is 5 min"
        in verdict_after("gpu_temperature", looks).words
    )
    assert verdict_after("gpu_temperature", looks[:5]).severity is Severity.WARN
    cooled = [*looks[:3], replace(heated(92, 90, margin_c=1), at=170.0), *looks[3:]]
    assert verdict_after("gpu_temperature", cooled).severity is Severity.WARN
    assert verdict_after("gpu_temperature", [*looks[:5], replace(looks[5], boot_id="c")]).severity is Severity.WARN


def driver(module: str | None) -> Reading:
    node: dict[str, Any] = {"driver": "570.86.15", **({"loaded_driver": module} if module else {})}
    return reading({"node": node, "gpu 0": {}})


def one_gpu(**values: Any) -> Reading:
    return reading({"gpu 0": {"uuid": "u", **values}})


OK, WARN, FAIL = Severity.OK, Severity.WARN, Severity.FAIL


@pytest.mark.parametrize(
    ("name", "now", "severity", "words"),
    [
        ("gpu_driver", driver("570.86.15"), OK, ""),
        ("gpu_driver", driver("550.54.14"), WARN, ""),
        ("gpu_driver", driver(None), OK, ""),
        ("gpu_modes", one_gpu(ecc_mode=0, ecc_mode_pending=0), WARN, "ECC is off"),
        ("gpu_modes", one_gpu(ecc_mode=1, ecc_mode_pending=0), WARN, "waits for a reboot"),
        ("gpu_leftovers", one_gpu(memory_used_bytes=40e9, processes_count=2), OK, ""),  # a program is at work there
        ("gpu_leftovers", one_gpu(memory_used_bytes=40e9, processes_count=0), WARN, "40.0 GB"),
        ("gpu_leftovers", one_gpu(memory_used_bytes=40e9), OK, ""),  # whose it is cannot be told
    ],
)
def test_what_one_look_tells(name: str, now: Reading, severity: Severity, words: str) -> None:
    verdict = look(name, now)
    assert (verdict.severity, words in verdict.words) == (severity, True), verdict


def test_an_action_that_nobody_knows_is_told() -> None:
    verdict = look("gpu_recovery", gpus(recovery_action=99))
    assert (seen(verdict), verdict.findings[0].needs) == ((Severity.WARN, ["gpu 1"]), Needs.ADMIN)
