"""Devices at work at a run's gate: what counts as proven, how long it may take, and that nothing of it stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.local.box import cpus_count
from gangrun.adapters.local.health_child import HealthChild
from gangrun.agent.brain.facts import Checked
from gangrun.core.model import Met
from gangrun.core.nodes.device_test import QUICK, THOROUGH
from gangrun.core.nodes.meetings import rounds_of_few
from gangrun.entry.agent_health import AgentHealth, all_met
from gangrun.health.framework.check import CheckVerdict, NodeFacts, Severity
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.gpu import dcgm
from gangrun.launch.health_here import DeviceTestResult, at_the_gate, baseline_of, summed_up
from gangrun.supervisor.node_calls import meetings_of
from gangrun.wire.messages import MeetPeer
from tests.health.looks import POLICY
from tests.local.evidence import alive
from tests.waiting import until

CPU: dict[str, int | float | str] = {
       "usable": 1, "device": "Xeon", "torch": "2.9", "gemm_mismatches": 0, "gemm_products": 4, "gemm_tflops": 1.0,
       "memory_mismatches": 0, "memory_bytes_tested": 100_000_000, "memory_gbps": 20.0}  # fmt: skip
DIAG: dict[str, dict[str, int | float | str]] = {"gpu 0": {"test": "pass", "tests": 3}}


@dataclass
class Answers:
    """Probes that take their time, by a clock held in the hand."""

    says: Mapping[str, NodeFacts]
    now_s: float = 100.0
    takes_s: float = 10.0
    asked: list[tuple[str, tuple[str, ...], float]] = field(default_factory=list)

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> NodeFacts:
        self.asked.append((kind, words, within_s))
        self.now_s += self.takes_s
        return self.says.get(kind, NodeFacts(absent="dcgmi is not installed here"))

    def now(self) -> float:
        return self.now_s


def worked(answers: Answers, tests: str, left_s: float, *off: str) -> DeviceTestResult:
    around = HealthSurroundings(Path("/"), answers)
    return at_the_gate(tests, answers.now_s + left_s, around, POLICY, "n1", answers, frozenset(off))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_what_came_out_right_is_told_and_its_best_is_kept() -> None:
    answers = Answers({"active": NodeFacts({"node": {"gpus": 0}, "cpu": CPU}), "dcgm_test": NodeFacts(DIAG)})
    done = worked(answers, THOROUGH, 120.0)
    assert done.tested == "0 wrong in 4 products, 0 wrong in 0.1 GB of memory, DCGM's test: 1 seen, 0 bad, in 20 s"
    assert done.untested == ""
    assert answers.asked[0] == ("active", ("quick", "52"), 55.0)
    assert answers.asked[1] == ("dcgm_test", ("110", "diag", "-r", "1", "-j"), 110.0), "what is left of the time"
    best = baseline_of("n1")
    assert best is not None and best.facts.number("cpu", "gemm_tflops") == 1.0
    assert [kind for kind, _, _ in answers.asked] == ["active", "dcgm_test"]


def test_who_asks_for_a_deep_test_has_dcgm_take_its_minutes() -> None:
    answers = Answers({"dcgm_test": NodeFacts(DIAG)})
    facts = dcgm.DEEP_TEST_FAMILY.read(HealthSurroundings(Path("/"), answers))  # type: ignore[arg-type]
    assert facts.get("gpu 0", "test") == "pass"
    assert answers.asked == [("dcgm_test", ("900", "diag", "-r", "2", "-j"), 900.0)]


def test_before_the_start_dcgm_is_not_asked_and_where_it_is_not_there_nobody_misses_it() -> None:
    answers = Answers({"active": NodeFacts({"node": {"gpus": 0}, "cpu": CPU})})
    assert worked(answers, QUICK, 58.0).tested.endswith("of memory, in 10 s")
    assert [kind for kind, _, _ in answers.asked] == ["active"]
    assert worked(answers, THOROUGH, 118.0).tested.endswith("of memory, in 20 s")


def test_one_wrong_number_proves_nothing_but_itself() -> None:
    wrong = Answers({"active": NodeFacts({"node": {"gpus": 0}, "cpu": {**CPU, "gemm_mismatches": 3}})})
    done = worked(wrong, QUICK, 58.0)
    assert done.tested == ""
    assert "cpu: number of wrong results" in done.untested


@pytest.mark.parametrize(
    ("facts", "left_s", "off", "why"),
    [
        (NodeFacts(absent="torch is not installed"), 58.0, (), "torch is not installed"),
        (NodeFacts({"node": {"gpus": 0}, "cpu": CPU}), 4.0, (), "the test is turned off, or there was no time for it"),
        (
            NodeFacts({"node": {"gpus": 0}, "cpu": CPU}),
            58.0,
            ("active_gemm",),
            "the test is turned off, or there was no time for it",
        ),
    ],
)
def test_what_was_not_done_is_not_proven(facts: NodeFacts, left_s: float, off: tuple[str, ...], why: str) -> None:
    done = worked(Answers({"active": facts}), QUICK, left_s, *off)
    assert (done.tested, done.untested) == ("", why)


def test_a_failing_speed_is_no_pass() -> None:
    fine = [CheckVerdict(name, "active", Severity.OK, "0 wrong", "", "") for name in ("active_gemm", "active_memory")]
    slow = CheckVerdict("active_copies", "active", Severity.FAIL, "9 GB/s", "", "copies to gpu 1 run at 9 GB/s")
    assert summed_up((*fine, slow), 3.0).untested == "copies to gpu 1 run at 9 GB/s"
    assert summed_up(tuple(fine), 3.0).tested == "0 wrong, 0 wrong of memory, in 3 s"


# ---- real processes --------------------------------------------------------------------------------------------------

PLAYS = """
import json, sys
def say(**what): print(json.dumps(what), flush=True)
say(op="watching", trouble="")
for line in sys.stdin:
    said = json.loads(line)
    if said["op"] == "look":
        if sys.argv[1] == "asks":
            say(op="finding", check="gpu_recovery", fatal=False, poor=True, sentence="gpu 0 asks to be drained")
        say(op="looked", n=said["n"])
    elif said["op"] == "work" and sys.argv[1] == "dies":
        sys.exit(3)
    elif said["op"] == "work":
        assert said["tests"] == "quick" and said["until"] > 0
        say(op="finding", check="active_gemm", fatal=sys.argv[1] == "broken", sentence="3 wrong")
        say(op="looked", n=said["n"], tested="" if sys.argv[1] == "broken" else "4 products", untested=sys.argv[1])
"""


def kept(tmp_path: Path, how: str) -> HealthChild:
    path = tmp_path / "plays.py"
    path.write_text(PLAYS)
    child = HealthChild([sys.executable, str(path), how], {}, SystemClock().now, lambda _: None)
    child.start()
    return child


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("well", (1, "4 products", "well")),
        ("broken", (1, "", "broken")),
        ("dies", (0, "", "the tests of devices died")),
    ],
)
def test_the_keeper_hands_on_what_came_out(tmp_path: Path, how: str, said: tuple[int, str, str]) -> None:
    child = kept(tmp_path, how)
    found, tested, untested = child.work(QUICK, 300.0)
    assert (len(found), tested, untested) == said
    child.close()


def gate_of(tmp_path: Path, how: str) -> AgentHealth:
    """``AgentHealth`` with the child played, and everything else its own."""
    from gangrun.wire.spec import RunSpec

    spec = RunSpec(
        run="r", name="n", world="local", command=("true",), python=False, working_directory="/", nodes=("n1",),
        nodes_min_count=1, slots_per_node=1, ranks_per_slot=1,
    )  # fmt: skip
    health = AgentHealth(spec, "n1", tmp_path, dict(os.environ), SystemClock().now, lambda _: None)
    health.close()
    health._child = kept(tmp_path, how)
    return health


@pytest.mark.processes
def test_no_gang_starts_on_a_gpu_that_asks_to_be_drained(tmp_path: Path) -> None:
    """While a gang runs there it may go on to its next checkpoint."""
    health = gate_of(tmp_path, "asks")
    assert health.gate(Checked(True), "") == Checked(False, "gpu 0 asks to be drained (gpu_recovery)")
    health.close()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "answer"),
    [
        ("well", Checked(True, "devices are not proven: well", "4 products")),
        ("broken", Checked(False, "3 wrong (active_gemm)")),
        ("dies", Checked(True, "devices are not proven: the tests of devices died")),
    ],
)
def test_the_gate_says_what_devices_did(tmp_path: Path, how: str, answer: Checked) -> None:
    health = gate_of(tmp_path, how)
    assert health.gate(Checked(False, "no memory"), QUICK) == Checked(False, "no memory")
    assert health.gate(Checked(True), "") == Checked(True)
    assert health.gate(Checked(True), QUICK) == answer
    health.close()


@pytest.mark.processes
def test_tests_end_with_whoever_asked_for_them(tmp_path: Path) -> None:
    """The agent kills its checker when the run ends: devices must be free at once."""
    pids = tmp_path / "pids"
    python = tmp_path / "python"
    at_work = (
        "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, 9); signal.alarm(600);"
        " os.getppid() == int(sys.argv[1]) and signal.pause()"
    )
    python.write_text(f"#!/bin/sh\necho $$ $PPID >> '{pids}'\nexec {sys.executable} -c '{at_work}' $PPID\n")
    python.chmod(0o755)
    asks = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    probe = [sys.executable, "-m", "gangrun.entry.health_probe", "active", "quick", "900", str(python)]
    no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    checker = subprocess.Popen([sys.executable, "-c", asks, *probe], stdout=subprocess.DEVNULL, env=no_gpu)
    devices = min(2, cpus_count())  # all have begun, each with its parent alive
    until(lambda: pids.exists() and pids.read_text().count("\n") == devices, 60, lambda: "tests that work")
    born = [int(pid) for pid in pids.read_text().split()]
    assert all(alive(pid) for pid in born)
    checker.kill()
    checker.wait()
    until(lambda: not any(alive(pid) for pid in born), 20, lambda: f"the end of {born}")


def test_a_node_says_whom_it_reaches_and_leaves_out_what_it_could_not_measure() -> None:
    meetings = [
        MeetPeer("n1", "127.0.0.1", "127.0.0.1", 23_456, True, 0),
        MeetPeer("n2", "no-such-host.invalid", "127.0.0.1", 23_457, True, 1),
    ]
    here, away = all_met(meetings, "", {}, SystemClock().now)
    assert here == Met("n1")
    assert away.partner == "n2"
    assert away.error.startswith("no-such-host.invalid does not answer: ")
    assert all_met((), "", {}, SystemClock().now) == ()


def test_both_nodes_of_a_pair_are_told_the_same_place_to_meet() -> None:
    rounds = rounds_of_few(("n0", "n1", "n2", "n3"))
    addresses = {name: f"10.0.0.{k}" for k, name in enumerate(("n0", "n1", "n2", "n3"))}
    told = {name: tuple(meetings_of(name, rounds, addresses, 7)) for name in addresses}
    places = {(one.host, one.port) for mine in told.values() for one in mine}
    assert len(places) == 6, "six pairs, each with a port of its own"
    for name, mine in told.items():
        assert [one.turn for one in mine] == [0, 1, 2]
        for one in mine:
            (back,) = [other for other in told[one.partner] if other.partner == name]
            assert (one.host, one.port, one.turn, one.is_first) == (back.host, back.port, back.turn, not back.is_first)
            assert one.address == addresses[one.partner]
            assert one.host == (addresses[name] if one.is_first else one.address)
