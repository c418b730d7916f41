"""Counters of nodes over days: what is kept, what is told of them, and files that may be anything."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gangrun.adapters.fs.counter_history import EVERY_S, FOLDER, READINGS_MAX_COUNT, CounterHistory
from gangrun.health.framework.check import NodeFacts, Reading
from gangrun.health.framework.readings import wear_counters
from gangrun.planning.trends import DAY_S, KINDS
from tests.command_line import Call, Said
from tests.health.looks import write
from tests.health.test_infiniband import tree

ECC = ("GPU-1", "gpu 3", "ecc_corrected")


def kept(folder: Path, node: str = "n1") -> dict[str, list[tuple[float, int]]]:
    return {one.name: list(one.readings) for one in CounterHistory(folder).nodes().get(node, ())}


def read_daily(folder: Path, node: str, counts: Mapping[tuple[str, str, str], list[int]], until: float) -> None:
    days = len(next(iter(counts.values())))
    for day in range(days):
        at = until - (days - 1 - day) * DAY_S
        CounterHistory(folder).add(node, {key: found[day] for key, found in counts.items()}, at)


def test_readings_are_added_at_most_every_six_hours_and_dropped_after_eight_days(tmp_path: Path) -> None:
    history, at = CounterHistory(tmp_path), 1e9
    history.add("n1", {ECC: 5}, at)
    history.add("n1", {ECC: 6}, at + EVERY_S - 1)
    history.add("n1", {}, at + EVERY_S)
    assert kept(tmp_path) == {"ecc_corrected": [(at, 5)]}
    link = ("mlx5_0 port 1", "mlx5_0 port 1", "link_downed")
    history.add("n1", {link: 0}, at + EVERY_S)
    history.add("n1", {ECC: 9, link: 1}, at + 2 * EVERY_S)
    assert kept(tmp_path) == {
        "ecc_corrected": [(at, 5), (at + 2 * EVERY_S, 9)],
        "link_downed": [(at + EVERY_S, 0), (at + 2 * EVERY_S, 1)],
    }
    history.add("n1", {link: 3}, at + 8 * DAY_S + EVERY_S)
    assert kept(tmp_path) == {
        "ecc_corrected": [(at + 2 * EVERY_S, 9)],
        "link_downed": [(at + EVERY_S, 0), (at + 2 * EVERY_S, 1), (at + 8 * DAY_S + EVERY_S, 3)],
    }
    history.add("n1", {ECC: 4}, at)
    assert kept(tmp_path) == {"ecc_corrected": [(at, 4)]}, "a clock that ran ahead"


def test_events_are_summed_over_processes_and_never_fall(tmp_path: Path) -> None:
    at, xid = 1e9, ("GPU-1", "gpu 0", "xids")
    CounterHistory(tmp_path).add("n1", {ECC: 1}, at)
    for k in range(3):
        CounterHistory(tmp_path).add_event("n1", *xid[:2], at + 60 * k + 60)
    other = CounterHistory(tmp_path)
    other.add_event("n1", "GPU-2", "gpu 1", at + 240)
    assert [one.readings[-1] for one in other.nodes()["n1"]] == [(at, 1), (at + 60, 3), (at + 60, 1)]
    CounterHistory(tmp_path).add("n1", {ECC: 1}, at + DAY_S)
    CounterHistory(tmp_path).add_event("n1", *xid[:2], at + 2 * DAY_S)
    xids = {one.device: [count for _, count in one.readings] for one in other.nodes()["n1"] if one.name == "xids"}
    assert xids == {"GPU-1": [0, 3, 3, 4], "GPU-2": [0, 1, 1, 1]}
    assert [count for _, count in kept(tmp_path)["ecc_corrected"]] == [1, 1]


def test_a_storm_of_events_stays_small_and_two_at_once_lose_none(tmp_path: Path) -> None:
    history, at = CounterHistory(tmp_path), 1e9
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: history.add_event("n1", "GPU-1", "gpu 0", at), range(200)))
    assert kept(tmp_path)["xids"] == [(at, 200)]
    for hour in range(1, 200):
        history.add_event("n1", "GPU-1", "gpu 0", at + 3600 * hour)
    readings = kept(tmp_path)["xids"]
    assert (readings[-1][1], len(readings)) == (399, READINGS_MAX_COUNT)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"v": 2}', '{"v": 1, "at": ["x"]}', '{"v": 1, "at": [1.0], "series": [["a"]]}', "\xff"]
)
def test_damage_is_no_reading_and_is_written_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / FOLDER / "n1.json"
    path.parent.mkdir()
    path.write_text(text, "latin-1")
    assert CounterHistory(tmp_path).nodes() == {}
    CounterHistory(tmp_path).add("n1", {ECC: 1}, 5.0)
    assert kept(tmp_path) == {"ecc_corrected": [(5.0, 1)]}


def test_a_gpu_is_known_by_its_uuid_and_a_port_by_its_name() -> None:
    facts = NodeFacts({
        "gpu 3": {"uuid": "GPU-1", "ecc_corrected": 7, "temperature_c": 40},
        "gpu 3 link 5": {"crc": 2},
        "gpu 4": {"ecc_corrected": 1},
        "mlx5_0 port 1": {"link_downed": 3, "symbol_error": float("nan")},
    })  # fmt: skip
    assert wear_counters([Reading("any", 1.0, "b", facts)], KINDS.keys()) == {
        ("GPU-1", "gpu 3", "ecc_corrected"): 7,
        ("GPU-1 link 5", "gpu 3 link 5", "crc"): 2,
        ("gpu 4", "gpu 4", "ecc_corrected"): 1,
        ("mlx5_0 port 1", "mlx5_0 port 1", "link_downed"): 3,
    }


def test_a_node_that_gets_worse_is_told_with_a_sentence_to_copy(home: Path, gangrun: Call) -> None:
    folder, now = home / "state" / "gangrun", time.time()
    noon = now - 3600.0
    read_daily(folder, "n7", {ECC: [12, 40, 100, 300, 700, 1500, 4310]}, noon)
    read_daily(folder, "n8", {ECC: [0, 0, 0, 0, 0, 0, 9]}, noon)
    told = " ".join(gangrun("nodes").out.split())
    first, last = (time.strftime("%Y-%m-%d", time.gmtime(at)) for at in (noon - 6 * DAY_S, noon))
    assert told.startswith("no node is excluded getting worse over the last week, and still used: n7. For the admini")
    assert (
        f"On node n7, gpu 3 (GPU-1) had 4,298 more corrected memory errors between {first} and {last}, on 6 days, "
        "about 2,810 of them in the last day; please run dcgmi diag -r 3 on it"
    ) in told
    (worse,) = gangrun("nodes", "--json").json["worse"]
    assert (worse["node"], worse["counter"], worse["rise"], worse["days"]) == ("n7", "ecc_corrected", 4298, 6)
    assert worse["sentence"] in told
    assert "n8 is not on the list" in gangrun("nodes", "clear", "n8").err
    assert gangrun("nodes", "clear", "all") == Said(0, "removed from the list: n7\n", "")
    assert gangrun("nodes") == Said(0, "no node is excluded\n", "")
    assert CounterHistory(folder).nodes().keys() == {"n8"}


def test_a_fleet_that_gets_worse_is_told_in_short(home: Path, gangrun: Call) -> None:
    for k in range(12):
        counts = {ECC: [0, 100, 200, 300, 400, 500, 600 + k]}
        read_daily(home / "state" / "gangrun", f"n{k}", counts, time.time() - 60)
    told = gangrun("nodes").out
    assert "still used: n[0-11]" in told and told.count("On node ") == 10
    assert "2 more counters got worse" in told


def test_each_look_at_this_node_is_remembered(home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    root = tree(home / "root", {"mlx5_0": {"counters/link_downed": "4\n"}})
    write(root, {"sys/devices/system/edac/mc/mc0/ue_count": "0\n", "sys/devices/system/edac/mc/mc0/ce_count": "17\n"})
    gangrun("health", "--fs-root", str(root))
    file = json.loads((home / "state" / "gangrun" / FOLDER / "n3.json").read_text())
    found = {name: (place, counts) for _, place, name, counts in file["series"]}
    assert (file["v"], found["link_downed"], found["ce_count"][1]) == (1, ("mlx5_0 port 1", [4]), [17])
