"""Links, SRAM and firmware through the real pynvml and the driver library of the tests, on GPUs of four kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gangrun.health.framework.check import CauseClass, Needs, Reading, Severity
from gangrun.health.framework.evidence import as_evidence
from tests.health.looks import look
from tests.health.profiles import PROFILES
from tests.health.test_nvml import Library, build, library  # noqa: F401 - fixtures

pytestmark = [pytest.mark.compiler, pytest.mark.processes]
Make = Callable[..., Library]


def reading(one: Library, at: float = 0.0, **changes: object) -> Reading:
    return Reading("gpu", at, "b", one.facts(**changes))


@pytest.mark.parametrize(
    ("profile", "speed", "ecc"),
    [("A100", 25000, True), ("H100", 26562, False), ("H200", 26562, False), ("B200", 53125, False)],
)
def test_links_that_are_slower_than_their_like(library: Make, profile: str, speed: int, ecc: bool) -> None:  # noqa: F811
    one = library(profile=profile)
    well = reading(one)
    assert (look("nvlink_speed", well).severity, look("nvlink_speed", well).shown) == (Severity.OK, f"{speed} MB/s")
    assert (well.facts.get("gpu 1 link 0", "ecc") == 0) is ecc
    slow = look("nvlink_speed", reading(one, gpu1__link0__field164=speed // 2))
    assert slow.words.startswith(f"gpu 1 link 0: link speed is {speed // 2} MB/s, and {speed} MB/s on its peers (limit")
    [finding] = slow.findings
    assert (finding.severity, finding.place, finding.needs) == (Severity.WARN, "gpu 1 link 0", Needs.ADMIN)
    down = look("nvlink_speed", reading(one, gpu1__link0=0, gpu1__link0__field164=1))
    assert down.severity is Severity.OK, "a link that is down has no speed, and nvlink_state tells of it"
    alone: dict[str, Any] = {f"gpu{n}__link{link}__field164": "!3" for n in (0, 1) for link in (0, 1)}
    verdict = look("nvlink_speed", reading(one, **alone))
    assert (verdict.severity, verdict.words) == (Severity.UNKNOWN, "this GPU does not measure it")


def test_ecc_errors_of_links_are_counted_where_the_card_does(library: Make) -> None:  # noqa: F811
    one = library(profile="A100")
    before = reading(one, 0.0)
    verdict = look("nvlink_errors", reading(one, 60.0, gpu1__link1__errors4=2), before)
    assert verdict.words == "gpu 1 link 1: ECC errors of data rose from 0 to 2 in 60 s (limit: below 1 per minute)"
    assert look("nvlink_errors", reading(one, 60.0, gpu0__link0__errors3=1), before).severity is Severity.WARN


def test_what_two_links_cannot_say_the_others_are_not_asked(library: Make) -> None:  # noqa: F811
    links = {f"gpu0__link{link}": 1 for link in (2, 3)} | {f"gpu0__link{link}__errors4": 5 for link in (2, 3)}
    facts = library().facts(gpu0__field91=4, gpu0__link0__field164="!3", gpu0__link3__field164=26562, **links)
    assert facts.get("gpu 0 link 3", "active") == 1
    assert facts.places_with("ecc") == (), "the first two did not count it"
    assert facts.places_with("speed_mbps")[:2] == ("gpu 0 link 1", "gpu 0 link 3"), "one said it, so all are asked"


@pytest.mark.parametrize(
    "first",
    [
        {f"gpu0__link{link}": 0 for link in (0, 1)},
        {f"gpu0__link{link}": "!3" for link in (0, 1)},
        {f"gpu0__link{link}": "!10" for link in (0, 1)},
        {f"gpu0__link{link}__errors4": "!10" for link in (0, 1)},
        {f"gpu0__link{link}__errors4": "!999" for link in (0, 1)},
    ],
    ids=["down", "not wired", "no answer about the link", "no answer", "unknown"],
)
def test_links_that_are_down_and_drivers_that_do_not_answer_silence_no_other(
    library: Make,  # noqa: F811
    first: dict[str, object],
) -> None:
    others = {f"gpu0__link{link}": 1 for link in (2, 3)} | {f"gpu0__link{link}__errors4": 5 for link in (2, 3)}
    facts = library().facts(gpu0__field91=4, **others, **first)
    assert [place for place in facts.places_with("ecc") if place.startswith("gpu 0")] == [
        "gpu 0 link 2",
        "gpu 0 link 3",
    ]
    assert [facts.get(f"gpu 0 link {link}", "active") for link in (2, 3)] == [1, 1]


@pytest.mark.parametrize(
    ("sram", "severity", "words"),
    [
        ("0 4 0 4 0 0 0 0", Severity.OK, ""),
        ("0 3 2 4 1 0 0 0", Severity.WARN, "SRAM errors in its life is 5 (limit 4). They are 4 in the L2"),
        ("1 0 9 0 0 0 8 1", Severity.FAIL, "than NVIDIA allows: 9 uncorrectable ones. They are 8 in"),
        ("1 0 0 0 0 0 0 0", Severity.FAIL, "than NVIDIA allows: 0 uncorrectable ones. NVIDIA"),
    ],
)  # fmt: skip
def test_where_sram_wore_out(library: Make, sram: str, severity: Severity, words: str) -> None:  # noqa: F811
    verdict = library().look("gpu_sram", gpu1__sram=sram)
    assert (verdict.severity, words in verdict.words) == (severity, True), verdict
    assert all(one.needs is Needs.RMA for one in verdict.findings)


@pytest.mark.parametrize("profile", PROFILES)
def test_firmware_of_gpus_of_one_model_is_one(library: Make, profile: str) -> None:  # noqa: F811
    one, model = library(profile=profile), PROFILES[profile]["name"]
    vbios, rom = PROFILES[profile]["vbios"], PROFILES[profile]["info_rom_version"]
    same = look("gpu_firmware", reading(one))
    assert (same.severity, same.shown) == (Severity.OK, f"{vbios}, {rom}")
    assert same.alike == {f"{model} VBIOS": vbios, f"{model} info ROM": rom}
    other = look("gpu_firmware", reading(one, gpu0__vbios="90.0", gpu1__info_rom_version="!3"))
    assert other.words == f"gpu 0: {model} VBIOS is 90.0, and {vbios} on the devices beside it"
    assert [finding.cause for finding in other.findings] == [CauseClass.CONFIG]
    assert not any(one.poor or one.fatal for one in as_evidence("n1", [other], 0.0)), "a set-up keeps nobody away"
    silent: dict[str, Any] = {f"gpu{n}__{name}": "!13" for n in (0, 1) for name in ("vbios", "info_rom_version")}
    assert look("gpu_firmware", reading(one, **silent)).words == "this driver is too old to say"
