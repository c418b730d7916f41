"""What wears out or is slow beside its peers: replays, clocks, NVLink 5, PCIe errors, pressure, mounts, congestion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangrun.health.framework.check import CheckVerdict, NodeFacts, Reading, Severity, judged
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.host import node, storage
from gangrun.health.network import ports
from tests.health.looks import POLICY, Scripted, check, look, reading, write
from tests.health.test_infiniband import tree

OK, WARN, FAIL, UNKNOWN = Severity.OK, Severity.WARN, Severity.FAIL, Severity.UNKNOWN
GPU: dict[str, Any] = {"uuid": "u", "pcie_replays": 10, "pcie_width": 16, "pcie_generation_max": 5, "busy_percent": 99,
                       "sm_clock_mhz": 1980}  # fmt: skip


def gpus(at: float = 60.0, **changed: dict[str, Any]) -> Reading:
    values: dict[str, Any] = {"node": {}}
    values |= {f"gpu {n}": {**GPU, "uuid": f"u{n}", **changed.get(f"gpu_{n}", {})} for n in range(4)}
    return reading(values, at)


def link(at: float, **counts: int) -> Reading:
    return reading({"node": {}, "gpu 0": {"uuid": "u"}, "gpu 0 link 3": {"recoveries_failed": 0, **counts}}, at)


@pytest.mark.parametrize(
    ("name", "now", "before", "severity", "words"),
    [
        ("gpu_pcie_replays", gpus(), None, UNKNOWN, "first look"),
        ("gpu_pcie_replays", gpus(), gpus(0.0), OK, ""),
        ("gpu_pcie_replays", gpus(gpu_1={"pcie_replays": 40}), gpus(0.0), OK, ""),  # 30.7 a minute are allowed
        (
            "gpu_pcie_replays",
            gpus(gpu_1={"pcie_replays": 41}),
            gpus(0.0),
            WARN,
            "transfers rose from 10 to 41",
        ),
        (
            "gpu_pcie_replays",
            gpus(gpu_1={"pcie_replays": 21, "pcie_generation_max": 3}),
            gpus(0.0),
            WARN,
            "rose from 10 to 21",
        ),
        ("gpu_pcie_replays", gpus(1.0, gpu_1={"pcie_replays": 20}), gpus(0.0), OK, ""),  # ten in a second are no rate
        ("gpu_pcie_replays", gpus(gpu_1={"pcie_replays": 999, "uuid": "new"}), gpus(0.0), OK, ""),
        ("gpu_pcie_replays", reading({"node": {}}), None, UNKNOWN, "no NVIDIA GPU here"),
        ("gpu_clocks", gpus(), None, OK, ""),
        (
            "gpu_clocks",
            gpus(gpu_2={"sm_clock_mhz": 1600}),
            None,
            WARN,
            "is 1600 MHz, and 1980 MHz on its",
        ),
        ("gpu_clocks", gpus(gpu_2={"sm_clock_mhz": 345, "busy_percent": 0}), None, OK, ""),
        ("gpu_clocks", gpus(gpu_0={"busy_percent": 3}, gpu_1={"busy_percent": 3}), None, UNKNOWN, "fewer than 3 GPUs"),
        ("nvlink5_errors", link(60.0), link(0.0), OK, ""),
        ("nvlink5_errors", link(60.0), None, UNKNOWN, "first look"),
        (
            "nvlink5_errors",
            link(60.0, recoveries_failed=1),
            link(0.0),
            FAIL,
            "could not be brought back rose from 0 to 1",
        ),
        ("nvlink5_errors", link(600.0, recoveries=9), link(0.0, recoveries=0), OK, ""),
        ("nvlink5_errors", link(600.0, recoveries=10), link(0.0, recoveries=0), WARN, "went down and came back"),
        ("nvlink5_errors", gpus(), gpus(0.0), UNKNOWN, "these GPUs have no NVLink 5"),
        ("gpu_spare_rows", gpus(gpu_0={"banks_exhausted": 0}), None, OK, ""),
        ("gpu_spare_rows", gpus(gpu_0={"banks_exhausted": 2}), None, WARN, "spare rows is 2"),
    ],
)
def test_gpus(name: str, now: Reading, before: Reading | None, severity: Severity, words: str) -> None:
    verdict = look(name, now, before)
    assert (verdict.severity, words in verdict.words) == (severity, True), verdict


LINKS = 18


def linked(at: float, odd: dict[str, int] | None = None, only: int = LINKS) -> Reading:
    """Two GPUs with all their links, of which the first ones of gpu 1 are odd, each a little more."""
    well = {
        "active": 1,
        "replay": 0,
        "recoveries": 0,
        "recoveries_failed": 0,
        "speed_mbps": 900,
        "effective_ber": 1e-15,
    }
    values: dict[str, Any] = {"node": {}, "gpu 0": {"uuid": "a"}, "gpu 1": {"uuid": "b"}}
    for gpu in (0, 1):
        for n in range(LINKS):
            changed = {name: value + n * (value > 1) for name, value in (odd or {}).items()} if gpu and n < only else {}
            values[f"gpu {gpu} link {n}"] = {**well, **changed}
    return reading(values, at)


@pytest.mark.parametrize(
    ("name", "odd", "severity", "one", "many"),
    [
        (
            "nvlink_state",
            {"active": 0},
            FAIL,
            "gpu 1 link 0: NVLink is down",
            "gpu 1: NVLink is down on 18 links (0-17)",
        ),
        (
            "nvlink_errors",
            {"replay": 50},
            WARN,
            "gpu 1 link 0: replays rose from 0 to 50 in 60 s",
            "gpu 1: replays rose from 0 to 67 in 60 s at worst, on 18 links (0-17)",
        ),
        (
            "nvlink_speed",
            {"speed_mbps": 400},
            WARN,
            "gpu 1 link 0: link speed is 400 MB/s, and 900 MB/s on its peers",
            "gpu 1: link speed is 400 MB/s at worst, on 18 links (0-17), and 900 MB/s on its peers",
        ),
        (
            "nvlink5_errors",
            {"recoveries_failed": 1},
            FAIL,
            "gpu 1 link 0: links that could not be brought back rose from 0 to 1 in 60 s",
            "gpu 1: links that could not be brought back rose from 0 to 1 in 60 s at worst, on 18 links (0-17)",
        ),
        (
            "nvlink5_rates",
            {"effective_ber": 1},
            WARN,
            "gpu 1 link 0: share of bits that were wrong after correction is 1e+00 (limit 1e-12)",
            "gpu 1: share of bits that were wrong after correction is 1e+00 at worst, on 18 links (0-17)",
        ),
    ],
)
def test_what_befalls_many_links_of_a_gpu_is_one_finding(
    name: str, odd: dict[str, int], severity: Severity, one: str, many: str
) -> None:
    before = linked(0.0)
    for only, words, place in ((1, one, "gpu 1 link 0"), (LINKS, many, "gpu 1 links")):
        verdict = look(name, linked(60.0, odd, only), before)
        assert verdict.severity is severity
        assert verdict.words.startswith(words), verdict.words
        assert [(finding.place, finding.devices_count) for finding in verdict.findings] == [(place, only)]
    assert look(name, linked(60.0), before).severity is OK
    three = look(name, linked(60.0, odd, 3), before).words
    assert "3 " in three and "(0-2)" in three


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


@pytest.mark.parametrize(
    ("waits", "severity"),
    [
        ((5, 5, 5), OK),
        ((5_000_000_000, 5, 5), WARN),
        ((5_000_000_000, 4_000_000_000, 6_000_000_000), OK),
        ((5_000, 5, 5), OK),
        ((5_000_000_000, 5), UNKNOWN),
    ],
    ids=["none", "one port", "all ports", "hardly any", "too few"],
)
def test_congestion(tmp_path: Path, waits: tuple[int, ...], severity: Severity) -> None:
    def seen(counts: tuple[int, ...]) -> NodeFacts:
        tree(tmp_path, {f"mlx5_{k}": {"counters/port_xmit_wait": f"{count}\n"} for k, count in enumerate(counts)})
        return ports.read_peers(HealthSurroundings(tmp_path, Scripted()))

    remember = ports.PEERS_FAMILY.remember
    before = remember(Reading("ib_peers", 0.0, "b", seen(tuple(0 for _ in waits))), None)
    now = remember(Reading("ib_peers", 10.0, "b", seen(waits)), before)
    one = check("ib_congestion")
    verdict = judged(one, now, before, POLICY)
    assert verdict.severity is severity, verdict
    assert severity is not WARN or "mlx5_0 port 1: port_xmit_wait rose from" in verdict.words
