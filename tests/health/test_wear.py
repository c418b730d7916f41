"""What wears out or is slow beside its peers: replays, clocks, NVLink 5, PCIe errors, pressure, mounts, congestion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gangrun.health.framework.check import CheckVerdict, NodeFacts, Reading, Severity, judged
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.host import node, storage
from tests.health.looks import POLICY, Scripted, check, look, reading, write

OK, WARN, FAIL, UNKNOWN = Severity.OK, Severity.WARN, Severity.FAIL, Severity.UNKNOWN
GPU: dict[str, Any] = {"uuid": "u", "pcie_replays": 10, "pcie_width": 16, "pcie_generation_max": 5, "busy_percent": 99,
                       "sm_clock_mhz": 1980}  # fmt: skip


def gpus(at: float = 60.0, **changed: dict[str, Any]) -> Reading:
    values: dict[str, Any] = {"node": {}}
    values |= {f"gpu {n}": {**GPU, "uuid": f"u{n}", **changed.get(f"gpu_{n}", {})} for n in range(4)}
    return reading(values, at)


@pytest.mark.parametrize(
    ("name", "now", "before", "severity", "words"),
    [
        ("gpu_pcie_replays", gpus(gpu_1={"pcie_replays": 40}), gpus(0.0), OK, ""),  # 30.7 a minute are allowed
        ("gpu_pcie_replays", gpus(gpu_1={"pcie_replays": 21, "pcie_generation_max": 3}), gpus(0.0), WARN, "10 to 21"),
        ("gpu_pcie_replays", gpus(1.0, gpu_1={"pcie_replays": 20}), gpus(0.0), OK, ""),  # ten in a second are no rate
        ("gpu_pcie_replays", gpus(gpu_1={"pcie_replays": 999, "uuid": "new"}), gpus(0.0), OK, ""),
        ("gpu_pcie_replays", reading({"node": {}}), None, UNKNOWN, "no NVIDIA GPU here"),
        ("gpu_clocks", gpus(gpu_2={"sm_clock_mhz": 345, "busy_percent": 0}), None, OK, ""),
        ("gpu_clocks", gpus(gpu_0={"busy_percent": 3}, gpu_1={"busy_percent": 3}), None, UNKNOWN, "fewer than 3 GPUs"),
        ("nvlink5_errors", gpus(), gpus(0.0), UNKNOWN, "these GPUs have no NVLink 5"),
        ("nvlink_errors", gpus(), gpus(0.0), UNKNOWN, "these GPUs have no NVLink"),
    ],
)
def test_gpus(name: str, now: Reading, before: Reading | None, severity: Severity, words: str) -> None:
    verdict = look(name, now, before)
    assert (verdict.severity, words in verdict.words) == (severity, True), verdict


# ---- bus and pressure ------------------------------------------------------------------------------------------------

CARD = "sys/bus/pci/devices/0000:1b:00.0"
AER = "RxErr 0\nBadTLP 0\nTOTAL_ERR_{what} {count}\n"
CALM = "some avg10=1.00 avg60=2.00 avg300=0.00 total=1\nfull avg10=0.00 avg60={full} avg300=0.00 total=1\n"


def bus(root: Path, fatal: int = 0, nonfatal: int = 0, full: str = "0.50", kind: str = "0x030200") -> NodeFacts:
    write(
        root,
        {
            f"{CARD}/class": f"{kind}\n",
            f"{CARD}/aer_dev_fatal": AER.format(what="FATAL", count=fatal),
            f"{CARD}/aer_dev_nonfatal": AER.format(what="NONFATAL", count=nonfatal),
            "proc/pressure/memory": CALM.format(full=full),
            "proc/pressure/io": CALM.format(full="0.00"),
        },
    )
    return node.read_bus(HealthSurroundings(root, Scripted()))


def then(name: str, now: NodeFacts, before: NodeFacts | None = None) -> CheckVerdict:
    one = check(name)
    was = Reading("any", 0.0, "b", before) if before is not None else None
    return judged(one, Reading("any", 60.0, "b", now), was, POLICY)


def test_the_bus(tmp_path: Path) -> None:
    calm = bus(tmp_path, fatal=7)
    assert then("host_pcie_errors", calm).severity is UNKNOWN
    assert then("host_pcie_errors", calm, calm).severity is OK
    fatal = then("host_pcie_errors", bus(tmp_path, fatal=8), calm)
    assert (fatal.severity, "pci 0000:1b:00.0: fatal PCIe errors rose from 7 to 8" in fatal.words) == (FAIL, True)
    assert then("host_pcie_errors", bus(tmp_path, fatal=7, nonfatal=1), calm).severity is WARN
    sound = bus(tmp_path, kind="0x040300")
    assert "users may not read them" in then("host_pcie_errors", sound).words, "a sound card is nobody's concern"
    assert then("host_pressure", calm).severity is OK
    busy = then("host_pressure", bus(tmp_path, full="35.20"))
    assert (busy.severity, "waited for memory is 35 %" in busy.words) == (WARN, True)
    nothing = node.read_bus(HealthSurroundings(tmp_path / "nothing", Scripted()))
    assert then("host_pressure", nothing).words == "the kernel does not measure pressure (PSI)"
    assert then("host_pcie_errors", nothing).severity is UNKNOWN


def stat(root: Path, steal: object) -> NodeFacts:
    line = f"1 2 3 4 5 6 7 {steal} 9 10\n"
    write(root, {"proc/stat": f"cpu  {line}cpu0 {line}cpu1 {line}intr 12 0 3\n"})
    return node.read_bus(HealthSurroundings(root, Scripted()))


def test_cpu_time_that_a_hypervisor_took(tmp_path: Path) -> None:
    ticks_per_s = os.sysconf("SC_CLK_TCK")  # of two CPUs
    before = stat(tmp_path, 5000)
    assert then("host_steal", before).severity is UNKNOWN
    assert then("host_steal", stat(tmp_path, 5000 + 2 * 5 * ticks_per_s), before).severity is OK, "5 s of 60"
    taken = then("host_steal", stat(tmp_path, 5000 + 2 * 15 * ticks_per_s), before)
    assert (taken.severity, "gave the CPUs to other machines for 25 % of the last 60 s" in taken.words) == (WARN, True)
    for odd in ("?", ""):
        assert then("host_steal", stat(tmp_path, odd), before).severity is UNKNOWN
    (tmp_path / "proc/stat").write_text("cpu 1 2\n")
    assert node.read_bus(HealthSurroundings(tmp_path, Scripted())).missing[node.NODE]["stolen_ns"]


# ---- mounts ----------------------------------------------------------------------------------------------------------

ROOT = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
NFS = "40 21 0:50 / /scratch\\040me rw,relatime shared:2 master:1 - nfs4 server:/x rw,vers=4.2"
PROC = "22 21 0:5 / /proc rw - proc proc rw"
TURNED = "41 21 8:2 / /data rw,noatime - xfs /dev/sdb ro,attr2"
MEANT = "42 21 8:3 / /usr ro - ext4 /dev/sdc ro"
BOUND = "43 21 8:3 /lib /lib rw - ext4 /dev/sdc ro"


def mounted(root: Path, *lines: str, lustre: str = "") -> NodeFacts:
    files = {"proc/self/mountinfo": "\n".join(lines)}
    return storage.read_mounts(
        HealthSurroundings(write(root, {**files, "sys/fs/lustre/health_check": lustre}), Scripted())
    )


def test_mounts(tmp_path: Path) -> None:
    whole = mounted(tmp_path, ROOT, NFS, PROC, MEANT, BOUND, "odd - line", "1 2 3")
    assert set(whole.values) == {"node", "/", "/scratch me", "/usr", "/lib"}
    assert then("storage_mounts", whole).severity is OK
    turned = then("storage_mounts", mounted(tmp_path, ROOT, TURNED))
    assert (turned.severity, "the kernel turned the file system of /data read-only" in turned.words) == (FAIL, True)
    gone = then("storage_mounts", mounted(tmp_path, ROOT, MEANT, BOUND), whole)
    assert (gone.severity, gone.words) == (WARN, "/scratch me (nfs4) was mounted and is not any more")
    assert then("storage_mounts", mounted(tmp_path, ROOT, NFS, BOUND), whole).severity is OK, "a disk may be unmounted"
    assert then("storage_mounts", mounted(tmp_path)).severity is UNKNOWN


@pytest.mark.parametrize(
    ("said", "severity"), [("", UNKNOWN), ("healthy\n", OK), ("NOT HEALTHY\ndevice x\n", FAIL), ("LBUG\n", FAIL)]
)
def test_lustre(tmp_path: Path, said: str, severity: Severity) -> None:
    verdict = then("storage_lustre", mounted(tmp_path, ROOT, lustre=said))
    assert verdict.severity is severity
    assert severity is not FAIL or said.split("\n", maxsplit=1)[0] in verdict.words


# ---- congestion ------------------------------------------------------------------------------------------------------
