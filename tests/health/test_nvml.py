"""The real pynvml against a small libnvidia-ml.so.1 of our own: what telemetry makes of values, errors and gaps.

Each question is put as ``gangrun health`` puts it: by a child process, which finds the library on its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gangrun.adapters.local.children import ProbeChildren
from gangrun.adapters.local.played_world import H100
from gangrun.health.catalogue import CHECKS
from gangrun.health.framework.check import CheckVerdict, HealthPolicy, NodeFacts, Reading, Severity
from gangrun.health.framework.readings import facts_from
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.gpu import dcgm, devices
from tests.health.looks import look
from tests.health.profiles import PROFILES

pytestmark = [pytest.mark.compiler, pytest.mark.processes]

SOURCE = Path(__file__).parents[2] / "gangrun" / "launch" / "chaos" / "played_nvml.c"
REPO = Path(__file__).parents[2]


@dataclass
class Library:
    """A driver of the tests: what it says, and a way to ask it."""

    state: Path
    environment: dict[str, str]
    profile: Mapping[str, object] = field(default_factory=lambda: H100)

    def say(self, gpus: int = 2, changes: Mapping[str, object] | None = None) -> None:
        lines: dict[str, object] = {"count": gpus, "driver": "570.86.15"}
        lines |= {f"gpu{n}.{key}": str(value).format(n=n) for n in range(gpus) for key, value in self.profile.items()}
        lines |= changes or {}
        text = "".join(f"{key} {value}\n" for key, value in lines.items() if value is not None)
        part = self.state.with_suffix(".part")
        part.write_text(text, "utf-8")
        part.replace(self.state)

    def ask(self, within_s: float = 30.0) -> Any:
        command = (sys.executable, "-m", "gangrun.entry.health_probe")
        return ProbeChildren(command, self.environment).ask("gpu", (), within_s)

    def facts(self, **changes: object) -> NodeFacts:
        self.say(changes={key.replace("__", "."): value for key, value in changes.items()})
        return facts_from(self.ask())

    def look(self, name: str, policy: Any = None, **changes: Any) -> CheckVerdict:
        return look(name, Reading("gpu", 1000.0, "b", self.facts(**changes)), policy=policy or HealthPolicy())


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    built: dict[tuple[str, ...], Path] = {}

    def build_it(*options: str) -> Path:
        if options not in built:
            where = built[options] = tmp_path_factory.mktemp("nvml")
            target = str(where / "libnvidia-ml.so.1")
            flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *options]
            subprocess.run(["cc", *flags, "-o", target, str(SOURCE)], check=True, timeout=300)
        return built[options]

    return build_it


@pytest.fixture
def library(build: Callable[..., Path], tmp_path: Path) -> Callable[..., Library]:
    def make(*options: str, profile: str = "H100") -> Library:
        state = tmp_path / "state"
        return Library(
            state,
            {**os.environ, "LD_LIBRARY_PATH": str(build(*options)), "FAKE_NVML": str(state), "PYTHONPATH": str(REPO)},
            PROFILES[profile],
        )

    return make


def test_a_healthy_node_is_read_whole(library: Callable[..., Library]) -> None:
    facts = library().facts()
    assert devices.gpus_in(facts) == ("gpu 0", "gpu 1")
    assert facts.values["node"] == {"gpus_count": 2, "driver": "570.86.15"}
    assert facts.get("gpu 1", "uuid") == "GPU-1"
    assert facts.get("gpu 1", "pci") == "00000000:1B:00.0"
    values = facts.values["gpu 0"]
    expected = {
        "recovery_action": 0, "ecc_uncorrected": 0, "sram_threshold": 0, "remap_failed": 0, "temperature_c": 41,
        "margin_c": 46, "slowdown_c": 87, "memory_temperature_c": 50, "clock_reasons": 1, "power_limit_w": 700.0,
        "pcie_width": 16, "pcie_width_max": 16, "mig_mode": 0, "memory_used_bytes": 1000000, "processes_count": 0,
        "fabric_state": 3, "fabric_summary": 1, "busy_percent": 0,
    }  # fmt: skip
    assert {name: values.get(name) for name in expected} == expected
    assert facts.values["gpu 0 link 1"] == {
        "active": 1, "replay": 0, "recovery": 0, "crc": 0, "crc_data": 0, "speed_mbps": 26562,
    }  # fmt: skip
    assert {name for names in facts.missing.values() for name in names} == {
        "retired_pages", "recoveries", "channel_repair_pending", "bank_remap_pending", "ecc",
    }, "an H100 retires no pages, and is no Blackwell"  # fmt: skip


BROKEN = [
    ("gpu_ecc", "gpu1__ecc10", 3, Severity.FAIL, "since the driver was loaded is 3 (limit 0)"),
    ("gpu_recovery", "gpu0__field230", 2, Severity.FAIL, "gpu 0: the GPU asks for a reboot"),
    ("gpu_recovery", "gpu0__field230", 4, Severity.WARN, "gpu 0: the GPU asks to be drained and reset"),
    ("gpu_sram", "gpu1__sram", 1, Severity.FAIL, "replaces"),
    ("gpu_remapped", "gpu0__remapped", "0 2 0 1", Severity.FAIL, "no spare row"),
    ("gpu_remapped", "gpu0__remapped", "0 1 1 0", Severity.WARN, "waits for a reset"),
    ("gpu_temperature", "gpu1__margin", 2, Severity.WARN, "before it slows down is 2 °C (limit: at least 5"),
    ("gpu_pcie", "gpu1__width", 8, Severity.FAIL, "number of PCIe lanes is 8 (limit: at least 16)"),
    ("gpu_fabric", "gpu0__fabric", "2 0 0", Severity.WARN, "still joining"),
    ("gpu_fabric", "gpu0__fabric", "3 0 2", Severity.FAIL, "gpu 0: fabric health is 2 (not healthy)"),
    ("gpu_fabric", "gpu0__fabric", "3 0 2 1", Severity.FAIL, "gpu 0: its bandwidth is degraded in the NVLink fabric"),
    ("gpu_fabric", "gpu0__fabric", "3 1 2", Severity.FAIL, "Fabric Manager"),
    ("gpu_fabric", "gpu0__fabric", "3 0 0 1", Severity.FAIL, "gpu 0: its bandwidth is degraded"),
    ("gpu_fabric", "gpu0__fabric", "3 0 1 16", Severity.FAIL, "a route is unhealthy"),
    ("gpu_fabric", "gpu0__fabric", "3 0 1 4", Severity.WARN, "a route is being recovered"),
    ("nvlink_state", "gpu1__link0", 0, Severity.FAIL, "gpu 1 link 0: NVLink is down"),
    ("gpu_modes", "gpu0__mig", 1, Severity.WARN, "MIG"),
    ("gpu_leftovers", "gpu0__memory_used", 9_000_000_000, Severity.WARN, "left it behind"),
    ("gpu_lost", "gpu1__temperature", "!15", Severity.FAIL, "gpu 1: the GPU does not answer"),
    ("gpu_lost", "gpu1__ecc10", "!16", Severity.FAIL, "waits for a reset"),
    ("gpu_lost", "gpu0__uuid", "!14", Severity.FAIL, "info ROM"),
    ("gpu_lost", "gpu1__handle", "!15", Severity.FAIL, "gpu 1: the GPU does not answer"),
    ("gpu_lost", "gpu1__handle", "!999", Severity.FAIL, "gpu 1: the GPU does not answer"),
]


@pytest.mark.parametrize(("name", "key", "value", "severity", "words"), BROKEN)
def test_what_breaks_is_seen(
    library: Callable[..., Library], name: str, key: str, value: object, severity: Severity, words: str
) -> None:
    verdict = library().look(name, **{key: value})
    assert (verdict.severity, len(verdict.findings)) == (severity, 1), verdict
    assert words in verdict.words


@pytest.mark.parametrize(
    ("code", "why"),
    [(3, "does not measure it"), (4, "users may not read"), (10, "did not answer in time"), (999, "NVML error 999")],
)
def test_an_error_of_one_getter_is_unknown_with_its_reason(
    library: Callable[..., Library], code: int, why: str
) -> None:
    facts = library().facts(gpu0__ecc10=f"!{code}", gpu1__ecc10=f"!{code}")
    assert why in facts.missing["gpu 0"]["ecc_uncorrected"]
    verdict = look("gpu_ecc", Reading("gpu", 0.0, "b", facts))
    assert (verdict.severity, why in verdict.words) == (Severity.UNKNOWN, True)
    assert look("gpu_lost", Reading("gpu", 0.0, "b", facts)).severity is Severity.OK
    assert look("gpu_temperature", Reading("gpu", 0.0, "b", facts)).severity is Severity.OK


def test_a_field_has_its_own_return_code(library: Callable[..., Library]) -> None:
    facts = library().facts(gpu0__field230="!3", gpu1__field230="!3")
    assert facts.missing["gpu 1"]["recovery_action"] == "this GPU does not measure it"
    assert look("gpu_recovery", Reading("gpu", 0.0, "b", facts)).severity is Severity.UNKNOWN


def test_a_lost_gpu_takes_no_other_along(library: Callable[..., Library]) -> None:
    facts = library().facts(gpu0__uuid="!15")
    assert facts.get("gpu 1", "temperature_c") == 41
    assert facts.get("gpu 0", "temperature_c") is None
    assert look("gpu_ecc", Reading("gpu", 0.0, "b", facts)).shown == "0 uncorrected (1 not measured)"


def test_an_old_driver_lacks_functions(library: Callable[..., Library]) -> None:
    facts = library("-DWITHOUT_FIELDS", "-DWITHOUT_NEW_TEMPERATURE", "-DOLD_FABRIC").facts(gpu1__fabric="3 0 9 170")
    missing = facts.missing["gpu 0"]
    assert "too old" in missing["recovery_action"]
    assert "too old" in missing["margin_c"]
    assert facts.get("gpu 0", "temperature_c") == 41, "the older function says it too"
    assert facts.get("gpu 0", "clock_reasons") == 1
    assert facts.get("gpu 0", "memory_used_bytes") == 1000000
    assert (facts.get("gpu 1", "fabric_mask"), facts.get("gpu 1", "fabric_summary")) == (170, None), "an older form"
    assert look("nvlink_state", Reading("gpu", 0.0, "b", facts)).severity is Severity.UNKNOWN


def around(tmp_path: Path, probes: object, on_bus: int) -> HealthSurroundings:
    for n in range(on_bus):
        device = tmp_path / f"sys/bus/pci/devices/0000:{n}b:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    return HealthSurroundings(tmp_path, probes)  # type: ignore[arg-type]


class Asked:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> NodeFacts:
        return facts_from(self.answer)


@pytest.mark.parametrize(
    ("init", "on_bus", "gpus", "severity", "words"),
    [
        (18, 2, None, Severity.FAIL, "updated"),
        (9, 2, 2, Severity.FAIL, "cannot be asked"),
        (9, 2, None, Severity.WARN, "cannot be asked"),
        (9, 0, None, Severity.UNKNOWN, "no NVIDIA GPU"),
        (999, 2, 2, Severity.UNKNOWN, "NVML does not answer"),
        (4, 2, None, Severity.UNKNOWN, "NVML does not answer"),
    ],
)
def test_nvml_that_does_not_start(
    library: Callable[..., Library], tmp_path: Path, init: int, on_bus: int, gpus: int | None, severity: Severity,
    words: str,
) -> None:  # fmt: skip
    one = library()
    one.say(changes={"init": f"!{init}"})
    facts = devices.read(around(tmp_path, Asked(one.ask()), on_bus))
    verdict = look("gpu_count", Reading("gpu", 0.0, "b", facts), policy=HealthPolicy(gpus_count=gpus))
    assert (verdict.severity, words in verdict.words) == (severity, True), verdict


@pytest.mark.parametrize(("on_bus", "gpus", "severity"), [(0, None, "unknown"), (2, 2, "fail"), (0, 8, "fail")])
def test_no_library_at_all(tmp_path: Path, on_bus: int, gpus: int | None, severity: str) -> None:
    empty = {**os.environ, "PYTHONPATH": str(REPO), "LD_LIBRARY_PATH": str(tmp_path)}
    said = ProbeChildren((sys.executable, "-m", "gangrun.entry.health_probe"), empty).ask("gpu", (), 30.0)
    assert said["values"]["node"]["nvml_error"] == 12
    facts = devices.read(around(tmp_path, Asked(said), on_bus))
    verdict = look("gpu_count", Reading("gpu", 0.0, "b", facts), policy=HealthPolicy(gpus_count=gpus))
    assert verdict.severity.value == severity, verdict


def test_fewer_gpus_than_were_asked_for(library: Callable[..., Library]) -> None:
    verdict = library().look("gpu_count", HealthPolicy(gpus_count=8))
    assert (verdict.severity, verdict.words) == (Severity.FAIL, "2 GPUs answer instead of 8")
    assert library().look("gpu_count", HealthPolicy(gpus_count=2)).severity is Severity.OK


def test_nvml_is_believed_where_the_bus_shows_nothing() -> None:
    facts = facts_from({"values": {"node": {"gpus_count": 8, "on_bus_count": 0}}})
    verdict = look("gpu_count", Reading("gpu", 0.0, "b", facts), policy=HealthPolicy(gpus_count=8))
    assert verdict.severity is Severity.OK


def test_a_driver_that_hangs_is_unknown(library: Callable[..., Library]) -> None:
    one = library()
    one.say(changes={"gpu1.power": "~"})
    answer = one.ask(within_s=1.5)
    assert answer == {"absent": "no answer within 1.5 s"}


def test_events_come_from_what_a_gpu_supports(library: Callable[..., Library]) -> None:
    """In a process of its own: pynvml keeps the library that it has loaded."""
    one = library()
    one.say(changes={"event0": "1 8 79", "event1": "0 4096 1", "event2": "0 8 31", "gpu1.event_types": 8})
    code = (
        "import json\nfrom gangrun.adapters.nvml import EventWatch\nwatch = EventWatch()\n"
        "print(json.dumps([watch.open(), watch.wait(2000), watch.wait(2000), watch.wait(20), watch.close()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=one.environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(done.stdout) == [{}, ["GPU-1", 8, 79], ["GPU-0", 8, 31], None, None]
    one.say(changes={"gpu0.event_types": "!4", "gpu1.event_types": 0})
    code = "from gangrun.adapters.nvml import EventWatch\nprint(EventWatch().open())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=one.environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "{'gpu 0': 'users may not read it here', 'gpu 1': 'it tells no events'}\n"


def test_the_bindings_structures_are_as_the_library_of_the_tests_has_them() -> None:
    """A new nvidia-ml-py with other sizes must fail here, not on a node."""
    import ctypes

    import pynvml

    sizes = {
        "nvmlPciInfo_t": 68, "c_nvmlEventData_t": 32, "c_nvmlFieldValue_t": 40, "c_nvmlMemory_v2_t": 40,
        "c_nvmlProcessInfo_v2_t": 24, "c_nvmlGpuFabricInfo_v3_t": 40, "c_nvmlEccSramErrorStatus_v1_t": 104,
        "c_nvmlMarginTemperature_v1_t": 8, "c_nvmlTemperature_v1_t": 12, "c_nvmlRepairStatus_t": 12,
    }  # fmt: skip
    assert {name: ctypes.sizeof(getattr(pynvml, name)) for name in sizes} == sizes


def test_spare_rows_and_links_of_the_fifth_generation(library: Callable[..., Library]) -> None:
    worn = library().look("gpu_spare_rows", gpu1__banks="600 30 8 2 1")
    assert (worn.severity, "few or no spare rows is 3" in worn.words) == (Severity.WARN, True)
    links = {f"gpu0__link1__field{number}": count for number, count in ((208, 5), (214, 1), (215, 2))}
    facts = library().facts(**links)
    assert facts.values["gpu 0 link 1"]["recoveries_failed"] == 1
    assert "recoveries" not in facts.values["gpu 0 link 0"], "its scope is the link"


BLACKWELL = [
    ("nvlink5_rates", "gpu0__link1__field220", 0x20B, Severity.WARN, "gpu 0 link 1: share of bits"),
    ("nvlink5_rates", "gpu0__link1__field220", 0x10C, Severity.OK, ""),
    ("nvlink5_rates", "gpu1__link0__field222", 0x2E9, Severity.WARN, "gpu 1 link 0: share of symbols"),
    ("gpu_repairs", "gpu1__repairs", "1 0", Severity.WARN, "a memory channel"),
    ("gpu_repairs", "gpu1__repairs", "0 1", Severity.WARN, "a group of processors"),
    ("gpu_repairs", "gpu0__field307", 1, Severity.WARN, "a memory bank"),
    ("gpu_info_rom", "gpu1__info_rom", "!14", Severity.WARN, "gpu 1: the info ROM is corrupted"),
    ("gpu_info_rom", "gpu1__info_rom", "!4", Severity.OK, ""),
]


@pytest.mark.parametrize(("name", "key", "value", "severity", "words"), BLACKWELL)
def test_what_a_blackwell_says_of_itself(
    library: Callable[..., Library], name: str, key: str, value: object, severity: Severity, words: str
) -> None:
    verdict = library(profile="B200").look(name, **{key: value})
    assert (verdict.severity, len(verdict.findings)) == (severity, int(severity is Severity.WARN)), verdict
    assert words in verdict.words


def test_what_only_some_drivers_know_takes_nothing_else_along(library: Callable[..., Library]) -> None:
    one = library("-DWITHOUT_REPAIRS", profile="B200")
    said = {f"gpu{n}__link{link}__field{k}": "!3" for n in (0, 1) for link in (0, 1) for k in (206, 220, 222)}
    facts = one.facts(**said, gpu0__link0__field221="!4", gpu0__field307="!3", gpu1__field307="!3", gpu0__info_rom="!3")
    now = Reading("gpu", 0.0, "b", facts)
    assert facts.get("gpu 0 link 1", "receive_errors") == 0
    assert facts.missing["gpu 0"]["channel_repair_pending"] == "this driver is too old to say"
    assert look("nvlink5_rates", now).severity is Severity.UNKNOWN
    assert look("gpu_repairs", now).severity is Severity.UNKNOWN
    assert (look("gpu_info_rom", now).severity, look("gpu_info_rom", now).shown) == (
        Severity.OK,
        "1 of 1 valid (1 not measured)",
    )
    assert look("gpu_lost", now).severity is Severity.OK


DCGMI = """#!/bin/sh
case $1 in
discovery) echo '| 4      | Name: x |'; echo '|        | Device UUID: GPU-0 |'
           echo '| 5      | Name: x |'; echo '|        | Device UUID: GPU-of-others |';;
health) echo '{"body": {"GPU": {"children": {"4": {"value": "Healthy"}, "5": {"value": "Failure"}}}}}';;
diag) printf '{"name": "Memory", "status": "Pass", "gpu_ids": "%s"}' "$6";;
esac
"""


def test_what_dcgm_says_of_gpus_of_other_jobs_is_not_this_jobs(library: Callable[..., Library], tmp_path: Path) -> None:
    one = library()
    one.say(gpus=1)
    tool = tmp_path / "bin" / "dcgmi"
    tool.parent.mkdir()
    tool.write_text(DCGMI)
    tool.chmod(0o755)
    environment = {**one.environment, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    children = ProbeChildren((sys.executable, "-m", "gangrun.entry.health_probe"), environment)
    said = facts_from(children.ask("dcgm", dcgm.HEALTH, 60.0))
    verdict = look("dcgm_health", Reading("dcgm", 1.0, "b", said))
    assert (
        verdict.severity,
        "gpu 5: DCGM's watches found a fault: Failure (not" in verdict.words,
    ) == (Severity.WARN, True)
    tested = facts_from(children.ask("dcgm_test", ("60", *dcgm.TEST), 60.0))
    assert tested.places_with("test") == ("gpu 4",), "by DCGM's number, and no other"


def test_why_clocks_are_held_down_comes_from_either_function(library: Callable[..., Library]) -> None:
    for options in ((), ("-DWITHOUT_NEW_TEMPERATURE",)):
        facts = library(*options).facts(gpu1__busy=99, gpu1__reasons=0x48, gpu0__busy=99, gpu0__reasons=0x4)
        verdict = look("gpu_slowed", Reading("gpu", 15.0, "b", facts), Reading("gpu", 0.0, "b", facts))
        assert (verdict.severity, verdict.shown) == (Severity.WARN, "1 of 2 at work")
        assert "gpu 1: the GPU is at work and slowed down by its own heat guard" in verdict.words


def test_nothing_is_wrong_with_a_healthy_node_of_any_kind(library: Callable[..., Library]) -> None:
    for profile in PROFILES:
        now = Reading("gpu", 1000.0, "b", library(profile=profile).facts())
        found = [look(check.name, now) for check in CHECKS if check.family == "gpu"]
        assert not [one for one in found if one.severity in (Severity.WARN, Severity.FAIL)], profile
