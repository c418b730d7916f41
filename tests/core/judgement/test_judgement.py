"""Each labelled failure is judged as a senior engineer would, but for those that are listed here with the reason."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.core.judgement.case import Case, read_all
from tests.core.judgement.figures import SPARES, TITLES, wrong
from tests.core.judgement.player import play

# Development cases that are judged wrongly today, by why. A case that is judged rightly must leave the list.
KNOWN_WRONG: dict[str, tuple[str, ...]] = {
    "a fabric on which no node sets up connections may come back, so the whole budget is spent on it": (
        "ib-modify-qp-timed-out-everywhere",
    ),
    "a GPU that is busy is told as the node's, whoever holds it, and the node is excluded at the first strike": (
        "foreign-process-all-devices-busy-left-by-last-job",
        "foreign-process-device-busy-stylegan",
        "foreign-process-holds-the-gpu-before-cuda",
    ),
    "a kernel that fails once may be the code's: a test decides, and if none can tell, the node only holds no rank": (
        "device-cublas-internal-error-gpu-0-driver-mismatch",
        "device-cudnn-internal-error-of-a-bad-gpu",
        "device-cudnn-other-machine-is-fine",
        "device-jax-cublas-execution-failed-of-replica-0",
        "device-kaldi-launch-failure-in-copy-to-vec",
        "device-launch-failure-until-the-machine-restarts",
        "device-xla-gpu-launch-failure-event-status",
    ),
    "a node that only others speak of holds no rank any more, which excludes nobody": (
        "network-no-route-to-one-host",
        "network-ucx-retry-ib-rlid-703",
    ),
    "all ranks name one address, that node's own ranks too, as if they had lost it": (
        "network-connection-abort-through-the-proxy",
    ),
    "shared memory is told as the disk's or the memory's of its node, as in the sets before": (
        "environment-shm-object-of-one-node",
        "environment-shm-too-small-worker-bus-error",
    ),
    "two ranks on one GPU are told as the code's, as in the sets before": ("usage-duplicate-gpu-two-launchers",),
    "all ranks hang and nothing tells them apart": ("device-watchdog-gone-on-another-card",),
    "that the training was over stands in a log line only": ("teardown-watchdog-hang-after-the-end",),
    "the error that counts stands in a log line before the crash that follows from it": (
        "environment-hip-no-kernel-image",
    ),
}
_WRONG = {name: why for why, names in KNOWN_WRONG.items() for name in names}
FOLDERS = ("cases", "held_out", *(f"held_out_{number}" for number in range(2, 12)))


@pytest.mark.parametrize("case", read_all("cases"), ids=lambda case: case.file)
def test_a_failure_is_judged_rightly(case: Case) -> None:
    found = {TITLES[spares]: wrong(case, play(case, spares)) for spares in SPARES}
    is_wrong = any(found.values())
    if case.file in _WRONG:
        assert is_wrong, f"{case.file} is judged rightly now: take it out of KNOWN_WRONG"
    else:
        assert not is_wrong, f"{case.file}: {found}"


def test_the_list_of_wrong_ones_names_cases() -> None:
    names = [name for names in KNOWN_WRONG.values() for name in names]
    assert sorted(names) == sorted(set(names) & {case.file for case in read_all("cases")})


@pytest.mark.parametrize(("one", "other"), list(combinations(FOLDERS, 2)))
def test_no_case_is_in_two_parts(one: str, other: str) -> None:
    sources = [{case.header["source"] for case in read_all(folder)} for folder in (one, other)]
    assert not sources[0] & sources[1], "whoever writes rules must not have read what checks them"
