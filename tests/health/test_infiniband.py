"""InfiniBand and RoCE from trees of files: what is read, and what it means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gangrun.core.events import FindingRaised, GangStarted, NodeChecked
from gangrun.core.model import Phase
from gangrun.health.framework.bounds import Bound, ShareOfPeers
from gangrun.health.framework.check import CauseClass, CheckVerdict, HealthPolicy, Needs, NodeFacts, Reading, Severity
from gangrun.health.framework.evidence import as_evidence
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.network import ports
from tests.core.life import Life, saved
from tests.health.looks import POLICY, Scripted, family, look, verdict_after, write

PORT = {
    "state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "rate": "400 Gb/sec (4X NDR)\n", "link_layer": "InfiniBand\n",
    "counters/link_downed": "3\n", "counters/symbol_error": "70\n", "counters/link_error_recovery": "0\n",
    "counters/port_rcv_errors": "5\n", "counters/local_link_integrity_errors": "0\n",
    "counters/port_xmit_discards": "9\n", "hw_counters/rnr_nak_retry_err": "2\n",
    "hw_counters/local_ack_timeout_err": "1\n",
}  # fmt: skip


def tree(root: Path, devices: Mapping[str, Mapping[str, str]]) -> Path:
    for name, changes in devices.items():
        files = {f"sys/class/infiniband/{name}/ports/1/{file}": text for file, text in {**PORT, **changes}.items()}
        write(root, {**files, f"sys/class/infiniband/{name}/fw_ver": "28.39.1002\n"})
    return root


def read(root: Path, at: float = 1000.0) -> Reading:
    return Reading("infiniband", at, "b", ports.read(HealthSurroundings(root, Scripted())))


def port(at: Any = 1000.0, boot: Any = "b", **changes: Any) -> Reading:
    """One port by values: quicker to say than a tree."""
    values = {"device": "mlx5_0", "state": 4, "state words": "4: ACTIVE", "phys_state": 5,
              "phys_state words": "5: LinkUp", "rate": 400, "rate words": "400 Gb/sec (4X NDR)",
              "link_layer": "InfiniBand", "link_downed": 3, **changes}  # fmt: skip
    return Reading("infiniband", at, boot, NodeFacts({"mlx5_0 port 1": values}))  # type: ignore[dict-item]


DOWN: dict[str, Any] = {"state": 1, "state words": "1: DOWN", "phys_state": 2, "phys_state words": "2: Polling"}


def after(name: str, *readings: Reading, policy: HealthPolicy = POLICY) -> CheckVerdict:
    return verdict_after(name, readings, policy)


def test_a_healthy_node_reads_well(tmp_path: Path) -> None:
    now = read(tree(tmp_path, {f"mlx5_{n}": {} for n in range(4)}))
    assert now.facts.get("mlx5_3 port 1", "rate") == 400
    assert now.facts.get("mlx5_3 port 1", "firmware") == "28.39.1002"
    assert now.facts.get("mlx5_0 port 1", "rnr_nak_retry_err") == 2
    assert look("ib_devices", now).shown == "4: mlx5_0, mlx5_1, mlx5_2, mlx5_3"
    assert look("ib_state", now).shown == "4 of 4 up"
    assert look("ib_rate", now).shown == "400 Gb/s"
    for name in ("ib_flaps", "ib_errors"):
        assert look(name, now).severity is Severity.UNKNOWN, "a count by itself says nothing"


def test_no_device_is_unknown_quietly(tmp_path: Path) -> None:
    assert ports.read(HealthSurroundings(tmp_path, Scripted())).absent == ports.NO_PORT
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert ports.read(HealthSurroundings(tmp_path, Scripted())).absent == ports.NO_PORT


def test_a_port_that_was_never_up_is_not_the_jobs(tmp_path: Path) -> None:
    down = {"state": "1: DOWN\n", "phys_state": "3: Disabled\n"}
    now = read(tree(tmp_path, {"mlx5_0": {}, "mlx5_1": down}))
    assert look("ib_state", now).shown == "1 of 1 up"
    named = HealthPolicy(ib_devices=("mlx5_0", "mlx5_1"))
    verdict = look("ib_state", now, policy=named)
    assert verdict.severity is Severity.FAIL
    assert verdict.words == "mlx5_1 port 1 is 1: DOWN, not ACTIVE; its link is 3: Disabled"
    assert look("ib_state", now, policy=HealthPolicy(ib_devices=("mlx5_0",))).severity is Severity.OK


def test_a_named_device_that_is_gone_fails(tmp_path: Path) -> None:
    now = read(tree(tmp_path, {"mlx5_0": {}}))
    verdict = look("ib_devices", now, policy=HealthPolicy(ib_devices=("mlx5_0", "mlx5_7")))
    assert (verdict.severity, [f.place for f in verdict.findings]) == (Severity.FAIL, ["mlx5_7"])


def test_a_flap_gets_its_grace_and_no_more() -> None:
    up = port(at=1000)
    assert after("ib_state", up, port(at=1005, **DOWN)).severity is Severity.WARN
    still = after("ib_state", up, port(at=1005, **DOWN), port(at=1030, **DOWN))
    assert still.severity is Severity.WARN
    gone = after("ib_state", up, port(at=1005, **DOWN), port(at=1030, **DOWN), port(at=1031, **DOWN))
    assert gone.severity is Severity.FAIL
    assert "last seen ACTIVE 31 s ago" in gone.words
    assert gone.findings[0].evidence.over_s == 31
    assert after("ib_state", up, port(at=1005, **DOWN), port(at=1010)).severity is Severity.OK


def test_what_was_up_before_a_reboot_is_nobodys_evidence() -> None:
    assert after("ib_state", port(at=1000), port(at=50, boot="c", **DOWN)).severity is Severity.UNKNOWN


def test_a_port_that_waits_for_the_subnet_manager_is_the_fabrics() -> None:
    waiting: dict[str, Any] = {"state": 2, "state words": "2: INIT"}
    verdict = after("ib_state", port(at=1000), port(at=2000, **waiting))
    assert (verdict.severity, "subnet manager" in verdict.words) == (Severity.WARN, True)


def test_a_slow_port_is_seen_beside_its_peers_and_against_what_is_expected(tmp_path: Path) -> None:
    slow = {"rate": "100 Gb/sec (1X NDR)\n"}
    ethernet = {"rate": "25 Gb/sec (1X EDR)\n", "link_layer": "Ethernet\n"}
    now = read(tree(tmp_path, {"mlx5_0": {}, "mlx5_1": slow, "mlx5_2": ethernet}))
    verdict = look("ib_rate", now)
    assert (verdict.severity, [f.place for f in verdict.findings]) == (Severity.WARN, ["mlx5_1 port 1"])
    wanted = HealthPolicy(ib_devices=("mlx5_0", "mlx5_1"), ib_rate_gbps=400)
    assert look("ib_rate", now, policy=wanted).severity is Severity.FAIL


def test_one_flap_is_ridden_out_and_a_second_within_the_hour_is_not() -> None:
    readings = [port(at=0.0), port(at=600.0, link_downed=4)]
    once = after("ib_flaps", *readings)
    assert (once.severity, "lost links rose from 3 to 4 in 10 min" in once.words) == (Severity.WARN, True)
    twice = after("ib_flaps", *readings, port(at=1800.0, link_downed=4), port(at=3000.0, link_downed=5))
    assert (twice.severity, "lost links rose from 3 to 5 in 50 min" in twice.words) == (Severity.FAIL, True)
    apart = after("ib_flaps", *readings, port(at=4000.0, link_downed=4), port(at=4100.0, link_downed=5))
    assert apart.severity is Severity.WARN
    assert after("ib_flaps", port(at=0.0), port(at=5.0)).severity is Severity.OK


@pytest.mark.parametrize("counter", ports.TWICE)
def test_what_tells_of_the_link_itself_is_told_once_and_is_broken_when_it_comes_again(counter: str) -> None:
    calm, once = port(at=0.0, **{counter: 7}), port(at=5.0, **{counter: 9})
    again = [port(at=at, **{counter: count}) for at, count in ((300.0, 9), (604.0, 10))]
    assert after("ib_errors", calm, once).severity is Severity.WARN
    assert after("ib_errors", calm, once, *again).severity is Severity.WARN, "ten minutes have not passed: one story"
    broken = after("ib_errors", calm, once, *again, port(at=605.0, **{counter: 11}))
    assert (broken.severity, "ten minutes ago or earlier" in broken.words) == (Severity.FAIL, True)
    [finding] = broken.findings
    assert (finding.place, finding.needs) == ("mlx5_0 port 1", Needs.ADMIN)
    quiet = [port(at=at, **{counter: 9}) for at in (1000.0, 3605.0)]
    assert after("ib_errors", calm, once, *quiet, port(at=3606.0, **{counter: 10})).severity is Severity.WARN, (
        "forgotten"
    )
    hour = port(at=3605.0, **{counter: 10})
    assert after("ib_errors", calm, once, *quiet[:1], hour).severity is Severity.FAIL, "not yet"
    booted = [port(at=700.0, boot="c", **{counter: 0}), port(at=705.0, boot="c", **{counter: 1})]
    assert after("ib_errors", calm, once, *booted).severity is Severity.WARN


def test_a_third_flap_within_a_day_is_broken_however_far_apart() -> None:
    hour = 3600.0
    two = [
        port(at=0.0),
        port(at=hour, link_downed=4),
        port(at=5 * hour, link_downed=4),
        port(at=9 * hour, link_downed=5),
    ]
    assert after("ib_flaps", *two).severity is Severity.WARN
    third = [port(at=20 * hour, link_downed=5), port(at=20 * hour + 5, link_downed=6)]
    broken = after("ib_flaps", *two, *third)
    assert (broken.severity, "times within a day that the link was lost is 3" in broken.words) == (Severity.FAIL, True)
    later = [port(at=25 * hour + 1, link_downed=5), port(at=25 * hour + 6, link_downed=6)]
    assert after("ib_flaps", *two, *later).severity is Severity.WARN, "a day after the first the count begins anew"
    assert after("ib_flaps", *two, *third, policy=HealthPolicy(link_downed_per_day=4)).severity is Severity.WARN
    restarted = [port(at=9 * hour + 30 * k, link_downed=5 + k) for k in range(1, 5)]
    patient = HealthPolicy(link_downed_per_hour=9)
    assert after("ib_flaps", *two, *restarted, policy=patient).severity is Severity.WARN, "a switch's restart is once"


def roce(root: Path, changes: Mapping[str, tuple[int, int]]) -> Path:
    """Interfaces of mlx5_0: name -> (port, carrier changes)."""
    tree(root, {"mlx5_0": {"link_layer": "Ethernet\n"}})
    net = {f"sys/class/infiniband/mlx5_0/device/net/{name}": pair for name, pair in changes.items()}
    files = {
        f"{at}/{file}": f"{n}\n" for at, (p, c) in net.items() for file, n in (("dev_port", p), ("carrier_changes", c))
    }
    return write(root, files)


def test_an_interface_of_roce_that_loses_its_carrier_again_and_again(tmp_path: Path) -> None:
    before = read(roce(tmp_path, {"eth0": (0, 5), "eth0v1": (0, 1), "eth1": (1, 90)}))
    assert before.facts.get("mlx5_0 port 1", "carrier_changes") == 6, "of this port's interfaces alone"
    once = read(roce(tmp_path, {"eth0": (0, 7)}), 1005.0)
    assert look("ib_errors", once, before).severity is Severity.OK, "lost and back: rate and state tell of that"
    often = read(roce(tmp_path, {"eth0": (0, 8)}), 1005.0)
    verdict = look("ib_errors", often, before)
    assert (verdict.severity, "carrier_changes rose from 6 to 9" in verdict.words) == (Severity.WARN, True)
    tree(tmp_path, {"mlx5_0": {}})
    assert read(tmp_path).facts.get("mlx5_0 port 1", "carrier_changes") is None, "IPoIB's says other things"


@pytest.mark.parametrize("bound", ports.BESIDE, ids=lambda bound: bound.reading)
def test_what_all_ports_count_is_told_where_one_stands_out(tmp_path: Path, bound: Bound) -> None:
    assert isinstance(bound.limit, ShareOfPeers)
    counter, usual_per_s = bound.reading, bound.limit.usual_min

    def seen(at: float, *counts: int) -> Reading:
        where = "counters" if counter.startswith(("port", "VL15")) else "hw_counters"
        tree(tmp_path, {f"mlx5_{n}": {f"{where}/{counter}": f"{count}\n"} for n, count in enumerate(counts)})
        return Reading("ib_peers", at, "b", ports.read_peers(HealthSurroundings(tmp_path, Scripted())))

    calm, most = seen(0.0, 1, 1, 1), int(10 * usual_per_s * 60)
    assert look("ib_peers", calm).severity is Severity.UNKNOWN
    assert look("ib_peers", seen(60.0, 1 + most, 1, 1), calm).severity is Severity.OK, "as many are borne"
    assert look("ib_peers", seen(60.0, *[2 + most] * 3), calm).severity is Severity.OK, "all of them alike"
    verdict = look("ib_peers", seen(60.0, 2 + most, 1, 1), calm)
    assert (verdict.severity, [f.place for f in verdict.findings]) == (Severity.WARN, ["mlx5_0 port 1"])
    assert f"{counter} rose from 1 to {2 + most}" in verdict.words


def three(at: float, counter: str, count: int) -> Reading:
    """Three ports, one of which counted so much."""
    calm: dict[str, Any] = {"state": 4, "phys_state": 5, "link_layer": "InfiniBand", counter: 0}
    values = {f"mlx5_{n} port 1": {**calm, "device": f"mlx5_{n}"} for n in range(3)}
    values["mlx5_0 port 1"][counter] = count
    return Reading("any", at, "b", NodeFacts(values))


OF_THE_LINK = {
    "link_error_recovery", "symbol_error", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "carrier_changes",
}  # fmt: skip
BUSY = [
    *(("ib_errors", counter) for counter in dict.fromkeys(bound.reading for bound in ports.BOUNDS)),
    *(("ib_peers", bound.reading) for bound in ports.BESIDE),
    ("ib_congestion", ports.WAITS),
]


@pytest.mark.parametrize(("name", "counter"), BUSY)
def test_only_what_tells_of_the_link_itself_counts_against_a_node(name: str, counter: str) -> None:
    verdict = look(name, three(60.0, counter, 10**12), three(0.0, counter, 0))
    assert (verdict.severity, [f.place for f in verdict.findings]) == (Severity.WARN, ["mlx5_0 port 1"])
    own, life = counter in OF_THE_LINK, Life(3, 1).running()
    life.join("s0")
    life.on(NodeChecked("s0", True))
    for attempt, rank in enumerate((0, 2)):
        [found] = as_evidence("n1", [verdict], life.now)
        life.on(FindingRaised(found))
        assert (found.fatal, bool(life.state.roster.nodes["n1"].poor)) == (False, own)
        life.save(10 + attempt)
        assert life.phase is Phase.RUNNING, "nobody moves for it"
        life.exit(rank, signal=11)
        life.stopped()
        assert (life.state.health.suspicion.get("n1", 0) > 0) is own, life.reason
        if own:
            return
        life.again(saved(10 + attempt))
        assert life.started().placement.nodes == ("n0", "n1", "n2"), "nor is it taken last"
        life.on(GangStarted(life.state.attempt.number))
    assert life.state.health.excluded == {}


def test_what_is_no_fault_of_the_port_hides_none_of_its_own() -> None:
    looks = [port(at=600.0 * k, symbol_error=21 * k, port_xmit_discards=10**6 * k) for k in range(7)]
    verdict = after("ib_errors", *looks)
    told = {finding.sentence.split()[3]: finding.cause for finding in verdict.findings}
    assert told == {"port_xmit_discards": CauseClass.ELSEWHERE, "symbol_error": CauseClass.HARDWARE}


def test_firmware_of_devices_of_one_kind_is_one(tmp_path: Path) -> None:
    tree(tmp_path, {f"mlx5_{n}": {} for n in range(4)})
    devices = "sys/class/infiniband"
    write(tmp_path, {f"{devices}/mlx5_{n}/board_id": ("MT_1\n" if n < 3 else "MT_2\n") for n in range(4)})
    write(tmp_path, {f"{devices}/mlx5_3/fw_ver": "20.1.1\n"})
    same = look("ib_firmware", read(tmp_path))
    assert (same.severity, same.shown) == (Severity.OK, "28.39.1002, 20.1.1"), "another kind has another one"
    assert same.alike == {"MT_1 firmware": "28.39.1002", "MT_2 firmware": "20.1.1"}
    write(tmp_path, {f"{devices}/mlx5_1/fw_ver": "28.40.1000\n"})
    verdict = look("ib_firmware", read(tmp_path))
    assert verdict.words == "mlx5_1: MT_1 firmware is 28.40.1000, and 28.39.1002 on the devices beside it"
    assert [(f.severity, f.cause) for f in verdict.findings] == [(Severity.WARN, CauseClass.CONFIG)]
    assert not any(one.poor or one.fatal for one in as_evidence("n1", [verdict], 0.0)), "a set-up keeps nobody away"


@pytest.mark.parametrize("text", ["", "\n", "ACTIVE\n", "-4: x\n", "9" * 500 + "\n", "\x00\xff", "4: ACT\x1b[2JIVE\n"])
def test_odd_files_do_no_harm(tmp_path: Path, text: str) -> None:
    odd = dict.fromkeys(PORT, text)
    now, later = read(tree(tmp_path, {"mlx5_0": odd})), read(tmp_path, 1010.0)
    for check in family("infiniband").checks:
        assert look(check.name, later, now).severity in (Severity.UNKNOWN, Severity.OK), check.name


def test_a_file_that_never_answers_and_one_that_is_none(tmp_path: Path) -> None:
    tree(tmp_path, {"mlx5_0": {}})
    rate = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/rate"
    rate.unlink()
    os.mkfifo(rate)
    state = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"
    state.unlink()
    state.mkdir()
    now = read(tmp_path)
    assert now.facts.missing["mlx5_0 port 1"]["rate"] == "rate cannot be read"
    assert look("ib_rate", now).severity is Severity.UNKNOWN
    assert look("ib_state", now).severity is Severity.OK
