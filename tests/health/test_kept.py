"""Counters that are kept while nobody looks: what is kept, for which boot and GPU, and what comes of odd files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.entry import health_watch
from gangrun.entry.health_watch import KeptCounters
from gangrun.health.catalogue import FAMILIES
from gangrun.health.framework.check import NodeFacts, Reading, Severity, Value, growth
from gangrun.health.framework.readings import by_uuid, only, plain_facts, plain_reading
from gangrun.health.framework.rounds import HealthSurroundings, Rounds
from tests.health.looks import POLICY, HandClock, Scripted, family, verdict_after, write
from tests.health.test_infiniband import DOWN, port, tree
from tests.waiting import until

H = 3600.0


def gpu_values(*uuids: str, crc: int = 0, ever: int = 0) -> NodeFacts:
    values: dict[str, Mapping[str, Value]] = {"node": {"gpus_count": len(uuids)}}
    for n, uuid in enumerate(uuids):
        values[f"gpu {n}"] = {"uuid": uuid, "ecc_uncorrected_ever": ever, "temperature_c": 40}
        values[f"gpu {n} link 0"] = {"crc": crc + 100 * int(uuid[-1]), "active": 1}
    return NodeFacts(values)


def test_only_what_counts_on_is_kept() -> None:
    kept = only(Reading("gpu", 5.0, "b", gpu_values("GPU-1")), family("gpu").counters)
    assert kept.facts.values == {"gpu 0": {"uuid": "GPU-1", "ecc_uncorrected_ever": 0}, "gpu 0 link 0": {"crc": 100}}
    by_family = {one.name: one.counters for one in FAMILIES if one.counters}
    assert set(by_family) == {"gpu", "infiniband", "host", "bus"}
    assert "oom_kills" not in by_family["host"], "others' programs are no growth of ours"
    assert not {"rnr_nak_retry_err", "req_transport_retries_exceeded"} & by_family["infiniband"], "killed ranks' traces"


def test_gpus_are_compared_by_their_uuid_where_a_job_numbers_them_anew() -> None:
    was = Reading("gpu", 0.0, "b", gpu_values("GPU-1", "GPU-2", "GPU-3"))
    now = Reading("gpu", 9.0, "b", gpu_values("GPU-3", "GPU-1", crc=7))
    moved = by_uuid(was, now)
    assert [moved.facts.get(f"gpu {n}", "uuid") for n in range(3)] == ["GPU-3", "GPU-1", None]
    assert moved.facts.get("node", "gpus_count") == 3
    grown = [growth(now, moved, f"gpu {n} link 0", "crc") for n in range(2)]
    assert [one.count if one else None for one in grown] == [7, 7], "and not 207 and -93"
    assert by_uuid(now, now) is now


def rounds(root: Path, clock: HandClock, name: str, said: Any = None) -> Rounds:
    around = HealthSurroundings(root, Scripted({"gpu": said} if said else {}))
    return Rounds([family(name)], around, POLICY, clock)


def test_what_rose_while_nobody_looked_is_told_with_its_true_time(tmp_path: Path) -> None:
    write(tmp_path, {"proc/sys/kernel/random/boot_id": "b\n"})
    edac = "sys/devices/system/edac/mc/mc0/"
    write(tmp_path, {f"{edac}ue_count": "1\n", f"{edac}ce_count": "5\n"})
    clock = HandClock(1000.0)
    first = rounds(tmp_path, clock, "host")
    first.look()
    kept = first.kept()
    write(tmp_path, {f"{edac}ue_count": "3\n"})
    clock.at += 5 * H
    second = rounds(tmp_path, clock, "host")
    second.go_on_from(kept)
    assert second.readings() == (), "what others saw is no reading of this process"
    assert second.kept() == kept, "until there is a newer one it stays what is kept"
    (verdict,) = [one for one in second.look() if one.check == "host_memory_errors"]
    (found,) = verdict.findings
    assert (found.severity, found.evidence.old, found.evidence.new) == (Severity.FAIL, 1, 3)
    assert "from 1 to 3 in 5 h" in found.sentence
    write(tmp_path, {"proc/sys/kernel/random/boot_id": "another\n", f"{edac}ue_count": "9\n"})
    third = rounds(tmp_path, clock, "host")
    third.go_on_from(kept)
    (verdict,) = [one for one in third.look() if one.check == "host_memory_errors"]
    assert verdict.severity is Severity.UNKNOWN, "another boot counts from nothing"


def test_links_of_gpus_with_other_numbers_are_not_mixed_up(tmp_path: Path) -> None:
    clock = HandClock(1000.0)
    first = rounds(tmp_path, clock, "gpu", plain_facts(gpu_values("GPU-1", "GPU-2")))
    first.look()
    clock.at += 60.0
    second = rounds(tmp_path, clock, "gpu", plain_facts(gpu_values("GPU-2", "GPU-1", crc=2)))
    second.go_on_from(first.kept())
    (verdict,) = [one for one in second.look() if one.check == "nvlink_errors"]
    assert [(one.place, one.evidence.new) for one in verdict.findings] == [("gpu 0 link 0", 202), ("gpu 1 link 0", 102)]


def test_flaps_of_a_night_are_not_those_of_an_hour() -> None:
    night = verdict_after("ib_flaps", [port(at=0.0), port(at=8 * H, link_downed=6)])
    assert (night.severity, "lost links rose from 3 to 6 in 8 h" in night.words) == (Severity.WARN, True)
    hour = verdict_after("ib_flaps", [port(at=0.0), port(at=1.2 * H, link_downed=6)])
    assert hour.severity is Severity.FAIL


def test_a_port_found_down_after_nobody_looked_has_the_grace_of_any_other() -> None:
    kept = only(family("infiniband").remember(port(at=0.0), None), family("infiniband").counters)
    readings = [kept, port(at=H, **DOWN)]
    assert verdict_after("ib_state", readings).severity is Severity.WARN
    assert verdict_after("ib_state", [*readings, port(at=H + 20, **DOWN)]).severity is Severity.WARN
    late = verdict_after("ib_state", [*readings, port(at=H + 20, **DOWN), port(at=H + 40, **DOWN)])
    assert (late.severity, "last seen ACTIVE 61 min ago" in late.words) == (Severity.FAIL, True)


# ---- the file --------------------------------------------------------------------------------------------------------

READING = Reading("host", 7.0, "b", NodeFacts({"mc0": {"ue_count": 1}}))


def kept_in(path: Path, boot_id: str = "b", now: float = 0.0) -> KeptCounters:
    return KeptCounters(path, boot_id, lambda: now)


def test_it_is_kept_for_this_boot_alone(tmp_path: Path) -> None:
    path = tmp_path / "health" / "n1.json"
    one = kept_in(path)
    assert one.readings() == ()
    one.keep(lambda: (READING,), at_once=True)
    until(path.exists, 30, lambda: "the file")
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert kept_in(path).readings(30.0) == (READING,)
    assert kept_in(path, "another").readings(30.0) == ()
    nobody_says = kept_in(path, "")
    nobody_says.keep(lambda: (), at_once=True)
    assert nobody_says.readings() == ()


def test_it_is_written_now_and_then_and_not_at_every_look(tmp_path: Path) -> None:
    now, path, asked = [0.0], tmp_path / "n1.json", list[float]()

    def readings() -> tuple[Reading, ...]:
        asked.append(now[0])
        return (Reading("host", now[0], "b", READING.facts),)

    one = KeptCounters(path, "b", lambda: now[0])
    for now[0] in (5.0, 599.0, 600.0, 605.0, 1300.0):
        one.keep(readings, at_once=False)
    assert asked == [600.0, 1300.0]
    until(lambda: [r.at for r in health_watch._read_kept(Disk(), path, "b")] == [1300.0], 30, lambda: "the newest")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[1]", '{"v": 2, "readings": []}', '{"v": 1, "readings": 3}', '{"v": 1}', "[" * 100_000,
        json.dumps({"v": 1, "readings": [1, {"family": "host"}, {"family": "h", "at": 1e999, "boot_id": "b"}]}),
        json.dumps({"v": 1, "readings": [plain_reading(READING) | {"boot_id": ""}]}),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_no_baseline(tmp_path: Path, text: str) -> None:
    path = tmp_path / "n1.json"
    path.write_text(text)
    one = kept_in(path)
    assert one.readings(30.0) == ()
    one.keep(lambda: (READING,), at_once=True)
    until(lambda: health_watch._read_kept(Disk(), path, "b") == (READING,), 30, lambda: "that it is written over")


def test_a_file_system_that_stands_still_or_refuses_costs_nothing_but_the_baseline(tmp_path: Path) -> None:
    class Still(Disk):
        def before(self, op: str, path: Path) -> None:
            blocked.wait()

    blocked = threading.Event()
    path = tmp_path / "file" / "n1.json"
    (tmp_path / "file").touch()
    one = kept_in(path)
    assert one.readings(30.0) == ()
    one.keep(lambda: (READING,), at_once=True)
    os.unlink(tmp_path / "file")
    one.keep(lambda: (READING,), at_once=True)
    until(path.exists, 30, lambda: "that it is written once it can be")
    try:
        still = KeptCounters(path, "b", lambda: 0.0, Still())
        assert still.readings(0.05) == ()
        still.keep(lambda: (READING,), at_once=True)
    finally:
        blocked.set()


# ---- the process -----------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_checker_that_was_killed_is_followed_by_one_that_knows_what_it_saw(tmp_path: Path) -> None:
    root, kept = tree(tmp_path / "root", {"mlx5_0": {}}), tmp_path / "kept" / "n1.json"
    write(root, {"proc/sys/kernel/random/boot_id": "b\n"})
    edac = {"sys/devices/system/edac/mc/mc0/ue_count": "0\n", "sys/devices/system/edac/mc/mc0/ce_count": "0\n"}
    write(root, edac)
    spec = {"node": "n1", "root": str(root), "kept": str(kept), "policy": {"preflight_within_s": 60.0}}

    def look() -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "gangrun.entry.health_watch", json.dumps(spec)]
        watch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert watch.stdin is not None and watch.stdout is not None
        watch.stdin.write(b'{"op": "look", "n": 1}\n')
        watch.stdin.flush()
        found = []
        for line in watch.stdout:
            said = json.loads(line)
            if said["op"] == "looked":
                break
            found.append(said)
        until(kept.exists, 60, lambda: "what is kept")
        watch.kill()
        watch.communicate()
        return [one for one in found if one["op"] == "finding" and one["check"] == "host_memory_errors"]

    assert look() == []
    write(root, {"sys/devices/system/edac/mc/mc0/ue_count": "2\n"})
    (lost,) = look()
    assert (lost["fatal"], "rose from 0 to 2 in" in lost["sentence"]) == (True, True)
    write(root, {"proc/sys/kernel/random/boot_id": "c\n", "sys/devices/system/edac/mc/mc0/ue_count": "5\n"})
    assert look() == [], "another boot"
