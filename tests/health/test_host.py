"""The host and its file systems: what is read from a tree or a real directory, and what it means."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gangrun.entry import health_probe
from gangrun.health.framework.check import (
    CheckLook,
    CheckVerdict,
    HealthPolicy,
    NodeFacts,
    Reading,
    Severity,
)
from gangrun.health.framework.readings import facts_from, plain_facts
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.host import node as host
from gangrun.health.host import storage
from gangrun.health.host.node import NODE
from tests.health.looks import HandClock, Scripted, check, family, look, reading, verdict_after, write

GB = 10**9
HOST = {
    "proc/meminfo": "MemTotal:       528000000 kB\nMemFree: 1 kB\nMemAvailable:   500000000 kB\n",
    "proc/loadavg": "1.00 2.50 3.00 2/1000 12345\n",
    "proc/sys/kernel/tainted": "4097\n",
    "proc/sys/kernel/pid_max": "4194304\n",
    "proc/sys/kernel/threads-max": "100000\n",
    "proc/sys/fs/file-nr": "4000\t0\t9223372036854775807\n",
    "proc/uptime": "100000.5 3.0\n",
    "proc/vmstat": "nr_free_pages 1\noom_kill 2\n",
    "proc/1/stat": "1 (init (x) y) S 0 1 1\n",
    "proc/77/stat": "77 (nvidia) D 1 1 1\n",
    "proc/78/stat": "78 (gone) Z 1 1 1\n",
    "sys/devices/system/cpu/online": "0-63,96,98-99\n",
    "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
    "sys/devices/system/edac/mc/mc0/ce_count": "4\n",
}


def read(root: Path, at: float = 1000.0) -> Reading:
    return Reading("host", at, "b", host.read(HealthSurroundings(root, Scripted())))


def node(at: float = 1000.0, **values: Any) -> Reading:
    return reading({NODE: values}, at)


def only(verdict: CheckVerdict) -> tuple[Severity, str]:
    return verdict.severity, verdict.words


def test_a_tree_is_read_whole(tmp_path: Path) -> None:
    now = read(write(tmp_path, HOST))
    values = now.facts.values[NODE]
    expected = {"memory_bytes": 528_000_000 * 1024, "load": 2.5, "cpus": 67, "waiting": 1, "zombies": 1,
                "tainted": 4097.0, "oom_kills": 2, "waiting_example": "nvidia (pid 77)"}  # fmt: skip
    assert {name: values.get(name) for name in expected} == expected
    assert now.facts.values["memory controller mc0"] == {"ue_count": 0, "ce_count": 4}
    assert now.facts.missing[NODE]["shm_bytes"].startswith("shared memory:")


def test_an_empty_tree_is_unknown_and_never_more(tmp_path: Path) -> None:
    now = read(tmp_path)
    from_files = ("host_memory", "host_memory_errors", "host_shm", "host_load", "host_processes", "host_kernel")
    for name in (*from_files, "host_oom"):
        assert look(name, now).severity is Severity.UNKNOWN, name


@pytest.mark.parametrize("text", ["", "\n", ":::\n", "MemTotal: x kB\n", "nan nan nan\n", "\x00" * 9000, ") D\n"])
def test_odd_files_do_no_harm(tmp_path: Path, text: str) -> None:
    now = read(write(tmp_path, dict.fromkeys(HOST, text)))
    for one in family("host").checks:
        assert look(one.name, now).severity is not Severity.FAIL, one.name


def test_this_very_machine_can_be_read() -> None:
    now = read(Path("/"))
    for name in ("host_memory", "host_load", "host_processes", "host_limits", "host_kernel"):
        assert look(name, now).severity is not Severity.UNKNOWN, name


JUDGED: list[tuple[str, dict[str, Any], Severity, str]] = [
    ("host_memory", {"memory_bytes": 100 * GB, "available_bytes": 9.9 * GB}, Severity.WARN, "memory is 9.9 GB (limit"),
    ("host_memory", {"memory_bytes": 0, "available_bytes": 0}, Severity.UNKNOWN, "not measured"),
    ("host_limits", {"files": 65536, "locked_bytes": -1}, Severity.OK, ""),
    ("host_limits", {"files": -1}, Severity.OK, ""),
    ("host_kernel", {"tainted": 4097.0}, Severity.OK, ""),
    ("host_kernel", {"tainted": 1 << 4}, Severity.WARN, "a machine check (MCE) some time since the boot"),
]


@pytest.mark.parametrize(("name", "values", "severity", "words"), JUDGED)
def test_what_one_look_tells(name: str, values: dict[str, Any], severity: Severity, words: str) -> None:
    verdict = look(name, node(**values))
    assert verdict.severity is severity
    assert words in verdict.words


def test_a_new_machine_check_fails_and_an_old_one_does_not() -> None:
    clean, broken = node(at=0.0, tainted=0), node(at=60.0, tainted=1 << 4)
    verdict = verdict_after("host_kernel", [clean, broken])
    assert only(verdict) == (Severity.FAIL, "the kernel noted a machine check (MCE) in the last 60 s")
    again = verdict_after("host_kernel", [clean, broken, node(at=120.0, tainted=1 << 4)])
    assert again.severity is Severity.WARN
    lockup = verdict_after("host_kernel", [clean, node(at=60.0, tainted=1 << 14)])
    assert lockup.severity is Severity.WARN


def test_names() -> None:
    fine: dict[str, Any] = {"n1": {"resolve_s": 0.001, "address": "10.0.0.1"}}
    assert look("host_names", reading(fine)).severity is Severity.OK
    slow = look("host_names", reading({**fine, "head": {"resolve_s": 5.0}}))
    assert (slow.severity, "head: time to resolve the name is 5 s" in slow.words) == (Severity.WARN, True)
    gone = look("host_names", reading({**fine, "head": {"resolve_s": 0.1, "error": "Name or service not known"}}))
    assert (gone.severity, gone.findings[0].place) == (Severity.FAIL, "head")
    assert look("host_names", reading({})).severity is Severity.UNKNOWN


def test_the_resolver_is_asked_by_a_child() -> None:
    probes = Scripted({"names": lambda *hosts: {"values": {host: {"resolve_s": 0.1} for host in hosts}}})
    facts = host.read_names(HealthSurroundings(Path("/"), probes, peers=("a", "b")))
    assert (probes.asked, list(facts.values)) == ([("names", ("a", "b"))], ["a", "b"])
    said = facts_from(health_probe.probe_names(("no-such-host.invalid", "bad\udcff" * 40), HandClock().now))
    assert all("error" in said.values[name] for name in ("no-such-host.invalid", "bad\udcff" * 40))


# ---- file systems ----------------------------------------------------------------------------------------------------


def stored(**values: Any) -> Reading:
    return reading({"/scratch": values})


def test_a_directory_is_written_and_read_and_left_clean(tmp_path: Path) -> None:
    place = str(tmp_path)
    values = health_probe.probe_directory(place, HandClock().now)["values"][place]
    assert values["probe_s"] == 0
    assert 0 <= float(values["used_share"]) <= 1
    assert values["read_only"] == 0
    assert list(tmp_path.iterdir()) == []


def test_where_one_may_not_write_nothing_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    facts = facts_from(health_probe.probe_directory(str(tmp_path), HandClock().now))
    monkeypatch.undo()
    verdict = look("storage_answers", Reading("storage", 0.0, "b", facts))
    assert only(verdict) == (Severity.UNKNOWN, "you may not write there")
    assert look("storage_space", Reading("storage", 0.0, "b", facts)).severity is not Severity.UNKNOWN


def test_a_directory_that_is_not_there_and_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = str(tmp_path / "gone")
    assert health_probe.probe_directory(gone, HandClock().now)["values"][gone] == {
        "broken": "No such file or directory"
    }

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    values = health_probe.probe_directory(str(tmp_path), HandClock().now)["values"][str(tmp_path)]
    assert values["write_error"] == "No space left on device"
    assert list(tmp_path.iterdir()) == []


STORED: list[tuple[str, dict[str, Any], Severity, str]] = [
    ("storage_answers", {"write_error": "Read-only file system"}, Severity.FAIL, "cannot be written: Read-only"),
    ("storage_answers", {"broken": "Stale file handle"}, Severity.FAIL, "Stale"),
    ("storage_inodes", {}, Severity.UNKNOWN, "no file system could be asked"),
]


@pytest.mark.parametrize(("name", "values", "severity", "words"), STORED)
def test_what_a_file_system_tells(name: str, values: dict[str, Any], severity: Severity, words: str) -> None:
    verdict = look(name, stored(**values))
    assert verdict.severity is severity
    assert words in verdict.words


def test_a_file_server_that_does_not_answer_is_unknown_and_hides_no_other() -> None:
    def answer(directory: str) -> object:
        if directory == "/nfs":
            return {"absent": "no answer within 20 s"}
        return plain_facts(
            NodeFacts({directory: {"probe_s": 0.01, "used_share": 0.99, "free_bytes": 5, "read_only": 0}})
        )

    probes = Scripted({"directory": answer})
    facts = storage.read(HealthSurroundings(Path("/"), probes, directories=("/nfs", "/tmp")))
    now = Reading("storage", 0.0, "b", facts)
    answers = look("storage_answers", now)
    assert (answers.severity, answers.words, answers.shown) == (
        Severity.UNKNOWN, "no answer within 20 s", "10 ms at most",
    )  # fmt: skip
    assert look("storage_space", now).severity is Severity.FAIL
    assert storage.read(HealthSurroundings(Path("/"), probes)).absent == "no directory was named"
    many = tuple(f"/d{n}" for n in range(20))
    probes.asked.clear()
    storage.read(HealthSurroundings(Path("/"), probes, directories=many))
    assert len(probes.asked) == storage.DIRECTORIES_MAX_COUNT


def test_a_directory_that_the_script_has_yet_to_make_is_unknown_and_one_that_was_named_is_broken(tmp_path):
    def ask(path):
        return health_probe.probe_directory(path, HandClock().now)

    one = check("storage_answers")
    later, named = str(tmp_path / "checkpoints"), str(tmp_path / "named")
    around = HealthSurroundings(Path("/"), Scripted({"directory": ask}), (later, named), made_later=frozenset({later}))
    said = one.judge(CheckLook(one, Reading("storage", 0.0, "b", storage.read(around)), None, HealthPolicy()))
    assert [found.place for found in said.findings] == [named]
    assert "not there yet" in said.unknown
    (tmp_path / "checkpoints").mkdir()
    said = one.judge(CheckLook(one, Reading("storage", 0.0, "b", storage.read(around)), None, HealthPolicy()))
    assert [found.place for found in said.findings] == [named]
    assert (said.unknown, said.shown) == ("", "0 ms at most")


def test_room_as_the_kernel_tells_it(tmp_path: Path) -> None:
    values = read(write(tmp_path, HOST)).facts.values[NODE]
    assert (values["tasks"], values["tasks_max"], values["open_files"]) == (1000, 100000, 4000)
    odd = {"proc/loadavg": "1 2 3 x/y 5\n", "proc/sys/fs/file-nr": "a b\n", "proc/sys/kernel/pid_max": "-\n"}
    assert look("host_room", read(write(tmp_path / "odd", odd))).severity is Severity.UNKNOWN
