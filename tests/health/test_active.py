"""Devices at work: what the child measures, also where its torch lies or it is killed; and what readings mean."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gangrun.adapters.local.children import ChildEnd, together
from gangrun.entry.health_children import PROGRAM, active, gathered
from gangrun.health.active import devices as judging
from gangrun.health.active.devices import best_of
from gangrun.health.framework.check import NodeFacts, Reading, Severity, judged
from gangrun.health.framework.readings import facts_from, plain_reading, reading_from
from gangrun.launch.health_here import baseline_of, keep_baseline
from tests.health.looks import POLICY
from tests.waiting import until

CHECK = {one.name: one for one in judging.CHECKS}
GPU: dict[str, Any] = {"usable": 1, "device": "H100", "driver": "570.1", "torch": "2.9", "gemm_mismatches": 0,
       "gemm_products": 9, "gemm_tflops": 700.0, "memory_mismatches": 0, "memory_bytes_tested": 64_000_000_000,
       "memory_gbps": 2900.0, "h2d_gbps": 53.0, "d2h_gbps": 52.0}  # fmt: skip
NODE: dict[str, Any] = {"gpus": 4, "allreduce_gbps": 430.0, "allreduce_mismatches": 0, "allreduce_ranks": 4,
        "device": "H100", "torch": "2.9", "driver": "570.1"}  # fmt: skip
CPU: dict[str, Any] = {"usable": 1, "device": "Xeon", "torch": "2.9", "gemm_tflops": 1.0, "memory_gbps": 20.0}


def gpus(node: dict[str, Any] | None = None, **changed: dict[str, Any]) -> Reading:
    """Four GPUs and their node, with what is otherwise."""
    values = {"node": {**NODE, **(node or {})}}
    values |= {f"gpu {n}": {**GPU, **changed.get(f"gpu_{n}", {})} for n in range(4)}
    return Reading("active", 5.0, "b", NodeFacts(values))


def cpu(load: float, **changed: Any) -> Reading:
    node = {"gpus": 0, "load": load, "cpus": 16}
    return Reading("active", 5.0, "b", NodeFacts({"node": node, "cpu": {**CPU, **changed}}))


BEFORE = gpus()


@pytest.mark.parametrize(
    ("check", "now", "before", "severity", "words"),
    [
        ("active_starts", gpus(), None, Severity.OK, ""),
        ("active_starts", gpus(gpu_2={"unusable": "CUDA error: uncorrectable ECC error"}), None, Severity.FAIL,
         "gpu 2: the device takes no work: CUDA error: uncorrectable ECC error"),
        ("active_gemm", gpus(), None, Severity.OK, ""),
        ("active_gemm", gpus(gpu_1={"gemm_mismatches": 1}), None, Severity.FAIL, "gpu 1: number of wrong results"),
        ("active_memory", gpus(gpu_3={"memory_mismatches": 7}), None, Severity.FAIL, "not what was written is 7"),
        ("active_gemm_speed", gpus(), None, Severity.OK, ""),
        ("active_gemm_speed", gpus(gpu_0={"gemm_tflops": 500.0}), BEFORE, Severity.FAIL, "71 % of the 700 seen before"),
        ("active_gemm_speed", gpus(gpu_0={"gemm_tflops": 570.0}), BEFORE, Severity.OK, ""),
        ("active_gemm_speed", gpus(gpu_0={"gemm_tflops": 500.0}), None, Severity.FAIL, "beside it reach 700 TFLOP/s"),
        ("active_bandwidth", gpus(gpu_0={"memory_gbps": 2000.0}), BEFORE, Severity.FAIL, "memory of gpu 0 copies at"),
        ("active_copies", gpus(gpu_0={"d2h_gbps": 12.0}), BEFORE, Severity.FAIL, "copies from gpu 0 run at 12 GB/s"),
        ("active_copies", cpu(0.1), None, Severity.UNKNOWN, "no GPU was tested"),
        ("active_allreduce", gpus({"allreduce_gbps": 343.0}), BEFORE, Severity.FAIL, "80 % of the 430 seen before"),
        ("active_allreduce", gpus({"allreduce_gbps": 345.0}), BEFORE, Severity.OK, ""),
        ("active_allreduce", gpus({"allreduce_mismatches": 3}), BEFORE, Severity.FAIL, "got 3 numbers wrong"),
        ("active_bandwidth", cpu(0.1, memory_gbps=9.0), cpu(0.1), Severity.FAIL, "45 % of the 20 seen before"),
        ("active_bandwidth", cpu(0.1, memory_gbps=12.0), cpu(0.1), Severity.WARN, "60 % of the 20 seen before"),
        ("active_bandwidth", cpu(9.0, memory_gbps=2.0), cpu(0.1), Severity.WARN, "10 % of the 20 seen before"),
    ],
)  # fmt: skip
def test_what_a_reading_means(check: str, now: Reading, before: Reading | None, severity: Severity, words: str) -> None:
    one = CHECK[check]
    verdict = judged(one, now, before, POLICY)
    assert (verdict.severity, words in verdict.words) == (severity, True), verdict
    assert all(finding.needs.value != "none" for finding in verdict.findings)


@pytest.mark.parametrize("key", ["device", "driver", "torch"])
def test_another_device_driver_or_torch_is_compared_with_nothing(key: str) -> None:
    slow = gpus(
        {"allreduce_gbps": 1.0, key: "another"}, **{f"gpu_{n}": {"gemm_tflops": 1.0, key: "x"} for n in range(4)}
    )
    for check in ("active_allreduce", "active_gemm_speed"):
        verdict = judged(CHECK[check], slow, BEFORE, POLICY)
        assert (verdict.severity, "its first" in verdict.shown) == (Severity.OK, True)
    assert best_of(slow, BEFORE).facts.get("gpu 0", "gemm_tflops") == 1.0


def test_the_best_is_kept_and_a_slow_day_does_not_lower_it() -> None:
    first = best_of(gpus(gpu_1={"gemm_tflops": 650.0}), None)
    later = best_of(gpus(gpu_0={"gemm_tflops": 100.0}, gpu_1={"gemm_tflops": 690.0, "h2d_gbps": "odd"}), first)
    assert [later.facts.get(f"gpu {n}", "gemm_tflops") for n in range(2)] == [700.0, 690.0]
    assert later.facts.get("gpu 1", "h2d_gbps") == 53.0
    again = reading_from(json.loads(json.dumps(plain_reading(later))))
    assert again == later, "it is kept as JSON"
    slow = gpus({"allreduce_gbps": 1.0})
    assert judged(CHECK["active_allreduce"], slow, again, POLICY).findings


def test_a_baseline_is_kept_for_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert baseline_of("n1") is None
    assert keep_baseline("n1", best_of(BEFORE, None)) == ""
    found = baseline_of("n1")
    assert found is not None
    assert found.facts.get("gpu 2", "memory_gbps") == 2900.0
    assert baseline_of("n2") is None
    [path] = (tmp_path / "gangrun/health").iterdir()
    path.write_text("{" * 9)
    assert baseline_of("n1") is None, "what makes no sense is as if it were not there"
    path.unlink()
    path.parent.rmdir()
    path.parent.touch()
    assert "cannot be written" in keep_baseline("n1", BEFORE)


# ---- what children say -----------------------------------------------------------------------------------------------


def asked(rank: int = 0, tests: tuple[str, ...] = ("product", "allreduce")) -> dict[str, Any]:
    return {"rank": rank, "tests": list(tests)}


def test_what_a_killed_child_knew_is_kept_and_the_rest_is_unknown() -> None:
    said = ChildEnd(
        None, '{"usable": 1, "device": "H100"}\n{"gemm_mismatches": 0, "gemm_tflops": 1, "gemm_products": 2}\nNC'
    )
    facts = facts_from(gathered([asked()], [said], 50.0, 1))
    now = Reading("active", 1.0, "b", facts)
    verdicts = {one.name: judged(one, now, None, POLICY) for one in judging.CHECKS}
    assert verdicts["active_gemm"].severity is Severity.OK
    assert (verdicts["active_allreduce"].severity, verdicts["active_allreduce"].words) == (
        Severity.UNKNOWN,
        "not done within 50 s",
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (ChildEnd(0, '{"absent": "no torch"}'), "no torch"),
        (ChildEnd(-9, ""), "the test was killed by signal 9"),
        (
            ChildEnd(127, "", "python cannot be started: No such file"),
            "the test ended with 127: python cannot be started",
        ),
        (ChildEnd(0, '{"usable": 1}\n{"failed": "product", "why": "MemoryError: x"}'), "MemoryError: x"),
        (ChildEnd(0, "nonsense\n[1]\n{"), "not tested"),
    ],
)
def test_what_could_not_be_tested_is_unknown_and_says_why(said: ChildEnd, words: str) -> None:
    facts = facts_from(gathered([asked()], [said], 50.0, 0))
    told = facts.absent or facts.why_missing("gemm_mismatches")
    assert words in told
    for one in judging.CHECKS:
        verdict = judged(one, Reading("active", 1.0, "b", facts), None, POLICY)
        assert verdict.severity in (Severity.OK, Severity.UNKNOWN)


def child(tmp_path: Path, before: str = "", **more: Any) -> list[dict[str, Any]]:
    """The unmodified program on this machine's CPU; ``before``: what is done to its torch first."""
    question = {"device": "cpu", "seconds": 0.0, "share": 0.5, "most_bytes": 1 << 22, "rank": 0, "world": 1,
                "store": str(tmp_path / "store"), "meet_s": 30, "sum_bytes": 4096, **more}  # fmt: skip
    code = f"{before}\nimport runpy\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    [said] = together([[sys.executable, "-c", code, json.dumps(question)]], {}, 100.0, monotonic)
    assert said.code == 0, said
    return [json.loads(line) for line in said.out.splitlines()]


LYING = """
import torch
def lie(a, b, real=torch.matmul):
    product = real(a, b)
    product[3, 5] += 1
    return product
torch.matmul = lie
def forget(self, source, real=torch.Tensor.copy_):
    kept = real(self, source)
    if self.dtype == torch.int64 and self[7] == 0x5555555555555555:
        self[7] ^= 1 << 40
    return kept
torch.Tensor.copy_ = forget
"""


@pytest.mark.processes
def test_one_wrong_number_and_one_bit_are_found(tmp_path: Path) -> None:
    good = {key: value for line in child(tmp_path, tests=["product", "memory"]) for key, value in line.items()}
    assert (good["gemm_mismatches"], good["memory_mismatches"], good["memory_passes"]) == (0, 0, 6)
    bad = {key: value for line in child(tmp_path, LYING, tests=["product", "memory"]) for key, value in line.items()}
    assert bad["gemm_mismatches"] == bad["gemm_products"] > 0
    assert bad["memory_mismatches"] == 1


@pytest.mark.processes
def test_devices_of_this_machine_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    facts = facts_from(active("quick", 100.0, sys.executable))
    now = Reading("active", 1.0, "b", facts)
    verdicts = {one.name: judged(one, now, None, POLICY) for one in judging.CHECKS}
    unknown = {name for name, one in verdicts.items() if one.severity is Severity.UNKNOWN}
    assert {one.severity for one in verdicts.values()} == {Severity.OK, Severity.UNKNOWN}, verdicts
    assert unknown - {"active_allreduce"} == {"active_copies"}, "of one processor nobody adds up"


@pytest.mark.processes
def test_at_the_deadline_all_are_killed_and_what_they_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    sleeper = f"sleep 600 & echo $! $$ > '{pids}'; echo so far; wait"  # of a shell, which begins well within the time
    first, quick = together([["/bin/sh", "-c", sleeper], ["/bin/echo", "done"]], {}, 3.0, monotonic)
    assert (first.code, "so far" in first.out) == (None, True)
    assert (quick.code, quick.out) == (0, "done\n")
    born = [int(pid) for pid in pids.read_text().split()]
    assert len(born) == 2
    until(lambda: not [pid for pid in born if Path(f"/proc/{pid}/exe").exists()], 10, "both are gone")
    assert together([["/not/there"]], {}, 1.0, monotonic)[0].code == 127
    assert replace(first, err="a\nlast\n").last_words == "last"
