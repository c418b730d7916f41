"""GPUs that a job may not use: they are looked at, told of, and never fail the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangrun.entry.agent_health import watch_spec
from gangrun.health.framework.check import HealthPolicy, NodeFacts, Severity
from gangrun.health.framework.evidence import as_evidence
from gangrun.health.gpu import devices
from gangrun.wire.spec import HealthSpec, RunSpec
from tests.health.looks import look, reading


@pytest.mark.parametrize(
    ("word", "named"),
    [("0,1", ("0", "1")), (" 2 , GPU-ab", ("2", "GPU-ab")), ("", ()), ("0,-1,3", ("0",)), ("NoDevFiles", ())],
)
def test_what_cuda_would_make_of_it(word: str, named: tuple[str, ...]) -> None:
    assert devices.wanted({"CUDA_VISIBLE_DEVICES": word}) == named
    assert devices.wanted({"PATH": word}) is None


def four(**changes: Any) -> NodeFacts:
    values: dict[str, Any] = {f"gpu {n}": {"uuid": f"GPU-{n}{n}", "model": "H100"} for n in range(4)}
    for place, names in changes.items():
        values[place.replace("_", " ")] = names
    return NodeFacts({"node": {"gpus_count": 4}, **values, "gpu 3 link 0": {"active": 1}})


@pytest.mark.parametrize(
    ("named", "facts", "others"),
    [
        (None, four(), set()),
        (("0", "2"), four(), {"gpu 1", "gpu 3"}),
        ((), four(), {"gpu 0", "gpu 1", "gpu 2", "gpu 3"}),
        (("GPU-1", "GPU-33"), four(), {"gpu 0", "gpu 2"}),
        (("0", "7"), four(), set()),
        (("0", "1", "2", "3"), four(), set()),
        (("4", "5", "6", "7"), four(), set()),
        (("0",), four(gpu_2={"uuid": "GPU-22", "model": "T4"}), set()),
        (("GPU-00",), four(gpu_2={"uuid": "GPU-22", "model": "T4"}), {"gpu 1", "gpu 2", "gpu 3"}),
        (("GPU-22",), four(gpu_2={"lost": "it fell off the bus"}), set()),
        (("GPU-",), four(), set()),
        (("0", "GPU-11"), four(), set()),
        (("MIG-00",), four(), set()),
    ],
)
def test_which_are_not_the_jobs(named: tuple[str, ...] | None, facts: NodeFacts, others: set[str]) -> None:
    assert devices.beside(facts, named) == others


def test_a_report_of_one_that_cannot_say_who_it_is() -> None:
    lost = four(gpu_2={"lost": "it fell off the bus"})
    assert devices.is_beside(lost, ("0",), "GPU-22")
    assert devices.is_beside(lost, ("0",), "GPU-33")
    assert devices.is_beside(lost, (), "GPU-00")
    assert not devices.is_beside(lost, ("0",), "GPU-00")
    assert not devices.is_beside(lost, ("2",), "GPU-22"), "it may well be the job's"
    assert not devices.is_beside(lost, ("0",), "")
    assert not devices.is_beside(lost, None, "GPU-22")


@pytest.mark.parametrize(("used", "severity", "fatal"), [("0", Severity.WARN, False), ("1", Severity.FAIL, True)])
def test_one_that_is_left_out_is_told_of_and_fails_nothing(used: str, severity: Severity, fatal: bool) -> None:
    policy = HealthPolicy(gpus_used=(used,))
    values: dict[str, Any] = {f"gpu {n}": {"uuid": f"GPU-{n}", "ecc_uncorrected": 3 * n} for n in range(2)}
    links: dict[str, Any] = {
        "gpu 0 link 0": {"active": 1},
        "gpu 1 link 0": {"active": 0},
        "gpu 1 link 1": {"active": 1},
    }
    now = reading({**values, **links})
    for name in ("gpu_ecc", "nvlink_state"):
        verdict = look(name, now, policy=policy)
        assert (name, verdict.severity) == (name, severity)
        (found,) = as_evidence("n1", [verdict], 5.0)
        assert (found.fatal, found.poor, found.until_boot) == (fatal, False, fatal)
        assert ("(not a GPU of this job)" in found.sentence) is not fatal
    assert look("gpu_ecc", now).severity is Severity.FAIL, "where nobody says, all are the job's"


def test_a_worn_one_that_is_left_out_makes_no_node_poor() -> None:
    values: dict[str, Any] = {f"gpu {n}": {"uuid": f"GPU-{n}", "banks_exhausted": 2 * n} for n in range(2)}
    for used, poor in (("0", False), ("1", True)):
        worn = look("gpu_spare_rows", reading(values), policy=HealthPolicy(gpus_used=(used,)))
        assert [one.poor for one in as_evidence("n1", [worn], 5.0)] == [poor]


def test_what_ranks_see_is_what_is_judged(tmp_path: Path) -> None:
    plain = RunSpec(
        run="r", name="r", world="local", command=("x",), python=True, working_directory="/", nodes=("n",),
        nodes_min_count=1, slots_per_node=1, ranks_per_slot=1,
    )  # fmt: skip

    def used(environment: dict[str, str], variables: dict[str, str], **bounds: Any) -> Any:
        spec = msgspec.structs.replace(plain, environment=environment, health=HealthSpec(bounds=bounds))
        return watch_spec(spec, "n", tmp_path, variables)["policy"]["gpus_used"]

    assert used({}, {}) is None
    assert used({}, {"CUDA_VISIBLE_DEVICES": "2"}) == ("2",)
    assert used({"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "2"}) == ("1",), "--env wins"
    assert used({}, {"CUDA_VISIBLE_DEVICES": "2"}, gpus_used=("0", "1")) == ("0", "1")
