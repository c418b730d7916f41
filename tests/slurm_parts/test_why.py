"""Why SIGTERM came: by the table, and on what real Slurms showed at that moment."""

from __future__ import annotations

import pytest

from gangrun.adapters.slurm.scheduler import JobFacts, read_job
from gangrun.adapters.slurm.watch import why_terminated
from gangrun.core.events import NoticeKind
from tests.slurm_parts.captured import VERSIONS, shown

NOW = 1_000_000.0
LATER, EARLIER = NOW + 600.0, NOW - 5.0

CANCEL, PREEMPTION, REQUEUE = NoticeKind.CANCEL, NoticeKind.PREEMPTION, NoticeKind.REQUEUE
TIME_LIMIT, UNKNOWN, BATCH_DIED = NoticeKind.TIME_LIMIT, NoticeKind.UNKNOWN, NoticeKind.BATCH_DIED


def facts(state: str, **rest: object) -> JobFacts:
    return JobFacts(job="7", state=state, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "end", "kind"),
    [
        (None, LATER, UNKNOWN),
        (None, EARLIER, UNKNOWN),  # Slurm has forgotten it, or never knew it
        (facts("COMPLETING"), LATER, CANCEL),
        (facts("COMPLETING"), None, CANCEL),  # no time limit
        (facts("COMPLETING", exit_signal=15), LATER, CANCEL),  # the batch script was the first to fall
        (facts("CANCELLED", exit_signal=9), LATER, CANCEL),
        (facts("RUNNING"), LATER, UNKNOWN),  # scancel -s TERM
        (facts("RUNNING"), EARLIER, TIME_LIMIT),  # the state comes after the signal
        (facts("RUNNING", preempted=True), LATER, PREEMPTION),
        (facts("RUNNING", preempted=True), EARLIER, PREEMPTION),
        (facts("COMPLETING", preempted=True), LATER, PREEMPTION),
        (facts("PREEMPTED"), LATER, PREEMPTION),
        (facts("COMPLETING", restarts_count=3), LATER, REQUEUE),
        (facts("COMPLETING", restarts_count=3, preempted=True), LATER, REQUEUE),
        (facts("PENDING", restarts_count=3, reason="BeginTime"), LATER, REQUEUE),
        (facts("COMPLETING", restarts_count=2), LATER, CANCEL),
        (facts("COMPLETING", reason="TimeLimit"), LATER, TIME_LIMIT),
        (facts("COMPLETING"), EARLIER, TIME_LIMIT),
        (facts("COMPLETING"), NOW + 0.5, TIME_LIMIT),  # Slurm tells whole seconds
        (facts("TIMEOUT"), LATER, TIME_LIMIT),
        (facts("DEADLINE"), LATER, TIME_LIMIT),
        (facts("COMPLETING", exit_code=3, reason="NonZeroExitCode"), LATER, UNKNOWN),
        (facts("COMPLETING", exit_code=3, reason="NonZeroExitCode"), EARLIER, UNKNOWN),
        (facts("COMPLETING", exit_signal=9, reason="JobLaunchFailure"), LATER, BATCH_DIED),
        (facts("FAILED", exit_signal=11, reason="RaisedSignal"), EARLIER, BATCH_DIED),
        (facts("FAILED", exit_code=1), LATER, UNKNOWN),
        (facts("COMPLETING", exit_code=1, reason="NonZeroExitCode", comment="gr:r:0"), LATER, BATCH_DIED),
        (facts("FAILED", exit_code=137, comment="gr:r:0"), LATER, BATCH_DIED),
        (facts("COMPLETING", reason="NodeDown", comment="gr:r:0"), LATER, BATCH_DIED),
        (facts("NODE_FAIL"), LATER, BATCH_DIED),
        (facts("OUT_OF_MEMORY", exit_signal=125, reason="OutOfMemory"), LATER, BATCH_DIED),
        (facts("RUNNING", reason="Odd", comment="gr:r:0"), LATER, UNKNOWN),
        (facts("SUSPENDED"), LATER, UNKNOWN),
        (facts("SIGNALING"), LATER, UNKNOWN),
        (facts("SIGNALING", reason="Odd"), EARLIER, TIME_LIMIT),
        (facts("SIGNALING", preempted=True), LATER, PREEMPTION),
        (facts("A_NEW_WORD"), LATER, UNKNOWN),
    ],
)
def test_the_table(seen: JobFacts | None, end: float | None, kind: NoticeKind) -> None:
    assert why_terminated(None if end is None else end - NOW, 2, seen) is kind


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("scancel", CANCEL),  # the batch script lived on in its grace
        ("scancel-plain", CANCEL),
        ("scancelled", CANCEL),
        ("signal", UNKNOWN),
        ("requeue", REQUEUE),
        ("requeued", REQUEUE),
        ("preemption-in-grace", PREEMPTION),
        ("preemption-cancel", PREEMPTION),
        ("preemption-requeue", REQUEUE),
        ("time-limit", TIME_LIMIT),
        ("timed-out", TIME_LIMIT),
        ("batch-script-failed", BATCH_DIED),
        ("batch-script-killed", BATCH_DIED),
    ],
)
def test_what_real_slurms_showed(version: str, name: str, kind: NoticeKind) -> None:
    seen = read_job(shown(version, name))
    assert why_terminated(None, 0, seen) is kind
    assert why_terminated(100.0, 0, seen) is kind
