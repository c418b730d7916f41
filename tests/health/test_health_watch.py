"""The process that watches a node, and its keeper: real processes, a driver of the tests, and what befalls them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.counter_history import CounterHistory
from gangrun.adapters.local import health_child
from gangrun.adapters.local.health_child import HealthChild
from gangrun.health.catalogue import CHECKS
from tests.health.test_nvml import Library, build, library  # noqa: F401 - fixtures
from tests.local.evidence import alive
from tests.waiting import stays, until

pytestmark = [pytest.mark.processes]
PATIENT = {"preflight_within_s": 60.0}  # however busy the machine is


@pytest.fixture
def keep() -> Iterator[Callable[..., tuple[HealthChild, list[Any], list[str]]]]:
    kept: list[HealthChild] = []

    def make(command: list[str], environment: dict[str, str]) -> tuple[HealthChild, list[Any], list[str]]:
        said: list[str] = []
        child = HealthChild(command, environment, SystemClock().now, said.append)
        kept.append(child)
        child.start()
        return child, [], said

    yield make
    for child in kept:
        child.close()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for one in kept for pid in one.pids()), 10, lambda: "the end")


def played(tmp_path: Path, code: str) -> list[str]:
    path = tmp_path / "plays.py"
    path.write_text("import json, os, sys, time\ndef say(**what): print(json.dumps(what), flush=True)\n" + code)
    return [sys.executable, str(path)]


ANSWERS = """
say(op="watching", trouble="")
say(op="finding", check="pid", sentence=str(os.getpid()))
for line in sys.stdin:
    said = json.loads(line)
    if said["op"] == "look":
        say(op="finding", check="x", sentence="look")
        say(op="looked", n=said["n"])
    else:
        say(op="finding", check="gang", sentence=line.strip())
"""


@pytest.mark.compiler
def test_an_xid_is_told_with_its_gpu_and_the_rest_of_a_driver_that_hangs_is_unknown(
    library: Callable[..., Library],  # noqa: F811
    keep: Callable[..., tuple[HealthChild, list[Any], list[str]]],
) -> None:
    driver = library()
    driver.say()
    spec = {
        "node": "n1", "directories": [str(driver.state.parent)], "off": ["host_kernel", "gpu_count"], "policy": PATIENT,
        "history": str(driver.state.parent / "home"),
    }  # fmt: skip

    def remembered(name: str) -> dict[str, int]:
        series = CounterHistory(driver.state.parent / "home").nodes().get("n1", ())
        return {one.device: one.readings[-1][1] for one in series if one.name == name}

    child, seen, said = keep([sys.executable, "-m", "gangrun.entry.health_watch", json.dumps(spec)], driver.environment)
    found, unknown = child.look(60.0)
    assert (unknown, said) == ("", [])
    assert not [one for one in found if one["fatal"]], found
    child.gang(0, False)
    driver.say(changes={"event0": "1 8 79", "event1": "0 8 31"})

    def told(word: str) -> list[Any]:
        seen.extend(child.take())
        return [one for one in seen if word in one["sentence"]]

    (lost,) = until(lambda: told("XID 79"), 30, lambda: f"XID 79 among {seen}")
    assert (lost["node"], lost["place"], lost["fatal"], lost["needs"]) == ("n1", "gpu 1", True, "reboot")
    assert (lost["until_boot"], lost["report"]) == (True, {"gpu": "GPU-1", "number": 79, "again": ""})
    (fault,) = until(lambda: told("XID 31"), 30, lambda: f"XID 31 among {seen}")
    assert (fault["place"], fault["fatal"], fault["poor"]) == ("gpu 0", False, False)
    assert fault["report"] == {"gpu": "GPU-0", "number": 31, "again": "poor"}
    until(lambda: remembered("xids") == {"GPU-1": 1}, 30, lambda: f"79 and not 31: {remembered('xids')}")
    assert remembered("ecc_corrected") == {"GPU-0": 0, "GPU-1": 0}
    events = {"event0": "1 8 79", "event1": "0 8 31", "event2": "0 8 94"}
    driver.say(changes={**events, "gpu0.ecc10": 1})
    until(lambda: told("XID 94"), 30, lambda: f"XID 94 among {seen}")
    again, _ = child.look(60.0)
    errors, *_ = [one for one in again if one["check"] == "gpu_ecc"]  # a look of its own may have come just before
    assert (errors["fatal"], errors["poor"], errors["needs"]) == (False, True, "reset"), "contained"
    driver.say(changes={**events, "event3": "1 8 95", "gpu1.field230": 1})
    (asks,) = until(lambda: [one for one in told("gpu 1") if one["check"] == "gpu_recovery"], 60, lambda: f"{seen}")
    (fault,) = until(lambda: told("XID 95"), 60, lambda: f"XID 95 among {seen}")
    assert [(one["needs"], one["until_boot"], one["shows_reset"]) for one in (fault, asks)] == [
        ("reset", True, False), ("reset", True, True),
    ]  # fmt: skip
    driver.say(changes={**events, "event3": "1 8 95", "gpu0.power": "~", "event4": "0 8 48"})
    until(lambda: told("XID 48"), 60, lambda: f"an event while another call hangs, among {seen}")


@pytest.mark.compiler
def test_how_the_jobs_gpus_are_used_is_told_while_ranks_run_by_what_cuda_calls_them(
    library: Callable[..., Library],  # noqa: F811
    keep: Callable[..., tuple[HealthChild, list[Any], list[str]]],
) -> None:
    """The job has GPU 2 and GPU 0, in this order; GPU 1 is another job's; GPU 2 does not tell its power."""
    driver = library()
    work = {"gpu2.busy": 93, "gpu2.clock": 1980, "gpu2.memory_used": 61 << 30, "gpu2.power": "!3", "gpu2.reasons": 68}
    driver.say(3, work)
    off = [one.name for one in CHECKS if one.family != "gpu"]
    spec = {"node": "n1", "off": off, "use_every_s": 0.2, "policy": {**PATIENT, "gpus_used": ["2", "0"]}}
    child, _, said = keep([sys.executable, "-m", "gangrun.entry.health_watch", json.dumps(spec)], driver.environment)
    child.look(60.0)
    stays(lambda: child.take_use() == [], 1.0, "nobody trains")
    child.gang(0, False)
    used = until(child.take_use, 30, lambda: f"a reading; {said}")
    assert used == [
        [1, 0, 0, 1, 81920, 345, 1, 70, 700, 16, 1, 41],
        [0, 2, 93, 62464, 81920, 1980, 68, -1, 700, 16, 1, 41],
    ]
    child.gang(0, True)
    for _ in range(2):  # a reading may be on its way
        child.look(60.0)
    child.take_use()
    stays(lambda: child.take_use() == [], 1.0, "nobody trains any more")


@pytest.mark.compiler
def test_a_gpu_that_the_job_leaves_out_is_told_of_and_fails_nothing(
    library: Callable[..., Library],  # noqa: F811
    keep: Callable[..., tuple[HealthChild, list[Any], list[str]]],
) -> None:
    driver = library()
    driver.say(changes={"gpu1.ecc10": 3, "gpu1.uuid": "!15"})
    spec = {"node": "n1", "off": ["host_kernel", "gpu_count"], "policy": {**PATIENT, "gpus_used": ["0"]}}
    child, seen, _ = keep([sys.executable, "-m", "gangrun.entry.health_watch", json.dumps(spec)], driver.environment)
    found, unknown = child.look(60.0)
    (lost,) = [one for one in found if one["place"] == "gpu 1" and one["check"] == "gpu_lost"]
    assert (lost["fatal"], lost["poor"], unknown) == (False, False, "")
    assert "(not a GPU of this job)" in lost["sentence"]
    driver.say(changes={"event0": "1 8 79", "event1": "0 8 79"})

    def fallen() -> list[Any]:
        seen.extend(child.take())
        return [one for one in seen if "XID 79" in one["sentence"]]

    until(lambda: len(fallen()) > 1, 60, lambda: f"both XIDs among {seen}")
    assert {(one["place"], one["fatal"], one["report"] is None) for one in fallen()} == {
        ("gpu 0", True, False), ("GPU-1", False, True),
    }  # fmt: skip


@pytest.mark.compiler
def test_a_check_that_hangs_holds_no_gang_up_and_is_told_when_it_has_looked(
    library: Callable[..., Library],  # noqa: F811
    keep: Callable[..., tuple[HealthChild, list[Any], list[str]]],
    tmp_path: Path,
) -> None:
    """GPUs hang and are late; ports are read all the same; a site's own command has its own time."""
    driver, ran, hangs = library(), tmp_path / "ran", tmp_path / "hangs"
    hangs.touch()
    driver.say(changes={"gpu0.power": f"~{hangs}", "gpu1.sram": "1 9 0 9 0 0 0 0"})
    commands = {"mine": {"run": ["sh", "-c", f"echo > '{ran}'; exit 1"], "timeout": "60s"}}
    off = [one.name for one in CHECKS if one.family != "infiniband" and one.name != "gpu_sram"]  # seldom looked at
    policy = {"preflight_within_s": 0.5, "ib_devices": ["mlx5_0"]}
    spec = {"node": "n1", "root": str(tmp_path), "off": off, "policy": policy, "commands": commands}
    command = [sys.executable, "-m", "gangrun.entry.health_watch", json.dumps(spec)]
    child, seen, _ = keep(command, driver.environment)
    found, late = child.look(120.0)
    assert late.startswith("not looked at within 0.5 s: gpu"), late
    assert ran.exists()
    assert "site_mine" in {one["check"] for one in found}
    assert "gpu_sram" not in {one["check"] for one in found}
    hangs.unlink()

    def told() -> list[Any]:
        seen.extend(child.take())
        return [one for one in seen if one["check"] == "gpu_sram"]

    (worn,) = until(told, 60, lambda: f"what the GPUs said late, among {seen}")
    assert worn["fatal"]


def test_a_keeper_starts_it_again_and_says_what_it_did_not_know(
    tmp_path: Path, keep: Callable[..., tuple[HealthChild, list[Any], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_child, "PAUSES_S", (0.05,))
    child, seen, said = keep(played(tmp_path, ANSWERS), {})

    def told(check: str) -> list[Any]:
        seen.extend(child.take())
        return [one for one in seen if one["check"] == check]

    assert child.look(30.0)[1] == ""
    child.gang(3, True)
    until(lambda: told("gang"), 10, lambda: f"the word about the gang: {seen}")
    for death in range(1, health_child.STARTS_MAX_COUNT + 1):
        until(lambda: len(told("gang")) >= death, 10, lambda: f"life {death}: {seen}")  # noqa: B023
        os.kill(int(told("pid")[-1]["sentence"]), signal.SIGKILL)
        until(lambda: len(told("health")) >= death, 10, lambda: f"death {death}: {seen}")  # noqa: B023
    until(lambda: child.hopeless, 10, lambda: f"that it gives up: {said}")
    assert json.loads(told("gang")[1]["sentence"]) == {"op": "gang", "attempt": 3, "stopping": True}
    assert "killed by signal 9" in told("health")[0]["sentence"]
    assert not told("health")[0]["fatal"]
    assert child.look(5.0) == ([], child.hopeless)
    assert child.pids() == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("time.sleep(600)", "did not begin"),
        ('say(op="watching", trouble="no driver")\ntime.sleep(600)', "were not done"),
        ('print("{" * 100000, flush=True)\nprint("[1]")\nsay(op="finding")\nsay(op="odd")\ntime.sleep(600)', "did not"),
    ],
)
def test_one_that_does_not_answer_is_unknown(
    tmp_path: Path, keep: Callable[..., tuple[HealthChild, list[Any], list[str]]], code: str, words: str
) -> None:
    child, _, said = keep(played(tmp_path, code), {})
    if "no driver" in code:
        until(lambda: said, 20, "its beginning")
    found, unknown = child.look(1.0)
    assert words in unknown
    assert all("fatal" not in one for one in found)


def test_it_ends_when_its_agent_does(tmp_path: Path) -> None:
    """Its standard input is the agent's end of a pipe."""
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(child.pid, child.stdout.readline(), flush=True)\n"
        "import os; os._exit(0)\n"
    )
    import subprocess

    command = [sys.executable, "-m", "gangrun.entry.health_watch", json.dumps({"node": "n1"})]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=300, check=True
    )
    pid = int(done.stdout.split()[0])
    until(lambda: not alive(pid), 20, lambda: f"the end of {pid}")


def test_silence_is_ended(
    tmp_path: Path, keep: Callable[..., tuple[HealthChild, list[Any], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_child, "SILENT_MAX_S", 0.2)
    monkeypatch.setattr(health_child, "PAUSES_S", (600.0,))
    child, _, said = keep(played(tmp_path, "time.sleep(600)"), {})
    until(lambda: said, 20, lambda: "that it was ended")
    assert "said nothing" in said[0]
    stays(lambda: child.pids() == (), 0.1, "no second one yet")
